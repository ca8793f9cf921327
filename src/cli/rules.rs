//! `divvy rules`: lists the rules in force on a running server, with the hits that each has allowed and denied.

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use serde_json::{Map, Value};

use super::closed_pipe::accept_closed_pipe;
use super::resp::{RespClient, ServerArgs, number, parts, text};
use super::text::printable;
use divvy_core::rules::MatchPolicy;
use divvy_server::protocol::resp::client::Frame;

/// Maximum time for the list.
const PATIENCE: Duration = Duration::from_secs(60);

/// List the rules in force on a running server, in order, with the hits that each has allowed and denied
///
/// Hits are those that this server has answered since it started, under the rule's name.
#[derive(Debug, clap::Args)]
pub struct RulesArgs {
    /// Print one JSON object per line for each rule, with its settings
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// A rule in force.
pub struct ListedRule {
    /// Its label, `default`, or its position, as in `rule-2`.
    pub name: String,
    pub is_canary: bool,
    /// `default`, or its pairs.
    operation: String,
    /// `None` if the user may see only one actor.
    hits: Option<(u64, u64)>,
    /// All that the server said about it.
    all: Map<String, Value>,
}

/// Asks for the rules in force.
///
/// # Errors
/// The server answers with an error, or with something else.
pub fn rules(client: &mut RespClient) -> anyhow::Result<Vec<ListedRule>> {
    let reply = client.ask(&["DIVVY.RULES"])?;
    let rules: Option<_> = parts(&reply).and_then(|rules| rules.iter().map(ListedRule::read).collect());
    rules.context("the server's answer is not a list of rules")
}

impl ListedRule {
    fn read(rule: &Frame) -> Option<Self> {
        let value = |frame: &Frame| number(frame).map(Value::from).or_else(|| text(frame).map(Value::from));
        let pairs = parts(rule)?.chunks_exact(2);
        let pairs = pairs.map(|pair| Some((text(pair.first()?)?, value(pair.get(1)?)?)));
        let all: Map<_, _> = pairs.collect::<Option<_>>()?;
        let word = |name: &str| all.get(name)?.as_str().map(str::to_owned);
        let hits = |name: &str| all.get(name)?.as_u64();
        Some(Self {
            name: word("name")?,
            is_canary: word("matchPolicy").as_deref() == Some(MatchPolicy::Canary.as_str()),
            operation: word("rule")?,
            hits: hits("allowed").zip(hits("denied")),
            all,
        })
    }

    fn line(&self) -> String {
        let share = |(allowed, denied)| match u64::saturating_add(allowed, denied) {
            0 => String::new(),
            hits => format!("{:.1} %", denied as f64 * 100.0 / hits as f64),
        };
        let [allowed, denied, share] = match self.hits {
            Some(hits) => [hits.0.to_string(), hits.1.to_string(), share(hits)],
            None => ["-", "-", ""].map(str::to_owned),
        };
        let canary = if self.is_canary { " (canary)" } else { "" };
        let name = printable(&self.name).replace('\n', "\\n");
        let operation = printable(&self.operation).replace('\n', "\\n");
        format!("{allowed:>12} {denied:>12} {share:>8}  {name}{canary}: {operation}")
    }
}

/// Prints a table of the rules.
///
/// # Errors
/// There is no answer, or it is an error.
pub fn run(args: &RulesArgs) -> anyhow::Result<ExitCode> {
    let rules = rules(&mut args.server.connect(PATIENCE)?)?;
    accept_closed_pipe(print(args, &rules).map(|()| ExitCode::SUCCESS).map_err(Into::into))
}

fn print(args: &RulesArgs, rules: &[ListedRule]) -> io::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    if !args.json {
        writeln!(out, "{:>12} {:>12} {:>8}  rule: operation", "allowed", "denied", "denied")?;
    }
    for rule in rules {
        match args.json {
            true => writeln!(out, "{}", Value::from(rule.all.clone()))?,
            false => writeln!(out, "{}", rule.line())?,
        }
    }
    out.flush()
}
