//! `divvy limit`: manages limits of single actors on a running server.

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;

use super::closed_pipe::accept_closed_pipe;
use super::resp::{RespClient, ServerArgs, number, parts, text};
use crate::limiter::exceptions::MAX_LASTS_SECONDS;
use crate::protocol::command::START;
use crate::protocol::resp::client::Frame;
use crate::rules::MAX_CREDIT_LIMIT;
use crate::units::{self, Time};

/// Maximum time for an answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// Number of limits in a page.
const COUNT: &str = "1000";

#[derive(Debug, clap::Args)]
pub struct LimitArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Give one actor its own number of credits, in place of an earlier limit of its own
    Set(SetArgs),
    /// Print an actor's own limit. Exits with 1 if it does not exist
    Get(ActorArgs),
    /// Remove an actor's own limit, so that the rule's applies again. Exits with 1 if it did not exist
    Delete(ActorArgs),
    /// List the limits of actors, in no particular order
    List(ListArgs),
}

#[derive(Debug, clap::Args)]
struct SetArgs {
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
struct ActorArgs {
    /// Label of the rule, or `default`
    #[arg(value_name = "LABEL")]
    rule: String,
    /// The actor, as in `divvy limit list`
    actor: String,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, clap::Args)]
struct ListArgs {
    /// Only the limits of this rule: its label, or `default`
    #[arg(long, value_name = "LABEL")]
    rule: Option<String>,
    /// Print one JSON object per line for each limit
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

pub fn run(args: LimitArgs) -> anyhow::Result<ExitCode> {
    match args.action {
        Action::Set(args) => set(&args),
        Action::Get(args) => get(&args),
        Action::Delete(args) => delete(&args),
        Action::List(args) => list(&args),
    }
}

fn set(args: &SetArgs) -> anyhow::Result<ExitCode> {
    let mut command = ["DIVVY.LIMIT", "SET", &args.rule, &args.actor].map(str::to_owned).to_vec();
    command.push(args.credits.to_string());
    if let Some(lasts) = args.expires {
        command.extend(["EX".to_owned(), lasts.whole_seconds().to_string()]);
    }
    args.server.connect(PATIENCE)?.ask(&command)?;
    Ok(ExitCode::SUCCESS)
}

fn get(args: &ActorArgs) -> anyhow::Result<ExitCode> {
    let reply = ask(args, "GET")?;
    let Some([credits, ends]) = parts(&reply) else { return Ok(report_missing(args)?) };
    let credits = number(credits).context("the server's answer is not a limit")?;
    match number(ends) {
        Some(seconds) => writeln!(io::stdout(), "{credits}, for another {seconds} s")?,
        None => writeln!(io::stdout(), "{credits}")?,
    }
    Ok(ExitCode::SUCCESS)
}

fn delete(args: &ActorArgs) -> anyhow::Result<ExitCode> {
    match number(&ask(args, "DEL")?) {
        Some(0) => Ok(report_missing(args)?),
        _ => Ok(ExitCode::SUCCESS),
    }
}

fn ask(args: &ActorArgs, action: &str) -> anyhow::Result<Frame> {
    args.server.connect(PATIENCE)?.ask(&["DIVVY.LIMIT", action, &args.rule, &args.actor])
}

fn report_missing(args: &ActorArgs) -> io::Result<ExitCode> {
    writeln!(io::stderr(), "{} has no limit of its own", args.actor.escape_debug())?;
    Ok(ExitCode::FAILURE)
}

fn list(args: &ListArgs) -> anyhow::Result<ExitCode> {
    let mut client = args.server.connect(PATIENCE)?;
    let mut out = BufWriter::new(io::stdout().lock());
    let printed = print_all(args, &mut client, &mut out).and_then(|()| Ok(out.flush()?));
    accept_closed_pipe(printed.map(|()| ExitCode::SUCCESS))
}

fn print_all(args: &ListArgs, client: &mut RespClient, out: &mut impl Write) -> anyhow::Result<()> {
    let foreign = "the server's answer is not a page of limits";
    let mut has_header = args.json;
    let mut cursor = START.to_owned();
    loop {
        let mut command = ["DIVVY.LIMIT", "LIST", "CURSOR", &cursor, "COUNT", COUNT].map(str::to_owned).to_vec();
        if let Some(rule) = &args.rule {
            command.extend(["RULE".to_owned(), rule.clone()]);
        }
        let reply = client.ask(&command)?;
        let Some([next, page]) = parts(&reply) else { anyhow::bail!(foreign) };
        for limit in parts(page).context(foreign)? {
            let limit = ActorLimit::read(limit).context(foreign)?;
            if !std::mem::replace(&mut has_header, true) {
                writeln!(out, "{:>16} {:>12}  {:<24} actor", "credits", "ends in", "rule")?;
            }
            if args.json { limit.print_json(out)? } else { limit.print(out)? }
        }
        cursor = text(next).context(foreign)?;
        if cursor == START {
            return Ok(());
        }
    }
}

struct ActorLimit {
    rule: String,
    actor: String,
    credits: u64,
    /// Seconds until the limit expires.
    expires_in: Option<u64>,
    is_orphan: bool,
}

impl ActorLimit {
    fn read(limit: &Frame) -> Option<Self> {
        let [rule, actor, credits, ends, orphan] = parts(limit)? else { return None };
        Some(Self {
            rule: text(rule)?,
            actor: text(actor)?,
            credits: number(credits)?,
            expires_in: number(ends),
            is_orphan: number(orphan)? == 1,
        })
    }

    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let ends = self.expires_in.map_or("never".to_owned(), |seconds| format!("{seconds} s"));
        let rule = if self.is_orphan { format!("{} (orphan)", self.rule) } else { self.rule.clone() };
        writeln!(out, "{:>16} {ends:>12}  {rule:<24} {}", self.credits, self.actor.escape_debug())
    }

    fn print_json(&self, out: &mut impl Write) -> io::Result<()> {
        let Self { rule, actor, credits, expires_in, is_orphan } = self;
        let limit = serde_json::json!({
            "rule": rule, "actor": actor, "credits": credits, "expiresIn": expires_in, "orphan": is_orphan
        });
        writeln!(out, "{limit}")
    }
}
