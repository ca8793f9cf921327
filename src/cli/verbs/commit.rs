//! `divvy commit`: counts the used credits of a reservation.

use std::fmt;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::answer::Answer;
use super::call::CallArgs;
use super::request::Request;
use crate::cli::resp::{integer, number, parts, text};
use crate::protocol::resp::client::Frame;
use crate::units;

/// Count the used credits of a reservation, and release the rest.
///
/// The answer is `OK`, the balance, the seconds until there are more credits, and `settled`, `late` (the reservation had expired)
/// or `repeated` (it was committed before), as in `OK 850 60 settled`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  divvy commit --cost 350 \"$id\"")]
pub struct CommitArgs {
    #[command(flatten)]
    call: CallArgs,
    /// Credits that were used
    #[arg(long, value_name = "N", value_parser = units::count::<u64>(0..=i64::MAX as u64))]
    cost: u64,
    /// The reservation's id, as `divvy reserve` prints it
    #[arg(value_name = "ID")]
    reservation: String,
}

impl CommitArgs {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// See [`CallArgs::run`].
    pub fn run(&self) -> anyhow::Result<ExitCode> {
        let request = Request::new("DIVVY.COMMIT").word(&self.reservation).option("COST", Some(self.cost));
        self.call.run::<CommitAnswer>(&request, false)
    }
}

/// The answer to a commit.
#[derive(Debug)]
struct CommitAnswer {
    /// Credits left, negative if more were used than there were.
    balance: i64,
    /// Seconds until more credits are available.
    reset_seconds: u64,
    /// `settled`, `late` or `repeated`.
    status: String,
}

impl fmt::Display for CommitAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.balance, self.reset_seconds, self.status)
    }
}

impl Answer for CommitAnswer {
    fn read(reply: &Frame) -> Option<Self> {
        let [balance, reset, status] = parts(reply)? else { return None };
        Some(Self { balance: integer(balance)?, reset_seconds: number(reset)?, status: text(status)? })
    }

    fn to_json(&self) -> Value {
        json!({ "balance": self.balance, "resetSeconds": self.reset_seconds, "status": self.status })
    }
}
