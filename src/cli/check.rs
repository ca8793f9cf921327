//! Subcommands that read a rules file without serving it: `divvy check`, with or without a comparison, and the explanations of `divvy
//! explain`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use hyper::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use super::client::{Request, ServerArgs};
use super::terminal::{count_of, printable};
use super::values::{Choices, Pair, choice};
use divvy_core::config::ratelimit::compile::compile_alone;
use divvy_core::config::ratelimit::files;
use divvy_core::config::ratelimit::options::Options;
use divvy_core::config::{self, Format, Problem, Report, Serving};
use divvy_core::rules::diff::{Change, CounterChange, diff, find_abandoned, find_origins, would_keep_if_named};
use divvy_core::rules::explain::{ActorExceptions, Explanation, explain};
use divvy_core::rules::setting_name::COMMENT;
use divvy_core::rules::{MatchPolicy, Operation, Rule, RuleSet, stacks};
use divvy_core::suggestion::list;
use divvy_limiter::CounterNames;
use divvy_server::http::CheckOperation;

/// Loads the rules of the file at `path` for a server like `serving`, or ratelimit's configuration from YAML or a directory; `None` if it has errors. Prints its errors and warnings. With
/// `compares`, also prints where Button's Divvy 1.7.1 reads the file differently.
///
/// # Errors
/// Standard error cannot be written.
pub fn load_rules(path: &Path, serving: &Serving, compares: bool) -> io::Result<Option<RuleSet>> {
    if path.is_dir() || config::is_yaml(path) {
        let loaded = report_problems(files::load(path, false), |loaded| &loaded.warnings)?;
        let Some(rules) = loaded.map(|loaded| compile_alone(&loaded.domains, &Options::default())) else {
            return Ok(None);
        };
        return report_problems(rules.map_err(|error| Report::of(&path.display(), &error)), |_| &[]);
    }
    let loaded = report_problems(config::load_for(path, serving), |loaded| &loaded.warnings)?;
    if let Some(loaded) = loaded.as_ref().filter(|_| compares) {
        print_problems(&loaded.differences, "warning")?;
    }
    Ok(loaded.map(|loaded| loaded.rules))
}

/// Prints the warnings about a file that was loaded, or the problems of one that was not. Returns its content.
///
/// # Errors
/// Standard error cannot be written.
pub fn report_problems<T>(loaded: Result<T, Report>, warnings: impl FnOnce(&T) -> &[Problem]) -> io::Result<Option<T>> {
    let warnings = match &loaded {
        Ok(loaded) => warnings(loaded),
        Err(report) => {
            print_problems(&report.errors, "error")?;
            &report.warnings
        }
    };
    print_problems(warnings, "warning")?;
    Ok(loaded.ok())
}

/// Prints a line for each of `problems` on standard error.
///
/// # Errors
/// Standard error cannot be written.
pub fn print_problems(problems: &[Problem], severity: &str) -> io::Result<()> {
    let mut err = io::BufWriter::new(io::stderr().lock());
    for problem in problems {
        writeln!(err, "{severity}: {}", printable(&problem.to_string()))?;
    }
    err.flush()
}

/// Validate a rules file: print a summary of its rules, or every problem in it.
#[derive(clap::Args)]
pub struct CheckArgs {
    /// Rules file (.ini or .json), or ratelimit's configuration (.yaml or a directory)
    config: PathBuf,
    /// Also report rules that a server cannot take from together when its counters are in a Redis Cluster
    #[arg(long)]
    redis_cluster: bool,
    /// Also report where another program reads the file differently
    #[arg(long, value_name = "PROGRAM", value_parser = choice(PROGRAMS))]
    compat: Option<()>,
    /// Say what happens to the counters under other rules: a rules file, or `server` for a running server. Exits with 3
    /// if actors of a rule start afresh
    #[arg(long, value_name = "FILE|server")]
    against: Option<PathBuf>,
    #[command(flatten)]
    server: ServerArgs,
}

/// Programs that read the same rules files.
const PROGRAMS: Choices<()> = &[("button-divvy", "Button's Divvy 1.7.1", ())];

/// Runs the subcommand.
///
/// # Errors
/// Standard output cannot be written.
pub fn check(args: CheckArgs) -> anyhow::Result<ExitCode> {
    let serving = Serving { redis_cluster: args.redis_cluster, spellings: CheckOperation::default().spellings() };
    let Some(rules) = load_rules(&args.config, &serving, args.compat.is_some())? else { return Ok(ExitCode::FAILURE) };
    if let Some(other) = &args.against {
        return compare(&rules, &args.config, other, &args.server);
    }
    let mut out = io::BufWriter::new(io::stdout().lock());
    let canaries = rules.rules().iter().filter(|rule| rule.match_policy == MatchPolicy::Canary).count();
    let rule_count = count_of(rules.rules().len(), "rule", "rules");
    let canary_count =
        if canaries == 0 { String::new() } else { format!(" ({})", count_of(canaries, "canary", "canaries")) };
    writeln!(out, "{}: {rule_count}{canary_count}, no errors", args.config.display())?;
    for (index, rule) in rules.rules().iter().enumerate() {
        writeln!(out, "{}", printable(&summary(index, rule)))?;
    }
    for stack in stacks::find_stacks(&rules) {
        let members: Vec<_> = stack.iter().filter_map(|index| rules.rules().get(*index)).collect();
        let lines: Vec<_> = members.iter().map(|rule| rule.line.to_string()).collect();
        let text = format!("lines {} together: {}", list(&lines, "and"), stacks::describe_stack(&members));
        writeln!(out, "{}", printable(&text))?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn summary(index: usize, rule: &Rule) -> String {
    let header = rule.to_string();
    // Ratelimit's configuration may be in several files.
    let place = rule.comment.as_ref().filter(|_| rule.descriptor.is_some());
    let place = place.map_or_else(|| format!("line {}", rule.line), Clone::clone);
    let mut text = format!("{place}: [{header}] {}", rule.full_summary());
    let name = rule.name(index);
    if name != header {
        text.push_str(&format!(" ({name})"));
    }
    text
}

/// Exit status if counters are abandoned.
const ABANDONED: u8 = 3;
/// Maximum time for a server's answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Name of the rules that a running server has in force.
const SERVER: &str = "server";

/// Prints what happens to the counters if `rules`, from the file at `path`, replace the other ones.
///
/// # Errors
/// The server does not answer, or standard output cannot be written.
fn compare(rules: &RuleSet, path: &Path, other: &Path, server: &ServerArgs) -> anyhow::Result<ExitCode> {
    let is_server = other == Path::new(SERVER);
    let before = if is_server { Some(rules_of(server, path)?) } else { load_rules(other, &Serving::default(), false)? };
    let Some(before) = before else { return Ok(ExitCode::FAILURE) };
    let (old, new) = (before.rules(), rules.rules());
    let place = |rule: &_| CounterNames::Usual.are_apart(rule);
    let abandoned = find_abandoned(old, new, place);
    let is_abandoned = |rule: &Rule| abandoned.iter().any(|index| old.get(*index) == Some(rule));
    let mut changes = diff(old, new, place);
    if is_server {
        changes.retain_mut(has_known_change);
    }
    let mut out = io::BufWriter::new(io::stdout().lock());
    for change in &changes {
        let end = match change {
            Change::Removed(rule) if is_abandoned(rule) => "; its counters go",
            Change::Added { counters: CounterChange::None, rule } if rule.identity().is_some() => {
                "; its counters are new"
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
        count_of(abandoned.len(), "rule", "rules")
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
        let text = format!("starts afresh: the counters of [{rule}], line {}{advice}", rule.line);
        writeln!(out, "{}", printable(&text))?;
    }
    out.flush()?;
    Ok(if abandoned.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(ABANDONED) })
}

/// Leaves out what the server does not say: the comments. Returns whether anything is left.
fn has_known_change(change: &mut Change<'_>) -> bool {
    let Change::Changed { settings, .. } = change else { return true };
    settings.retain(|setting| setting.name != COMMENT);
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
        // Ratelimit's limits are no part of the rules file.
        if rule.contains_key("descriptor") {
            continue;
        }
        rule.retain(|name, _| !["name", "allowed", "denied", COMMENT].contains(&name.as_str()));
        match rule.get("operation").and_then(Value::as_object) {
            Some(operation) if operation.is_empty() => default = rule.into(),
            _ => overrides.push(rule),
        }
    }
    let file = json!({ "overrides": overrides, "default": default }).to_string();
    match config::parse(&file, Format::Json, path) {
        Ok(loaded) => Ok(loaded.rules),
        Err(report) => bail!("the server's rules cannot be read here, perhaps because its version differs: {report}"),
    }
}

/// Prints how the rules in a file answer the operation.
///
/// # Errors
/// A field is given twice, or standard output cannot be written.
pub fn explain_file(file: &Path, pairs: &[Pair]) -> anyhow::Result<ExitCode> {
    let mut operation = Operation::new();
    for (field, value) in pairs {
        ensure!(operation.set(field, value), "the field '{field}' is given twice");
    }
    let serving = Serving { spellings: CheckOperation::default().spellings(), ..Serving::default() };
    let Some(rules) = load_rules(file, &serving, false)? else { return Ok(ExitCode::FAILURE) };
    let explanation = explain(&rules, &operation, |_, _| ActorExceptions::default());
    let mut out = io::stdout().lock();
    write!(out, "{}", printable(&explanation.to_string()))?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the text of a server's explanation: a line for each rule.
///
/// # Errors
/// It is not an explanation.
pub fn describe_explanation(answer: &Value) -> anyhow::Result<String> {
    let explanation = Explanation::deserialize(answer).context("the server's answer is not an explanation")?;
    Ok(printable(&explanation.to_string()).into_owned())
}
