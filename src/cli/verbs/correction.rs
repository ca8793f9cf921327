//! `divvy charge` and `divvy refund`: correct a counter after a hit.

use std::fmt;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::answer::Answer;
use super::call::CallArgs;
use super::request::{OperationArgs, Request};
use crate::cli::resp::{integer, number, parts};
use crate::protocol::resp::client::Frame;
use crate::units;

/// Last paragraph of the help of `divvy charge`.
pub const CHARGE_EXAMPLE: &str = "Example:\n  divvy charge --cost 350 api=chat user=ann";
/// Last paragraph of the help of `divvy refund`.
pub const REFUND_EXAMPLE: &str = "Example:\n  divvy refund --cost 20 api=chat user=ann";

#[derive(Debug, clap::Args)]
pub struct CorrectionArgs {
    #[command(flatten)]
    call: CallArgs,
    /// Number of credits, regardless of the rule's costField
    #[arg(long, value_name = "N", value_parser = units::count::<u64>(0..=i64::MAX as u64))]
    cost: Option<u64>,
    /// Idempotency key, 1 to 255 bytes: the same request under it within a minute changes nothing, and has the same
    /// answer
    #[arg(long, value_name = "TEXT")]
    id: Option<String>,
    #[command(flatten)]
    operation: OperationArgs,
}

/// Runs `divvy charge`.
///
/// # Errors
/// See [`CallArgs::run`].
pub fn charge(args: &CorrectionArgs) -> anyhow::Result<ExitCode> {
    correct("DIVVY.CHARGE", args)
}

/// Runs `divvy refund`.
///
/// # Errors
/// See [`CallArgs::run`].
pub fn refund(args: &CorrectionArgs) -> anyhow::Result<ExitCode> {
    correct("DIVVY.REFUND", args)
}

fn correct(command: &str, args: &CorrectionArgs) -> anyhow::Result<ExitCode> {
    let request = Request::new(command).operation(&args.operation);
    let request = request.option("COST", args.cost).option("ID", args.id.as_ref());
    args.call.run::<Balance>(&request, false)
}

/// The state of the counter after a correction.
#[derive(Debug)]
struct Balance {
    /// Credits left, negative if more were used than there were.
    balance: i64,
    /// Seconds until more credits are available.
    reset_seconds: u64,
}

impl fmt::Display for Balance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.balance, self.reset_seconds)
    }
}

impl Answer for Balance {
    fn read(reply: &Frame) -> Option<Self> {
        let [balance, reset] = parts(reply)? else { return None };
        Some(Self { balance: integer(balance)?, reset_seconds: number(reset)? })
    }

    fn to_json(&self) -> Value {
        json!({ "balance": self.balance, "resetSeconds": self.reset_seconds })
    }
}
