//! `divvy peek`: prints the answer that a hit would have, without taking credits.

use std::process::ExitCode;

use super::call::CallArgs;
use super::request::{OperationArgs, Request};
use super::verdict::Verdict;
use crate::units;

/// Print the answer that a hit would have now, without taking credits.
///
/// The answer is that of `divvy hit`: `OK`, whether the hit would be allowed, the credits left, and the seconds until
/// there are more.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  divvy peek --cost 5 api=search user=ann")]
pub struct PeekArgs {
    #[command(flatten)]
    call: CallArgs,
    /// Credits that the hit would take, regardless of the rule's costField
    #[arg(long, value_name = "N", value_parser = units::count::<u64>(0..=i64::MAX as u64))]
    cost: Option<u64>,
    /// Exit with 3 when the hit would be denied
    #[arg(long)]
    exit_code: bool,
    #[command(flatten)]
    operation: OperationArgs,
}

impl PeekArgs {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// See [`CallArgs::run`].
    pub fn run(&self) -> anyhow::Result<ExitCode> {
        let request = Request::new("DIVVY.PEEK").operation(&self.operation).option("COST", self.cost);
        let request = request.option("REPLY", Some("JSON"));
        self.call.run::<Verdict>(&request, self.exit_code)
    }
}
