//! `divvy hit`: sends one hit to a running server, over RESP or the line protocol.

mod args;
mod front;
mod line;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context, bail};

pub use self::args::HitArgs;
use self::args::{TIMEOUT, Verdict};
use self::front::Front;
use super::pairs::Pair;
use super::resp::{number, parts};
use crate::protocol::resp::client::Frame;

/// Exit code for a denied hit with `--exit-code`. 1 is an error, 2 a wrong command line.
const DENIED: u8 = 3;
/// Default address of the line protocol.
const DEFAULT_LINE_ADDRESS: &str = "127.0.0.1:8321";

/// Prints the answer. Fails if the server answers with an error.
pub fn run(args: HitArgs) -> anyhow::Result<ExitCode> {
    let verdict = match args.front {
        Front::Resp => hit_over_resp(&args)?,
        Front::Line if args.cost.is_some() => {
            bail!(
                "--cost needs RESP, because the line protocol of --addr (or DIVVY_ADDR) does not support it: use \
                 --server"
            )
        }
        Front::Line if args.id.is_some() => {
            bail!(
                "--id needs RESP, because the line protocol of --addr (or DIVVY_ADDR) does not support it: use \
                 --server"
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
    if let Some(id) = &args.id {
        request.extend(["ID".to_owned(), id.clone()]);
    }
    let reply = args.server.connect(TIMEOUT)?.ask(&request)?;
    verdict(&reply)
        .with_context(|| format!("{}: this is not the answer to a hit: is the server divvy?", args.server.server))
}

fn verdict(reply: &Frame) -> Option<Verdict> {
    let [allowed, credit, reset] = parts(reply)? else { return None };
    Some(Verdict { allowed: number(allowed)? != 0, credit: number(credit)?, reset_seconds: number(reset)? })
}
