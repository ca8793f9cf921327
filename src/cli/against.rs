//! `divvy check --against`: what a change of the rules does to the counters.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, bail};
use hyper::Method;
use serde_json::{Value, json};

use super::rules_file;
use super::server::{Request, ServerArgs};
use super::text::printable;
use divvy_core::config::{self, Format};
use divvy_core::rules::diff::{
    Change, CounterChange, SettingChange, diff, find_abandoned, find_origins, would_keep_if_named,
};
use divvy_core::rules::{Overrun, Rule, RuleSet};
use divvy_limiter::CounterNames;

/// Exit status if counters are abandoned.
const ABANDONED: u8 = 3;
/// Maximum time for a server's answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The rules to compare with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Other {
    /// The rules in a file.
    File(PathBuf),
    /// The rules that a running server has in force.
    Server,
}

impl FromStr for Other {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(if text == "server" { Self::Server } else { Self::File(text.into()) })
    }
}

/// Prints what happens to the counters if `rules`, from the file at `path`, replace the other ones.
///
/// # Errors
/// The server does not answer, or standard output cannot be written.
pub fn compare(rules: &RuleSet, path: &Path, other: &Other, server: &ServerArgs) -> anyhow::Result<ExitCode> {
    let before = match other {
        Other::File(file) => match rules_file::load(file)? {
            Some(before) => before,
            None => return Ok(ExitCode::FAILURE),
        },
        Other::Server => rules_of(server, path)?,
    };
    let (old, new) = (before.rules(), rules.rules());
    let place = |rule: &_| CounterNames::Usual.are_apart(rule);
    let abandoned = find_abandoned(old, new, place);
    let is_abandoned = |rule: &Rule| abandoned.iter().any(|index| old.get(*index) == Some(rule));
    let mut changes = diff(old, new, place);
    if *other == Other::Server {
        changes.retain_mut(has_known_change);
    }
    let mut out = io::BufWriter::new(io::stdout().lock());
    for change in &changes {
        let end = match change {
            Change::Removed(rule) if is_abandoned(rule) => "; its counters go",
            Change::Added { counters: CounterChange::None, rule } if rule.identity().is_some() => {
                "; its counters are new"
            }
            Change::Changed { rule, settings, counters: CounterChange::Kept } if depends_on_debt(rule, settings) => {
                ", except in Redis, where they start afresh"
            }
            _ => "",
        };
        writeln!(out, "{}", printable(&format!("{change}{end}")))?;
    }
    let count = |is_one: fn(&Change<'_>) -> bool| changes.iter().filter(|change| is_one(change)).count();
    let added = count(|change| matches!(change, Change::Added { .. }));
    let removed = count(|change| matches!(change, Change::Removed(_)));
    let changed = count(|change| matches!(change, Change::Changed { .. }));
    writeln!(
        out,
        "{}: {} unchanged, {changed} changed, {added} added, {removed} removed; counters of {} abandoned",
        path.display(),
        new.len() - added - changed,
        super::text::count_of(abandoned.len(), "rule", "rules")
    )?;
    for (rule, origin) in new.iter().zip(find_origins(old, new)) {
        let Some(before) = origin.filter(|origin| abandoned.contains(origin)).and_then(|origin| old.get(origin)) else {
            continue;
        };
        let advice = if would_keep_if_named(before, rule) {
            let name = rule.counter_name();
            format!("; `counter = {name}` in the rule keeps what actors used when its limit changes again")
        } else {
            String::new()
        };
        writeln!(
            out,
            "{}",
            printable(&format!("starts afresh: the counters of [{rule}], line {}{advice}", rule.line))
        )?;
    }
    out.flush()?;
    Ok(if abandoned.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(ABANDONED) })
}

/// Returns whether the changed settings give the rule other counters in Redis: see [`CounterNames::InRedis`].
fn depends_on_debt(rule: &Rule, settings: &[SettingChange]) -> bool {
    let with_debt = Rule { overrun: Overrun::Debt, ..rule.clone() };
    settings.iter().any(|setting| setting.name == Rule::OVERRUN) && CounterNames::InRedis.are_apart(&with_debt)
}

/// Leaves out what the server does not say: the comments. Returns whether anything is left.
fn has_known_change(change: &mut Change<'_>) -> bool {
    let Change::Changed { settings, .. } = change else { return true };
    settings.retain(|setting| setting.name != Rule::COMMENT);
    !settings.is_empty()
}

/// Asks the server for its rules. Reads their lists from the directory of the file at `path`: only the names matter here.
fn rules_of(server: &ServerArgs, path: &Path) -> anyhow::Result<RuleSet> {
    let answer = server.connect(PATIENCE)?.ask(Request::new(Method::GET, "/v1/rules"))?;
    let rules = answer.get("rules").and_then(Value::as_array).context("the server's answer is not a list of rules")?;
    let (mut overrides, mut default) = (Vec::new(), Value::Null);
    for rule in rules {
        // A rule has its settings, its name and its hits.
        let mut rule = rule.as_object().cloned().unwrap_or_default();
        rule.retain(|name, _| !["name", "allowed", "denied", Rule::COMMENT].contains(&name.as_str()));
        match rule.get("operation").and_then(Value::as_object) {
            Some(operation) if operation.is_empty() => default = rule.into(),
            _ => overrides.push(rule),
        }
    }
    let file = json!({ "overrides": overrides, "default": default }).to_string();
    match config::parse_as(&file, Format::Json, path) {
        Ok(loaded) => Ok(loaded.rules),
        Err(report) => bail!("the server's rules cannot be read here, perhaps because its version differs: {report}"),
    }
}
