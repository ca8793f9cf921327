//! `divvy limit`, `divvy block` and `divvy allow`: what applies to single actors on a running server.

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use serde_json::json;

use super::closed_pipe::accept_closed_pipe;
use super::resp::{RespClient, ServerArgs, number, parts, text};
use divvy_core::rules::MAX_CREDIT_LIMIT;
use divvy_core::units::{self, Time};
use divvy_limiter::ALL_RULES;
use divvy_limiter::exceptions::{ExceptionKind, MAX_LASTS_SECONDS};
use divvy_server::protocol::command::START;
use divvy_server::protocol::resp::client::Frame;

/// Maximum time for an answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// Number of entries in a page.
const COUNT: &str = "1000";
const FOREIGN: &str = "the server's answer is not a page of this list";

#[derive(Debug, clap::Args)]
pub struct LimitArgs {
    #[command(subcommand)]
    action: LimitAction,
}

#[derive(Debug, clap::Subcommand)]
enum LimitAction {
    /// Give one actor its own number of credits, in place of an earlier limit of its own
    Set(SetLimitArgs),
    /// Print an actor's own limit. Exits with 1 if it does not exist
    Get(ActorArgs),
    /// Remove an actor's own limit, so that the rule's applies again. Exits with 1 if it did not exist
    Delete(ActorArgs),
    /// List the limits of actors, in no particular order
    List(ListArgs),
}

#[derive(Debug, clap::Args)]
pub struct OverrideArgs {
    #[command(subcommand)]
    action: OverrideAction,
}

#[derive(Debug, clap::Subcommand)]
enum OverrideAction {
    /// Set it for one actor, in place of an earlier one
    Set(SetOverrideArgs),
    /// Print it for one actor: how long it lasts, and the reason. Exits with 1 if it does not exist
    Get(ActorArgs),
    /// Remove it from one actor. Exits with 1 if it did not exist
    Delete(ActorArgs),
    /// List all of them, in no particular order
    List(ListArgs),
}

#[derive(Debug, clap::Args)]
struct SetLimitArgs {
    /// Label of the rule, or `default`
    #[arg(value_name = "LABEL")]
    rule: String,
    /// The actor: the value of the rule's actorField, or `user=a path=/b` if it names several fields
    actor: String,
    /// Credits in place of the rule's creditLimit. 0 denies everything
    #[arg(value_parser = units::count::<u64>(0..=MAX_CREDIT_LIMIT))]
    credits: u64,
    /// How long the limit lasts, in seconds or as in 7d [default: until it is deleted]
    #[arg(long, value_name = "SECONDS", value_parser = units::seconds(1..=MAX_LASTS_SECONDS))]
    expires: Option<Time>,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, clap::Args)]
struct SetOverrideArgs {
    /// Label of the rule, `default`, or `*` for all rules
    #[arg(value_name = "LABEL")]
    rule: String,
    /// The actor: with a rule, its value alone, as in 203.0.113.7; with `*`, field=value or field=network, as in ip=10.0.0.0/8
    actor: String,
    /// How long it lasts, in seconds or as in 7d [default: until it is deleted]
    #[arg(long, value_name = "SECONDS", value_parser = units::seconds(1..=MAX_LASTS_SECONDS))]
    expires: Option<Time>,
    /// Why, for people. Clients see the reason of a block over HTTP
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, clap::Args)]
struct ActorArgs {
    /// Label of the rule, `default`, or for blocks and allows `*`, which stands for all rules
    #[arg(value_name = "LABEL")]
    rule: String,
    /// The actor, as in the list
    actor: String,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, clap::Args)]
struct ListArgs {
    /// Only those of this rule: its label, `default`, or for blocks and allows `*`, which stands for those of all rules
    #[arg(long, value_name = "LABEL")]
    rule: Option<String>,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// Runs `divvy limit`.
///
/// # Errors
/// There is no answer, or it is an error.
pub fn limit(args: LimitArgs) -> anyhow::Result<ExitCode> {
    let kind = ExceptionKind::Limit;
    match args.action {
        LimitAction::Set(SetLimitArgs { rule, actor, credits, expires, server }) => {
            set(kind, &server, vec![rule, actor, credits.to_string()], expires, None)
        }
        LimitAction::Get(args) => get(kind, &args),
        LimitAction::Delete(args) => delete(kind, &args),
        LimitAction::List(args) => list(kind, &args),
    }
}

/// Runs `divvy block` or `divvy allow`.
///
/// # Errors
/// There is no answer, or it is an error.
pub fn overrides(kind: ExceptionKind, args: OverrideArgs) -> anyhow::Result<ExitCode> {
    match args.action {
        OverrideAction::Set(SetOverrideArgs { rule, actor, expires, reason, server }) => {
            set(kind, &server, vec![rule, actor], expires, reason)
        }
        OverrideAction::Get(args) => get(kind, &args),
        OverrideAction::Delete(args) => delete(kind, &args),
        OverrideAction::List(args) => list(kind, &args),
    }
}

fn command(kind: ExceptionKind, action: &str) -> Vec<String> {
    vec![format!("DIVVY.{}", kind.name().to_uppercase()), action.to_owned()]
}

fn set(
    kind: ExceptionKind,
    server: &ServerArgs,
    words: Vec<String>,
    expires: Option<Time>,
    reason: Option<String>,
) -> anyhow::Result<ExitCode> {
    let mut request = command(kind, "SET");
    request.extend(words);
    if let Some(lasts) = expires {
        request.extend(["EX".to_owned(), lasts.whole_seconds().to_string()]);
    }
    if let Some(reason) = reason {
        request.extend(["REASON".to_owned(), reason]);
    }
    server.connect(PATIENCE)?.ask(&request)?;
    Ok(ExitCode::SUCCESS)
}

fn get(kind: ExceptionKind, args: &ActorArgs) -> anyhow::Result<ExitCode> {
    let reply = ask(kind, args, "GET")?;
    let Some([first, second]) = parts(&reply) else { return Ok(report_missing(kind, args)?) };
    let line = match kind {
        ExceptionKind::Limit => {
            let credits = number(first).context("the server's answer is not a limit")?;
            number(second).map_or(credits.to_string(), |seconds| format!("{credits}, for another {seconds} s"))
        }
        ExceptionKind::Block | ExceptionKind::Allow => {
            let lasts =
                number(first).map_or("until it is deleted".to_owned(), |seconds| format!("for another {seconds} s"));
            text(second).map_or(lasts.clone(), |reason| format!("{lasts}: {}", reason.escape_debug()))
        }
    };
    writeln!(io::stdout(), "{line}")?;
    Ok(ExitCode::SUCCESS)
}

fn delete(kind: ExceptionKind, args: &ActorArgs) -> anyhow::Result<ExitCode> {
    match number(&ask(kind, args, "DEL")?) {
        Some(0) => Ok(report_missing(kind, args)?),
        _ => Ok(ExitCode::SUCCESS),
    }
}

fn ask(kind: ExceptionKind, args: &ActorArgs, action: &str) -> anyhow::Result<Frame> {
    let mut request = command(kind, action);
    request.extend([args.rule.clone(), args.actor.clone()]);
    args.server.connect(PATIENCE)?.ask(&request)
}

fn report_missing(kind: ExceptionKind, ActorArgs { rule, actor, .. }: &ActorArgs) -> io::Result<ExitCode> {
    let actor = actor.escape_debug();
    let mut err = io::stderr().lock();
    match (kind, &**rule) {
        (ExceptionKind::Limit, _) => writeln!(err, "{actor} has no limit of its own")?,
        (_, ALL_RULES) => {
            writeln!(err, "there is no {kind} of {actor} for all rules; `divvy {kind} list` prints them all")?;
        }
        (_, rule) => writeln!(
            err,
            "there is no {kind} of {actor} for the rule {}; `divvy {kind} list` prints them all",
            rule.escape_debug()
        )?,
    }
    Ok(ExitCode::FAILURE)
}

fn list(kind: ExceptionKind, args: &ListArgs) -> anyhow::Result<ExitCode> {
    let mut client = args.server.connect(PATIENCE)?;
    let mut out = BufWriter::new(io::stdout().lock());
    let printed = print_all(kind, args, &mut client, &mut out).and_then(|()| Ok(out.flush()?));
    accept_closed_pipe(printed.map(|()| ExitCode::SUCCESS))
}

fn print_all(
    kind: ExceptionKind,
    args: &ListArgs,
    client: &mut RespClient,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let mut has_header = args.json;
    let mut cursor = START.to_owned();
    loop {
        let mut request = command(kind, "LIST");
        request.extend(["CURSOR", &cursor, "COUNT", COUNT].map(str::to_owned));
        if let Some(rule) = &args.rule {
            request.extend(["RULE".to_owned(), rule.clone()]);
        }
        let reply = client.ask(&request)?;
        let Some([next, page]) = parts(&reply) else { anyhow::bail!(FOREIGN) };
        for entry in parts(page).context(FOREIGN)? {
            let entry = Listed::read(kind, entry).context(FOREIGN)?;
            if !std::mem::replace(&mut has_header, true) {
                writeln!(out, "{}", Listed::header(kind))?;
            }
            writeln!(out, "{}", if args.json { entry.to_json() } else { entry.line() })?;
        }
        cursor = text(next).context(FOREIGN)?;
        if cursor == START {
            return Ok(());
        }
    }
}

/// An entry of a list.
struct Listed {
    rule: String,
    actor: String,
    /// Seconds until it ends.
    expires_in: Option<u64>,
    term: Term,
    is_orphan: bool,
}

/// What applies to the actor.
enum Term {
    Credits(u64),
    Reason(Option<String>),
}

impl Listed {
    fn read(kind: ExceptionKind, entry: &Frame) -> Option<Self> {
        let [rule, actor, third, fourth, orphan] = parts(entry)? else { return None };
        let (expires_in, term) = match kind {
            ExceptionKind::Limit => (number(fourth), Term::Credits(number(third)?)),
            ExceptionKind::Block | ExceptionKind::Allow => (number(third), Term::Reason(text(fourth))),
        };
        Some(Self { rule: text(rule)?, actor: text(actor)?, expires_in, term, is_orphan: number(orphan)? == 1 })
    }

    fn header(kind: ExceptionKind) -> String {
        match kind {
            ExceptionKind::Limit => format!("{:>16} {:>12}  {:<24} actor", "credits", "ends in", "rule"),
            _ => format!("{:>12}  {:<24} {:<32} reason", "ends in", "rule", "actor"),
        }
    }

    fn line(&self) -> String {
        let ends = self.expires_in.map_or("never".to_owned(), |seconds| format!("{seconds} s"));
        let rule = if self.is_orphan { format!("{} (orphan)", self.rule) } else { self.rule.clone() };
        let actor = self.actor.escape_debug().to_string();
        match &self.term {
            Term::Credits(credits) => format!("{credits:>16} {ends:>12}  {rule:<24} {actor}"),
            Term::Reason(reason) => {
                let reason = reason.as_deref().unwrap_or_default().escape_debug();
                format!("{ends:>12}  {rule:<24} {actor:<32} {reason}").trim_end().to_owned()
            }
        }
    }

    fn to_json(&self) -> String {
        let Self { rule, actor, expires_in, term, is_orphan } = self;
        let (name, term) = match term {
            Term::Credits(credits) => ("credits", json!(credits)),
            Term::Reason(reason) => ("reason", json!(reason)),
        };
        json!({ "rule": rule, "actor": actor, name: term, "expiresIn": expires_in, "orphan": is_orphan }).to_string()
    }
}
