//! `divvy reserve`: sets credits aside.

use std::fmt;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::answer::Answer;
use super::call::CallArgs;
use super::request::{OperationArgs, Request};
use super::verdict::Verdict;
use crate::cli::resp::{parts, text};
use crate::protocol::resp::client::Frame;
use crate::units::{self, Time};

/// Reserve credits for an operation whose cost is known later, or take a lease.
///
/// The answer is `OK`, whether the credits are reserved, the credits left, the seconds until there are more, and the
/// reservation's id, as in `OK true 400 60 AjwA…`. A denial has no id. The id is what `divvy commit`, `divvy renew` and `divvy
/// release` take.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  divvy reserve --amount 500 --ttl 30 api=chat user=ann")]
pub struct ReserveArgs {
    #[command(flatten)]
    call: CallArgs,
    /// Number of credits to reserve, all or none, or of leases to take
    #[arg(long, value_name = "N", value_parser = units::count::<u64>(1..=i64::MAX as u64))]
    amount: u64,
    /// How long the reservation lasts, in seconds or as in 1m. A lease needs no TTL: it lasts as long as its rule says
    #[arg(long, value_name = "SECONDS", value_parser = units::seconds(1..=u64::from(u32::MAX)))]
    ttl: Option<Time>,
    /// Idempotency key, 1 to 255 bytes: the same request under it returns the same reservation
    #[arg(long, value_name = "TEXT")]
    id: Option<String>,
    /// Exit with 3 when the reservation is denied
    #[arg(long)]
    exit_code: bool,
    #[command(flatten)]
    operation: OperationArgs,
}

impl ReserveArgs {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// See [`CallArgs::run`].
    pub fn run(&self) -> anyhow::Result<ExitCode> {
        let request = Request::new("DIVVY.RESERVE").operation(&self.operation).option("AMOUNT", Some(self.amount));
        let request = request.costing(self.amount);
        let request = request.option("TTL", self.ttl.map(Time::whole_seconds)).option("ID", self.id.as_ref());
        self.call.run::<ReserveAnswer>(&request, self.exit_code)
    }
}

/// The answer to a request for a reservation.
#[derive(Debug)]
struct ReserveAnswer {
    verdict: Verdict,
    /// The reservation's id; `None` if nothing is reserved.
    id: Option<String>,
}

impl fmt::Display for ReserveAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.verdict.fmt(f)?;
        self.id.iter().try_for_each(|id| write!(f, " {id}"))
    }
}

impl Answer for ReserveAnswer {
    fn read(reply: &Frame) -> Option<Self> {
        let [allowed, credit, reset, id] = parts(reply)? else { return None };
        Some(Self { verdict: Verdict::read_parts(allowed, credit, reset)?, id: text(id) })
    }

    fn to_json(&self) -> Value {
        let mut json = self.verdict.to_json();
        if let Some(members) = json.as_object_mut() {
            members.insert("id".to_owned(), json!(self.id));
        }
        json
    }

    fn is_refusal(&self) -> bool {
        self.verdict.is_refusal()
    }
}
