//! `divvy reserve`, which sets credits aside, and `divvy commit`, `divvy renew` and `divvy release` for its reservations.

use std::fmt;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::answer::{Answer, Verdict};
use super::request::{CallArgs, OperationArgs, Request};
use crate::cli::resp::{integer, number, parts, text};
use divvy_core::units::{self, Time};
use divvy_server::protocol::resp::client::Frame;

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
        json!({ "balance": self.balance, "reset": self.reset_seconds, "status": self.status })
    }
}

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
