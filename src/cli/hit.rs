//! `divvy hit`: one hit to a running server, over RESP or the line protocol.

mod front;
mod line;

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};

use self::front::Front;
use super::pairs::Pair;
use super::resp::{ServerArgs, number, parts};
use super::units;
use crate::protocol::resp::client::Frame;

/// How long the server may take to be reached and to answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// What the process exits with when the hit is denied and `--exit-code` is given: 1 is an error, 2 a wrong command line.
const DENIED: u8 = 3;
/// Where the line protocol is unless the operator says otherwise.
const DEFAULT_LINE_ADDRESS: &str = "127.0.0.1:8321";

/// Send a hit to a running server and print the answer.
///
/// The answer is `OK`, whether the hit is allowed, the credits left, and the seconds until there are more, as in `OK
/// true 999 60`. Exits with 1 when there is no answer, and with 0 for any answer unless --exit-code is given.
#[derive(Debug, clap::Args)]
pub struct HitArgs {
    // First: it looks at where the values of the others come from.
    #[command(flatten)]
    front: Front,
    #[command(flatten)]
    server: ServerArgs,
    /// Speak the line protocol with this address, instead of RESP with --server [default: 127.0.0.1:8321]
    #[arg(long, env = "DIVVY_ADDR", value_name = "HOST:PORT")]
    addr: Option<String>,
    /// Credits that the hit takes, whatever the rule's costField says. Not available over the line protocol
    #[arg(long, value_name = "N", value_parser = units::count::<u64>(0..=i64::MAX as u64))]
    cost: Option<u64>,
    /// Exit with 3 when the hit is denied
    #[arg(long)]
    exit_code: bool,
    /// Print a JSON object instead of a line
    #[arg(long)]
    json: bool,
    /// The operation: each argument is one pair, split at its first `=`
    #[arg(value_name = "KEY=VALUE")]
    operation: Vec<Pair>,
}

/// What the server said.
struct Verdict {
    allowed: bool,
    /// Credits left.
    credit: u64,
    /// Seconds until there are more.
    reset_seconds: u64,
}

/// Prints the answer; a server that answers with an error makes this fail.
pub fn run(args: HitArgs) -> anyhow::Result<ExitCode> {
    let verdict = match args.front {
        Front::Resp => hit_over_resp(&args)?,
        Front::Line if args.cost.is_some() => {
            bail!(
                "--cost needs RESP, and the line protocol of --addr (or DIVVY_ADDR) has no word for it: give --server"
            )
        }
        Front::Line => line::hit(&args, args.addr.as_deref().unwrap_or(DEFAULT_LINE_ADDRESS))?,
    };
    let Verdict { allowed, credit, reset_seconds } = verdict;
    let mut out = io::stdout().lock();
    if args.json {
        let answer = serde_json::json!({ "allowed": allowed, "credit": credit, "resetSeconds": reset_seconds });
        writeln!(out, "{answer}")?;
    } else {
        writeln!(out, "OK {allowed} {credit} {reset_seconds}")?;
    }
    out.flush()?;
    Ok(if args.exit_code && !allowed { ExitCode::from(DENIED) } else { ExitCode::SUCCESS })
}

fn hit_over_resp(args: &HitArgs) -> anyhow::Result<Verdict> {
    let mut request = vec!["DIVVY.HIT".to_owned()];
    request.extend(args.operation.iter().map(Pair::to_string));
    if let Some(cost) = args.cost {
        request.extend(["COST".to_owned(), cost.to_string()]);
    }
    let reply = args.server.connect(TIMEOUT)?.ask(&request)?;
    verdict(&reply).with_context(|| format!("{}: the answer is not a hit's: is that a divvy?", args.server.server))
}

fn verdict(reply: &Frame) -> Option<Verdict> {
    let [allowed, credit, reset] = parts(reply)? else { return None };
    Some(Verdict { allowed: number(allowed)? != 0, credit: number(credit)?, reset_seconds: number(reset)? })
}
