//! `divvy hit`: sends one hit to a running server, over RESP or the line protocol.

mod front;
mod line;

use std::process::ExitCode;

use anyhow::ensure;

use self::front::Front;
use super::answer::{Answer, exit_code, print};
use super::call::CallArgs;
use super::denial;
use super::request::{OperationArgs, Request};
use super::verdict::Verdict;
use crate::access::DEFAULT_USER;
use crate::units;

/// Default address of the line protocol.
const DEFAULT_LINE_ADDRESS: &str = "127.0.0.1:8321";

/// Send a hit to a running server and print the answer.
///
/// The answer is `OK`, whether the hit is allowed, the credits left, and the seconds until there are more, as in `OK
/// true 999 60`. Exits with 1 when there is no answer, and with 0 for any answer unless --exit-code is given. On a terminal, a
/// denial also names the rule, and the block if there is one.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  divvy hit --cost 5 api=search user=ann")]
pub struct HitArgs {
    // This comes first, because it checks whether the other values come from flags or variables.
    #[command(flatten)]
    front: Front,
    #[command(flatten)]
    call: CallArgs,
    /// Speak the line protocol with this address, instead of RESP with --server [default: 127.0.0.1:8321]
    #[arg(long, env = "DIVVY_ADDR", value_name = "HOST:PORT")]
    addr: Option<String>,
    /// Credits that the hit takes, regardless of the rule's costField. Not available over the line protocol
    #[arg(long, value_name = "N", value_parser = units::count::<u64>(0..=i64::MAX as u64))]
    cost: Option<u64>,
    /// Idempotency key, 1 to 255 bytes: the same hit under it within a minute takes nothing, and has the same answer.
    /// Not available over the line protocol
    #[arg(long, value_name = "TEXT")]
    id: Option<String>,
    /// Exit with 3 when the hit is denied
    #[arg(long)]
    exit_code: bool,
    #[command(flatten)]
    operation: OperationArgs,
}

impl HitArgs {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// There is no answer, or it is an error.
    pub fn run(&self) -> anyhow::Result<ExitCode> {
        match self.front {
            Front::Resp => {
                let request = Request::new("DIVVY.HIT").operation(&self.operation);
                let request = request.option("COST", self.cost).option("ID", self.id.as_ref());
                let request = request.option("REPLY", Some("JSON"));
                self.call.run::<Verdict>(&request, self.exit_code)
            }
            Front::Line => self.run_over_line_protocol(),
        }
    }

    fn run_over_line_protocol(&self) -> anyhow::Result<ExitCode> {
        let has_user = self.call.server.user.as_ref().is_some_and(|user| user != DEFAULT_USER);
        for (flag, is_given) in
            [("--cost", self.cost.is_some()), ("--id", self.id.is_some()), ("--user (or DIVVY_USER)", has_user)]
        {
            ensure!(
                !is_given,
                "{flag} needs RESP, because the line protocol of --addr (or DIVVY_ADDR) does not support it: use --server"
            );
        }
        let address = self.addr.as_deref().unwrap_or(DEFAULT_LINE_ADDRESS);
        let verdict = line::hit(&self.call.server, &self.operation, address)?;
        print(&verdict, self.call.json)?;
        if verdict.is_refusal() && denial::is_explained(self.call.json) {
            denial::suggest_resp();
        }
        Ok(exit_code(&verdict, self.exit_code))
    }
}
