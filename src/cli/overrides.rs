//! `divvy block` and `divvy allow`: manage blocks and allows of single actors on a running server.

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;

use super::resp::{RespClient, ServerArgs, number, parts, text};
use crate::limiter::exceptions::MAX_LASTS_SECONDS;
use crate::limiter::{ALL_RULES, OverrideKind};
use crate::protocol::command::START;
use crate::protocol::resp::client::Frame;
use crate::units::{self, Time};

/// Maximum time for an answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// Number of entries in a page.
const COUNT: &str = "1000";

#[derive(Debug, clap::Args)]
pub struct OverrideArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Set it for one actor, in place of an earlier one
    Set(SetArgs),
    /// Print it for one actor: how long it lasts, and the reason. Exits with 1 if it does not exist
    Get(ActorArgs),
    /// Remove it from one actor. Exits with 1 if it did not exist
    Delete(ActorArgs),
    /// List all of them, in no particular order
    List(ListArgs),
}

#[derive(Debug, clap::Args)]
struct SetArgs {
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
    /// Label of the rule, `default`, or `*` for all rules
    #[arg(value_name = "LABEL")]
    rule: String,
    /// The actor, as in the list
    actor: String,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, clap::Args)]
struct ListArgs {
    /// Only those of this rule: its label, `default`, or `*` for those of all rules
    #[arg(long, value_name = "LABEL")]
    rule: Option<String>,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

pub fn run(kind: OverrideKind, args: OverrideArgs) -> anyhow::Result<ExitCode> {
    match args.action {
        Action::Set(args) => set(kind, &args),
        Action::Get(args) => get(kind, &args),
        Action::Delete(args) => delete(kind, &args),
        Action::List(args) => list(kind, &args),
    }
}

fn command(kind: OverrideKind) -> &'static str {
    match kind {
        OverrideKind::Block => "DIVVY.BLOCK",
        OverrideKind::Allow => "DIVVY.ALLOW",
    }
}

fn set(kind: OverrideKind, args: &SetArgs) -> anyhow::Result<ExitCode> {
    let mut request = [command(kind), "SET", &args.rule, &args.actor].map(str::to_owned).to_vec();
    if let Some(lasts) = args.expires {
        request.extend(["EX".to_owned(), lasts.whole_seconds().to_string()]);
    }
    if let Some(reason) = &args.reason {
        request.extend(["REASON".to_owned(), reason.clone()]);
    }
    args.server.connect(PATIENCE)?.ask(&request)?;
    Ok(ExitCode::SUCCESS)
}

fn get(kind: OverrideKind, args: &ActorArgs) -> anyhow::Result<ExitCode> {
    let reply = ask(kind, args, "GET")?;
    let Some([ends, reason]) = parts(&reply) else { return Ok(report_missing(kind, args)?) };
    let mut line = match number(ends) {
        Some(seconds) => format!("for another {seconds} s"),
        None => "until it is deleted".to_owned(),
    };
    if let Some(reason) = text(reason) {
        line = format!("{line}: {}", reason.escape_debug());
    }
    writeln!(io::stdout(), "{line}")?;
    Ok(ExitCode::SUCCESS)
}

fn delete(kind: OverrideKind, args: &ActorArgs) -> anyhow::Result<ExitCode> {
    match number(&ask(kind, args, "DEL")?) {
        Some(0) => Ok(report_missing(kind, args)?),
        _ => Ok(ExitCode::SUCCESS),
    }
}

fn ask(kind: OverrideKind, args: &ActorArgs, action: &str) -> anyhow::Result<Frame> {
    args.server.connect(PATIENCE)?.ask(&[command(kind), action, &args.rule, &args.actor])
}

fn report_missing(kind: OverrideKind, args: &ActorArgs) -> io::Result<ExitCode> {
    let ActorArgs { rule, actor, .. } = args;
    writeln!(
        io::stderr(),
        "there is no {kind} of {} for {}; `divvy {kind} list` prints them all",
        actor.escape_debug(),
        if rule == ALL_RULES { "all rules".to_owned() } else { format!("the rule {}", rule.escape_debug()) }
    )?;
    Ok(ExitCode::FAILURE)
}

fn list(kind: OverrideKind, args: &ListArgs) -> anyhow::Result<ExitCode> {
    let mut client = args.server.connect(PATIENCE)?;
    let mut out = BufWriter::new(io::stdout().lock());
    match print_all(kind, args, &mut client, &mut out).and_then(|()| Ok(out.flush()?)) {
        // The reader has closed the pipe.
        Err(error) if error.downcast_ref().is_some_and(|e: &io::Error| e.kind() == io::ErrorKind::BrokenPipe) => {
            Ok(ExitCode::SUCCESS)
        }
        result => result.map(|()| ExitCode::SUCCESS),
    }
}

fn print_all(kind: OverrideKind, args: &ListArgs, client: &mut RespClient, out: &mut impl Write) -> anyhow::Result<()> {
    let foreign = "the server's answer is not a page of this list";
    let mut has_header = args.json;
    let mut cursor = START.to_owned();
    loop {
        let mut request = [command(kind), "LIST", "CURSOR", &cursor, "COUNT", COUNT].map(str::to_owned).to_vec();
        if let Some(rule) = &args.rule {
            request.extend(["RULE".to_owned(), rule.clone()]);
        }
        let reply = client.ask(&request)?;
        let Some([next, page]) = parts(&reply) else { anyhow::bail!(foreign) };
        for entry in parts(page).context(foreign)? {
            let entry = Listed::read(entry).context(foreign)?;
            if !std::mem::replace(&mut has_header, true) {
                writeln!(out, "{:>12}  {:<24} {:<32} reason", "ends in", "rule", "actor")?;
            }
            if args.json { entry.print_json(out)? } else { entry.print(out)? }
        }
        cursor = text(next).context(foreign)?;
        if cursor == START {
            return Ok(());
        }
    }
}

struct Listed {
    rule: String,
    actor: String,
    /// Seconds until it ends.
    expires_in: Option<u64>,
    reason: Option<String>,
    is_orphan: bool,
}

impl Listed {
    fn read(entry: &Frame) -> Option<Self> {
        let [rule, actor, ends, reason, orphan] = parts(entry)? else { return None };
        Some(Self {
            rule: text(rule)?,
            actor: text(actor)?,
            expires_in: number(ends),
            reason: text(reason),
            is_orphan: number(orphan)? == 1,
        })
    }

    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let ends = self.expires_in.map_or("never".to_owned(), |seconds| format!("{seconds} s"));
        let rule = if self.is_orphan { format!("{} (orphan)", self.rule) } else { self.rule.clone() };
        let (actor, reason) = (self.actor.escape_debug().to_string(), self.reason.as_deref().unwrap_or_default());
        writeln!(out, "{}", format!("{ends:>12}  {rule:<24} {actor:<32} {}", reason.escape_debug()).trim_end())
    }

    fn print_json(&self, out: &mut impl Write) -> io::Result<()> {
        let Self { rule, actor, expires_in, reason, is_orphan } = self;
        let entry = serde_json::json!({
            "rule": rule, "actor": actor, "reason": reason, "expiresIn": expires_in, "orphan": is_orphan
        });
        writeln!(out, "{entry}")
    }
}
