//! Subcommands that send one request about an operation or a reservation to a running server, and print the answer: `divvy
//! hit` and its siblings.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::ArgMatches;
use clap::parser::ValueSource;
use hyper::{Method, StatusCode};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::time::timeout;

use super::client::{Refusal, Request, ServerArgs, explain_silence, tls_hint};
use super::terminal::{printable, quote};
use super::values::{Pair, operation_of, pair};
use divvy_access::DEFAULT_USER;
use divvy_core::units::{self, Time};
use divvy_server::protocol::line::{Reply, format_auth, format_hit, is_welcome, parse_reply};
use divvy_telemetry::metrics::ErrorKind;

/// Maximum time to connect, and maximum time for an answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Exit code for a refusal with `--exit-code`. 1 stands for an error, and 2 for an invalid command line.
const REFUSED: u8 = 3;
/// The name of the default rule.
const DEFAULT_RULE: &str = "default";
/// The members of an answer that a line has.
const VERDICT: &[&str] = &["allowed", "remaining", "reset"];
const BALANCE: &[&str] = &["balance", "reset"];

#[derive(clap::Subcommand)]
pub enum HitCommand {
    /// Send a hit to a running server and print the answer
    ///
    /// The answer is `OK`, whether the hit is allowed, the credits left, and the seconds until there are more, as in `OK
    /// true 999 60`. Exits with 1 when there is no answer, and with 0 for any answer unless --exit-code is given. On a terminal, a
    /// denial also names the rule, and the block if there is one.
    #[command(after_help = "Example:\n  divvy hit --cost 5 api=search user=ann")]
    Hit {
        #[command(flatten)]
        operation: PairArgs,
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
    },
    /// Print the answer that a hit would have now, without taking credits
    ///
    /// The answer is that of `divvy hit`: `OK`, whether the hit would be allowed, the credits left, and the seconds until
    /// there are more.
    #[command(after_help = "Example:\n  divvy peek --cost 5 api=search user=ann")]
    Peek {
        #[command(flatten)]
        operation: PairArgs,
        /// Credits that the hit would take, regardless of the rule's costField
        #[arg(long, value_name = "N", value_parser = units::count::<u64>(0..=i64::MAX as u64))]
        cost: Option<u64>,
        /// Exit with 3 when the hit would be denied
        #[arg(long)]
        exit_code: bool,
    },
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
    /// Reserve credits for an operation whose cost is known later, or take a lease
    ///
    /// The answer is `OK`, whether the credits are reserved, the credits left, the seconds until there are more, and the
    /// reservation's id, as in `OK true 400 60 AjwA…`. A denial has no id. The id is what `divvy commit`, `divvy renew` and `divvy
    /// release` take.
    #[command(after_help = "Example:\n  divvy reserve --amount 500 --ttl 30 api=chat user=ann")]
    Reserve {
        #[command(flatten)]
        operation: PairArgs,
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
    },
    /// Count the used credits of a reservation, and release the rest
    ///
    /// The answer is `OK`, the balance, the seconds until there are more credits, and `settled`, `late` (the reservation had expired)
    /// or `repeated` (it was committed before), as in `OK 850 60 settled`.
    #[command(after_help = "Example:\n  divvy commit --cost 350 \"$id\"")]
    Commit {
        #[command(flatten)]
        reservation: ReservationArgs,
        /// Credits that were used
        #[arg(long, value_name = "N", value_parser = units::count::<u64>(0..=i64::MAX as u64))]
        cost: u64,
    },
    /// Release a reservation or a lease
    ///
    /// The answer is `OK true`, or `OK false` if nothing was reserved anymore.
    #[command(after_help = "Example:\n  divvy release \"$id\"")]
    Release {
        #[command(flatten)]
        reservation: ReservationArgs,
        /// Exit with 3 if nothing was reserved anymore
        #[arg(long)]
        exit_code: bool,
    },
    /// Extend a reservation or a lease
    ///
    /// The answer is `OK` and the seconds until it expires, or `OK 0` if it does not exist anymore.
    #[command(after_help = "Example:\n  divvy renew --ttl 30 \"$id\"")]
    Renew {
        #[command(flatten)]
        reservation: ReservationArgs,
        /// How long the reservation lasts from now, in seconds or as in 1m. A lease lasts as long as its rule says [default: its
        /// original time]
        #[arg(long, value_name = "SECONDS", value_parser = units::seconds(1..=u64::from(u32::MAX)))]
        ttl: Option<Time>,
        /// Exit with 3 if the reservation does not exist anymore
        #[arg(long)]
        exit_code: bool,
    },
}

/// The server, and the form of the answer.
#[derive(clap::Args)]
pub struct CallArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// Print a JSON object instead of a line
    #[arg(long)]
    json: bool,
}

/// The operation of a hit or a reservation on the command line, and where to send it.
#[derive(clap::Args)]
pub struct PairArgs {
    #[command(flatten)]
    call: CallArgs,
    /// The operation: each argument is one pair, split at its first `=`
    #[arg(value_name = "KEY=VALUE", value_parser = pair)]
    pairs: Vec<Pair>,
}

#[derive(clap::Args)]
pub struct ReservationArgs {
    #[command(flatten)]
    call: CallArgs,
    /// The reservation's id, as `divvy reserve` prints it
    #[arg(value_name = "ID")]
    id: String,
}

#[derive(clap::Args)]
pub struct CorrectionArgs {
    #[command(flatten)]
    operation: PairArgs,
    /// Number of credits, regardless of the rule's costField
    #[arg(long, value_name = "N", value_parser = units::count::<u64>(0..=i64::MAX as u64))]
    cost: Option<u64>,
    /// Idempotency key, 1 to 255 bytes: the same request under it within a minute changes nothing, and has the same
    /// answer
    #[arg(long, value_name = "TEXT")]
    id: Option<String>,
}

impl HitCommand {
    /// Runs the subcommand, whose arguments are `given`.
    ///
    /// # Errors
    /// There is no answer, or it is an error.
    pub fn run(&self, given: &ArgMatches) -> anyhow::Result<ExitCode> {
        let is_typed = |flag| given.value_source(flag) == Some(ValueSource::CommandLine);
        match self {
            // A flag takes precedence over a variable. Of the variables, DIVVY_ADDR takes precedence, because it is older.
            Self::Hit { addr: Some(address), cost, id, exit_code, operation }
                if is_typed("addr") || !is_typed("server") =>
            {
                ensure!(
                    !is_typed("server"),
                    "--server (HTTP) and --addr (the line protocol) exclude each other: give one of them"
                );
                let server = &operation.call.server;
                let has_user = server.user.as_ref().is_some_and(|user| user != DEFAULT_USER);
                ensure!(
                    cost.is_none() && id.is_none() && !has_user,
                    "--cost, --id and --user (or DIVVY_USER) need HTTP, because the line protocol of --addr (or DIVVY_ADDR) does \
                     not support them: use --server"
                );
                let answer = hit_over_line_protocol(server, &operation.pairs, address)?;
                let advice = || "denied; to see by which rule, use --server instead of --addr\n".to_owned();
                operation.call.print(&answer, VERDICT, *exit_code, advice)
            }
            Self::Hit { cost, id, exit_code, operation, .. } => {
                let request = operation.request("/v1/hit", *cost)?.with_key(id.as_deref())?;
                operation.run(request, VERDICT, *exit_code)
            }
            Self::Peek { cost, exit_code, operation } => {
                operation.run(operation.request("/v1/peek", *cost)?, VERDICT, *exit_code)
            }
            Self::Charge(args) => args.run("/v1/charge"),
            Self::Refund(args) => args.run("/v1/refund"),
            Self::Reserve { amount, ttl, id, exit_code, operation } => {
                let request = operation.request("/v1/reservations", None)?.with("amount", *amount);
                let request = request.with("ttl", ttl.map(Time::whole_seconds)).with("id", id.as_deref());
                operation.run(request, &[VERDICT, &["id"]].concat(), *exit_code)
            }
            Self::Commit { cost, reservation } => {
                let request = reservation.request(Method::POST, "/commit").with("cost", *cost);
                reservation.call.run(request, &[BALANCE, &["status"]].concat(), false, &[])
            }
            Self::Renew { ttl, exit_code, reservation } => {
                let request = reservation.request(Method::POST, "/renew").with_body();
                let request = request.with("ttl", ttl.map(Time::whole_seconds));
                reservation.call.run(request, &["expiresIn"], *exit_code, &[])
            }
            Self::Release { exit_code, reservation } => {
                reservation.call.run(reservation.request(Method::DELETE, ""), &["released"], *exit_code, &[])
            }
        }
    }
}

impl CorrectionArgs {
    fn run(&self, path: &str) -> anyhow::Result<ExitCode> {
        let request = self.operation.request(path, self.cost)?.with_key(self.id.as_deref())?;
        self.operation.run(request, BALANCE, false)
    }
}

impl PairArgs {
    fn request(&self, path: &str, cost: Option<u64>) -> anyhow::Result<Request> {
        let request = Request::new(Method::POST, path).with("operation", operation_of(&self.pairs)?);
        Ok(request.with("cost", cost))
    }

    fn run(&self, request: Request, shown: &[&str], reports_refusal: bool) -> anyhow::Result<ExitCode> {
        self.call.run(request, shown, reports_refusal, &self.pairs)
    }
}

impl ReservationArgs {
    fn request(&self, method: Method, action: &str) -> Request {
        let id = utf8_percent_encode(&self.id, NON_ALPHANUMERIC);
        Request::new(method, format!("/v1/reservations/{id}{action}"))
    }
}

impl CallArgs {
    /// Sends the request, and prints these members of the answer. If `reports_refusal` is set, a refusal has its own exit code.
    ///
    /// # Errors
    /// There is no answer, or it is an error.
    fn run(&self, request: Request, shown: &[&str], reports_refusal: bool, pairs: &[Pair]) -> anyhow::Result<ExitCode> {
        let is_gone = |error: &anyhow::Error| {
            error.downcast_ref::<Refusal>().is_some_and(|refused| refused.status == StatusCode::NOT_FOUND)
        };
        let answer = match self.server.connect(TIMEOUT)?.ask(request) {
            Err(error) if shown == ["expiresIn"] && is_gone(&error) => json!({ "expiresIn": 0 }),
            answered => answered?,
        };
        self.print(&answer, shown, reports_refusal, || describe_denial(&answer, pairs))
    }

    /// Prints the answer. Describes a denial if a person reads standard error on a terminal. Returns 0, or with
    /// `reports_refusal` 3 for a denial, and for a reservation that did not exist anymore.
    fn print(
        &self,
        answer: &Value,
        shown: &[&str],
        reports_refusal: bool,
        describe_denial: impl FnOnce() -> String,
    ) -> anyhow::Result<ExitCode> {
        let mut out = io::stdout().lock();
        if self.json {
            writeln!(out, "{answer}")?;
        } else {
            let shown = shown.iter().filter_map(|name| answer.get(name)).filter(|value| !value.is_null());
            let words = shown.map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned));
            writeln!(out, "{}", ["OK".to_owned()].into_iter().chain(words).collect::<Vec<_>>().join(" "))?;
        }
        out.flush()?;
        let is_denial = answer.get("allowed") == Some(&Value::Bool(false));
        if is_denial && !self.json && io::stderr().is_terminal() {
            // The answer is already printed, so a failure here must not fail the command.
            let _ = io::stderr().write_all(printable(&describe_denial()).as_bytes());
        }
        let is_gone = match shown {
            [name] => answer.get(name).is_some_and(|value| *value == false || *value == 0),
            _ => false,
        };
        Ok(if reports_refusal && (is_gone || is_denial) { ExitCode::from(REFUSED) } else { ExitCode::SUCCESS })
    }
}

fn describe_denial(answer: &Value, pairs: &[Pair]) -> String {
    let word = |name: &str| answer.get(name).and_then(Value::as_str);
    let all = answer.get("violatedPolicies").and_then(Value::as_array);
    let all: Vec<_> = all.map(|names| names.iter().filter_map(Value::as_str).collect()).unwrap_or_default();
    let rule = word("rule").unwrap_or_default();
    if let Some(block) = answer.get("blocked") {
        let seconds = answer.get("retryAfter").and_then(Value::as_u64);
        let lasts = seconds.map(|seconds| format!(" for another {seconds} s")).unwrap_or_default();
        let reason = block.get("reason").and_then(Value::as_str).map(|reason| format!(": {reason}"));
        return format!("denied by {rule}: this actor is blocked{lasts}{}\n", reason.unwrap_or_default());
    }
    if rule == DEFAULT_RULE && all.len() < 2 {
        let operation: Vec<_> = pairs.iter().map(|(field, value)| quote(&format!("{field}={value}"))).collect();
        return format!(
            "denied by {rule}: no other rule answers this operation; to see why, run: divvy explain {}\n",
            operation.join(" ")
        );
    }
    if all.is_empty() { format!("denied by {rule}\n") } else { format!("denied by {}\n", all.join(" and ")) }
}

/// Sends a hit over the line protocol, preceded by the password if there is one.
///
/// # Errors
/// The server cannot be reached, answers with an error, or does not speak the protocol.
fn hit_over_line_protocol(server: &ServerArgs, pairs: &[Pair], address: &str) -> anyhow::Result<Value> {
    let request = format_hit(pairs.iter().map(|(field, value)| (field.as_str(), value.as_str())))?;
    let unreachable =
        || format!("cannot reach {address}; is `divvy serve` running there? --addr names another address");
    let password = server.password(None)?;
    let (runtime, stream) = server.open(address, false, TIMEOUT, unreachable)?;
    let mut stream = BufReader::new(stream);
    let mut ask = |request: &str| -> anyhow::Result<String> {
        let mut line = Vec::new();
        let asking = async {
            stream.write_all(request.as_bytes()).await?;
            stream.flush().await?;
            stream.read_until(b'\n', &mut line).await
        };
        let answered = runtime.block_on(async { timeout(TIMEOUT, asking).await });
        answered.map_err(|_| explain_silence(address, TIMEOUT))?.map_err(|error| {
            let hint = tls_hint(&error);
            anyhow::Error::new(error).context(format!("{address} did not answer{hint}"))
        })?;
        if !line.ends_with(b"\n") {
            bail!(
                "{address} closed the connection without an answer: if it uses TLS there, add --tls or --tls-ca FILE"
            );
        }
        let line = String::from_utf8_lossy(&line).trim_end().to_owned();
        // RESP also reads requests of one line. Its replies begin with a mark.
        ensure!(
            !line.starts_with(['+', '-']),
            "{address} answered over RESP: use the line protocol's port (8321 by default), or --server with the port of HTTP \
             (8322)"
        );
        Ok(line)
    };
    if let Some(password) = password {
        let answer = ask(&format_auth(&password))?;
        ensure!(is_welcome(&answer), "{address} refused the password: {answer}");
    }
    match parse_reply(&ask(&request)?).with_context(|| format!("{address} does not speak divvy's line protocol"))? {
        Reply::Error { code, .. } if code == ErrorKind::Unauthenticated.name() => {
            bail!("{address} requires a password: set DIVVY_PASSWORD, or give --password")
        }
        Reply::Error { code, reason } => bail!("{address} answered with an error: {code}: {reason}"),
        Reply::Verdict { allowed, credit, reset_seconds } => {
            Ok(json!({ "allowed": allowed, "remaining": credit, "reset": reset_seconds }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denial_names_the_rules_and_the_block() {
        let pairs = ["api=serch", "user=a b", "q=it's"].map(|text| pair(text).unwrap());
        for (answer, expected) in [
            (json!({ "rule": "search" }), "denied by search\n"),
            (json!({ "rule": "burst", "violatedPolicies": ["burst"] }), "denied by burst\n"),
            (json!({ "rule": "burst", "violatedPolicies": ["burst", "default"] }), "denied by burst and default\n"),
            (json!({ "rule": "day", "blocked": { "reason": null } }), "denied by day: this actor is blocked\n"),
            (
                json!({ "rule": "day", "retryAfter": 60, "blocked": { "reason": "scraping" } }),
                "denied by day: this actor is blocked for another 60 s: scraping\n",
            ),
            (
                json!({ "rule": "default" }),
                "denied by default: no other rule answers this operation; to see why, run: divvy explain api=serch 'user=a b' \
                 'q=it'\\''s'\n",
            ),
        ] {
            assert_eq!(describe_denial(&answer, &pairs), expected);
        }
    }
}
