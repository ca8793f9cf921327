//! `divvy hit`, over RESP or the line protocol, `divvy peek`, and `divvy charge` and `divvy refund`, which correct a counter
//! after a hit.

use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Command, FromArgMatches};
use serde_json::{Value, json};

use super::answer::{Answer, Verdict, exit_code, explains_denials, print, suggest_resp};
use super::request::{CallArgs, OperationArgs, Request, TIMEOUT};
use crate::cli::access::{connect, explain_no_answer, tls_hint};
use crate::cli::pairs::Pair;
use crate::cli::resp::{ServerArgs, integer, number, parts};
use divvy_access::DEFAULT_USER;
use divvy_core::units;
use divvy_server::protocol::line::{ErrorCode, Reply, format_auth, format_hit, is_welcome, parse_reply};
use divvy_server::protocol::resp::client::Frame;

/// Default address of the line protocol.
const DEFAULT_LINE_ADDRESS: &str = "127.0.0.1:8321";

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
    /// Speak the line protocol with this address, instead of RESP with --server [default: 127.0.0.1:8321]
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

impl HitArgs {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// There is no answer, or it is an error.
    pub fn run(&self) -> anyhow::Result<ExitCode> {
        match self.front {
            Front::Resp => {
                let request = Request::new("DIVVY.HIT").operation(&self.operation);
                let request = request.option("COST", self.cost).option("ID", self.id.as_ref());
                let request = request.option("REPLY", Some("JSON"));
                self.call.run::<Verdict>(&request, self.exit_code)
            }
            Front::Line => self.run_over_line_protocol(),
        }
    }

    fn run_over_line_protocol(&self) -> anyhow::Result<ExitCode> {
        let has_user = self.call.server.user.as_ref().is_some_and(|user| user != DEFAULT_USER);
        for (flag, is_given) in
            [("--cost", self.cost.is_some()), ("--id", self.id.is_some()), ("--user (or DIVVY_USER)", has_user)]
        {
            ensure!(
                !is_given,
                "{flag} needs RESP, because the line protocol of --addr (or DIVVY_ADDR) does not support it: use --server"
            );
        }
        let address = self.addr.as_deref().unwrap_or(DEFAULT_LINE_ADDRESS);
        let verdict = hit_over_line_protocol(&self.call.server, &self.operation, address)?;
        print(&verdict, self.call.json)?;
        if verdict.is_refusal() && explains_denials(self.call.json) {
            suggest_resp();
        }
        Ok(exit_code(&verdict, self.exit_code))
    }
}

/// The listener chosen by `--server` and `--addr`. A flag takes precedence over a variable. Of the variables,
/// DIVVY_ADDR takes precedence, because it is older. The default is RESP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Front {
    Resp,
    Line,
}

impl FromArgMatches for Front {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let is_from = |flag: &str, source| matches.value_source(flag) == Some(source);
        let is_typed = |flag| is_from(flag, ValueSource::CommandLine);
        match (is_typed("server"), is_typed("addr")) {
            (true, true) => Err(clap::Error::raw(
                ErrorKind::ArgumentConflict,
                "--server (RESP) and --addr (the line protocol) exclude each other: give one of them\n",
            )),
            (true, false) => Ok(Self::Resp),
            (false, true) => Ok(Self::Line),
            (false, false) if is_from("addr", ValueSource::EnvVariable) => Ok(Self::Line),
            (false, false) => Ok(Self::Resp),
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

/// Sends the hit to `address`, preceded by the password if there is one. `server` has the password and the TLS
/// settings.
///
/// # Errors
/// The server cannot be reached, answers with an error, or does not speak the protocol.
fn hit_over_line_protocol(server: &ServerArgs, operation: &OperationArgs, address: &str) -> anyhow::Result<Verdict> {
    let request = format_hit(operation.pairs().map(Pair::as_strs))?;
    let line = send_line(server, address, &request)?;
    ensure!(!is_resp(&line), "{}", resp_port(address, &line));
    match parse_reply(&line).with_context(|| format!("{address} does not speak divvy's line protocol"))? {
        Reply::Error { code, .. } if code == ErrorCode::Unauthenticated.as_str() => {
            bail!("{address} requires a password: set DIVVY_PASSWORD, or give --password")
        }
        Reply::Error { code, reason } => bail!("{address} answered with an error: {code}: {reason}"),
        Reply::Verdict { allowed, credit, reset_seconds } => {
            Ok(Verdict { allowed, credit, reset_seconds, answer: None })
        }
    }
}

/// Returns whether an answer is of RESP, whose replies begin with a mark. RESP also reads requests of one line.
fn is_resp(answer: &str) -> bool {
    answer.starts_with(['+', '-'])
}

/// Describes the port of a server that answered over RESP.
fn resp_port(address: &str, answer: &str) -> String {
    let name =
        if answer.contains("DIVVY.") { "is divvy's RESP port" } else { "speaks RESP, as divvy's RESP port does" };
    format!("{address} {name}: use --server, or the line protocol's port (8321 by default)")
}

fn send_line(server: &ServerArgs, address: &str, request: &str) -> anyhow::Result<String> {
    let unreachable =
        || format!("cannot reach {address}; is `divvy serve` running there? --addr names another address");
    let stream = connect(address, TIMEOUT).with_context(unreachable)?;
    let mut stream = BufReader::new(server.tls.secure(stream, address, false)?);
    let mut ask = |request: &str| -> anyhow::Result<String> {
        let mut line = Vec::new();
        let sent = stream.get_mut().write_all(request.as_bytes()).and_then(|()| stream.get_mut().flush());
        let answered = sent.and_then(|()| stream.read_until(b'\n', &mut line));
        answered.map_err(|error| explain_no_answer(address, TIMEOUT, error))?;
        if !line.ends_with(b"\n") {
            bail!("{address} closed the connection without an answer{}", tls_hint(&line));
        }
        Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
    };
    if let Some(password) = server.password.password()? {
        let answer = ask(&format_auth(password))?;
        ensure!(!is_resp(&answer), "{}", resp_port(address, &answer));
        if !is_welcome(&answer) {
            bail!("{address} refused the password: {answer}");
        }
    }
    ask(request)
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
        json!({ "balance": self.balance, "reset": self.reset_seconds })
    }
}
