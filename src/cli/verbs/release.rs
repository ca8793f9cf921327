//! `divvy release`: gives back a reservation or a lease.

use std::fmt;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::answer::Answer;
use super::call::CallArgs;
use super::request::Request;
use crate::cli::resp::number;
use crate::protocol::resp::client::Frame;

/// Release a reservation or a lease.
///
/// The answer is `OK true`, or `OK false` if nothing was reserved anymore.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  divvy release \"$id\"")]
pub struct ReleaseArgs {
    #[command(flatten)]
    call: CallArgs,
    /// Exit with 3 if nothing was reserved anymore
    #[arg(long)]
    exit_code: bool,
    /// The reservation's id, as `divvy reserve` prints it
    #[arg(value_name = "ID")]
    reservation: String,
}

impl ReleaseArgs {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// See [`CallArgs::run`].
    pub fn run(&self) -> anyhow::Result<ExitCode> {
        let request = Request::new("DIVVY.RELEASE").word(&self.reservation);
        self.call.run::<ReleaseAnswer>(&request, self.exit_code)
    }
}

/// Whether something was released.
#[derive(Debug)]
struct ReleaseAnswer(bool);

impl fmt::Display for ReleaseAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Answer for ReleaseAnswer {
    fn read(reply: &Frame) -> Option<Self> {
        Some(Self(number(reply)? != 0))
    }

    fn to_json(&self) -> Value {
        json!({ "released": self.0 })
    }

    fn is_refusal(&self) -> bool {
        !self.0
    }
}
