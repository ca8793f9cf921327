//! `divvy renew`: extends a reservation or a lease.

use std::fmt;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::answer::Answer;
use super::call::CallArgs;
use super::request::Request;
use crate::cli::resp::number;
use crate::protocol::resp::client::Frame;
use crate::units::{self, Time};

/// Extend a reservation or a lease.
///
/// The answer is `OK` and the seconds until it expires, or `OK 0` if it does not exist anymore.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  divvy renew --ttl 30 \"$id\"")]
pub struct RenewArgs {
    #[command(flatten)]
    call: CallArgs,
    /// How long the reservation lasts from now, in seconds or as in 1m. A lease lasts as long as its rule says [default: its
    /// original time]
    #[arg(long, value_name = "SECONDS", value_parser = units::seconds(1..=u64::from(u32::MAX)))]
    ttl: Option<Time>,
    /// Exit with 3 if the reservation does not exist anymore
    #[arg(long)]
    exit_code: bool,
    /// The reservation's id, as `divvy reserve` prints it
    #[arg(value_name = "ID")]
    reservation: String,
}

impl RenewArgs {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// See [`CallArgs::run`].
    pub fn run(&self) -> anyhow::Result<ExitCode> {
        let request = Request::new("DIVVY.RENEW").word(&self.reservation);
        let request = request.option("TTL", self.ttl.map(Time::whole_seconds));
        self.call.run::<RenewAnswer>(&request, self.exit_code)
    }
}

/// Seconds until the reservation expires, or 0 if it does not exist anymore.
#[derive(Debug)]
struct RenewAnswer(u64);

impl fmt::Display for RenewAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Answer for RenewAnswer {
    fn read(reply: &Frame) -> Option<Self> {
        number(reply).map(Self)
    }

    fn to_json(&self) -> Value {
        json!({ "expiresIn": self.0 })
    }

    fn is_refusal(&self) -> bool {
        self.0 == 0
    }
}
