//! Subcommands that send one request about an operation or a reservation to a running server, and print the answer: `divvy
//! hit` and its siblings.

mod answer;
mod line;

use std::process::ExitCode;

use anyhow::ensure;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Command, FromArgMatches};
use hyper::{Method, StatusCode};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use self::answer::{Answer, explain_denial, explains_denials, print_on_stderr};
use super::pairs::{Pair, operation_of};
use super::server::{Refused, Request, ServerArgs};
use divvy_access::DEFAULT_USER;
use divvy_core::units::{self, Time};

#[derive(Debug, clap::Subcommand)]
pub enum Verb {
    Hit(HitArgs),
    Peek(PeekArgs),
    /// Count credits that an operation has used already, even if fewer are left, and print the balance
    ///
    /// The answer is `OK`, the balance, which may be negative, and the seconds until there are more credits, as in `OK -212 60`.
    #[command(after_help = "Example:\n  divvy charge --cost 350 api=chat user=ann")]
    Charge(CorrectionArgs),
    /// Give back credits of an operation, at most as many as were used, and print the balance
    ///
    /// The answer is `OK`, the balance, and the seconds until there are more credits, as in `OK 788 60`.
    #[command(after_help = "Example:\n  divvy refund --cost 20 api=chat user=ann")]
    Refund(CorrectionArgs),
    Reserve(ReserveArgs),
    Commit(CommitArgs),
    Release(ReleaseArgs),
    Renew(RenewArgs),
}

/// The server, and the form of the answer.
#[derive(Debug, clap::Args)]
struct CallArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// Print a JSON object instead of a line
    #[arg(long)]
    json: bool,
}

/// The operation on the command line of a verb.
#[derive(Debug, clap::Args)]
struct OperationArgs {
    /// The operation: each argument is one pair, split at its first `=`
    #[arg(value_name = "KEY=VALUE")]
    pairs: Vec<Pair>,
}

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
    /// Speak the line protocol with this address, instead of HTTP with --server [default: 127.0.0.1:8321]
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

/// The members of an answer that a line has.
const VERDICT: &[&str] = &["allowed", "remaining", "reset"];
const BALANCE: &[&str] = &["balance", "reset"];

impl Verb {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// There is no answer, or it is an error.
    pub fn run(&self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Hit(args) if args.front == Front::Line => args.run_over_line_protocol(),
            Self::Hit(HitArgs { call, cost, id, exit_code, operation, .. }) => {
                call.run(operation.request("/v1/hit", *cost)?.with_key(id.as_deref())?, VERDICT, *exit_code, operation)
            }
            Self::Peek(PeekArgs { call, cost, exit_code, operation }) => {
                call.run(operation.request("/v1/peek", *cost)?, VERDICT, *exit_code, operation)
            }
            Self::Charge(args) => args.run("/v1/charge"),
            Self::Refund(args) => args.run("/v1/refund"),
            Self::Reserve(ReserveArgs { call, amount, ttl, id, exit_code, operation }) => {
                let request = operation.request("/v1/reservations", None)?.with("amount", *amount);
                let request = request.with_some("ttl", ttl.map(Time::whole_seconds)).with_some("id", id.as_deref());
                call.run(request, &[VERDICT, &["id"]].concat(), *exit_code, operation)
            }
            Self::Commit(CommitArgs { call, cost, reservation }) => {
                let request = of_reservation(Method::POST, reservation, "/commit").with("cost", *cost);
                call.run(request, &[BALANCE, &["status"]].concat(), false, &OperationArgs::NONE)
            }
            Self::Renew(RenewArgs { call, ttl, exit_code, reservation }) => {
                let request = of_reservation(Method::POST, reservation, "/renew").with_body();
                let request = request.with_some("ttl", ttl.map(Time::whole_seconds));
                call.run(request, &["expiresIn"], *exit_code, &OperationArgs::NONE)
            }
            Self::Release(ReleaseArgs { call, exit_code, reservation }) => {
                let request = of_reservation(Method::DELETE, reservation, "");
                call.run(request, &["released"], *exit_code, &OperationArgs::NONE)
            }
        }
    }
}

impl HitArgs {
    /// Sends the hit, and prints the answer, which names no rule.
    ///
    /// # Errors
    /// There is no answer, it is an error, or an argument is not available over the line protocol.
    fn run_over_line_protocol(&self) -> anyhow::Result<ExitCode> {
        let HitArgs { call, addr, cost, id, exit_code, operation, .. } = self;
        let has_user = call.server.user.as_ref().is_some_and(|user| user != DEFAULT_USER);
        for (flag, is_given) in
            [("--cost", cost.is_some()), ("--id", id.is_some()), ("--user (or DIVVY_USER)", has_user)]
        {
            ensure!(
                !is_given,
                "{flag} needs HTTP, because the line protocol of --addr (or DIVVY_ADDR) does not support it: use --server"
            );
        }
        let members = line::hit(&call.server, &operation.pairs, addr.as_deref().unwrap_or(line::DEFAULT_ADDRESS))?;
        call.print(&Answer { members, shown: VERDICT }, *exit_code, |_| {
            print_on_stderr("denied; to see by which rule, use --server instead of --addr\n");
        })
    }
}

impl CorrectionArgs {
    fn run(&self, path: &str) -> anyhow::Result<ExitCode> {
        let request = self.operation.request(path, self.cost)?.with_key(self.id.as_deref())?;
        self.call.run(request, BALANCE, false, &self.operation)
    }
}

impl OperationArgs {
    const NONE: Self = Self { pairs: Vec::new() };

    fn request(&self, path: &str, cost: Option<u64>) -> anyhow::Result<Request> {
        let request = Request::new(Method::POST, path).with("operation", operation_of(&self.pairs)?);
        Ok(request.with_some("cost", cost))
    }
}

/// Returns a request about the reservation with this id.
fn of_reservation(method: Method, id: &str, action: &str) -> Request {
    Request::new(method, format!("/v1/reservations/{}{action}", utf8_percent_encode(id, NON_ALPHANUMERIC)))
}

impl CallArgs {
    /// Sends the request, and prints these members of the answer. If `reports_refusal` is set, a refusal has its own exit code.
    ///
    /// # Errors
    /// There is no answer, or it is an error.
    fn run(
        &self,
        request: Request,
        shown: &[&str],
        reports_refusal: bool,
        operation: &OperationArgs,
    ) -> anyhow::Result<ExitCode> {
        let is_gone = |error: &anyhow::Error| {
            error.downcast_ref::<Refused>().is_some_and(|refused| refused.status == StatusCode::NOT_FOUND)
        };
        let answer = match self.server.connect(line::TIMEOUT)?.ask(request) {
            Err(error) if shown == ["expiresIn"] && is_gone(&error) => json!({ "expiresIn": 0 }),
            answered => answered?,
        };
        self.print(&Answer { members: answer, shown }, reports_refusal, |answer| {
            explain_denial(answer, &operation.pairs);
        })
    }

    /// Prints the answer. Calls `explain` for a denial, if a person reads it.
    fn print(
        &self,
        answer: &Answer<'_>,
        reports_refusal: bool,
        explain: impl FnOnce(&Value),
    ) -> anyhow::Result<ExitCode> {
        answer.print(self.json)?;
        if answer.is_denial() && explains_denials(self.json) {
            explain(&answer.members);
        }
        Ok(answer.exit_code(reports_refusal))
    }
}

/// The listener chosen by `--server` and `--addr`. A flag takes precedence over a variable. Of the variables,
/// DIVVY_ADDR takes precedence, because it is older. The default is HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Front {
    Http,
    Line,
}

impl FromArgMatches for Front {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let is_from = |flag: &str, source| matches.value_source(flag) == Some(source);
        let is_typed = |flag| is_from(flag, ValueSource::CommandLine);
        match (is_typed("server"), is_typed("addr")) {
            (true, true) => Err(clap::Error::raw(
                ErrorKind::ArgumentConflict,
                "--server (HTTP) and --addr (the line protocol) exclude each other: give one of them\n",
            )),
            (true, false) => Ok(Self::Http),
            (false, true) => Ok(Self::Line),
            (false, false) if is_from("addr", ValueSource::EnvVariable) => Ok(Self::Line),
            (false, false) => Ok(Self::Http),
        }
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Declares no flags of its own.
impl clap::Args for Front {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}
