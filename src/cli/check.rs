//! `divvy check`: validates a rules file without serving it.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use super::against::{self, Other};
use super::rules_file;
use super::server::ServerArgs;
use super::text::count_of;
use super::text::printable;
use divvy_core::config::Serving;
use divvy_core::rules::{MatchPolicy, Rule, stacks};
use divvy_server::http::CheckOperation;

/// Validate a rules file: print a summary of its rules, or every problem in it.
#[derive(Debug, clap::Args)]
pub struct CheckArgs {
    /// Rules file (.ini or .json)
    config: PathBuf,
    /// Also report rules that a server cannot take from together when its counters are in a Redis Cluster
    #[arg(long)]
    redis_cluster: bool,
    /// Also report where another program reads the file differently
    #[arg(long, value_name = "PROGRAM")]
    compat: Option<Compat>,
    /// Say what happens to the counters under other rules: a rules file, or `server` for a running server. Exits with 3
    /// if actors of a rule start afresh
    #[arg(long, value_name = "FILE|server")]
    against: Option<Other>,
    #[command(flatten)]
    server: ServerArgs,
}

/// A program that reads the same rules files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Compat {
    /// Button's Divvy 1.7.1
    ButtonDivvy,
}

/// Runs the subcommand.
///
/// # Errors
/// Standard output cannot be written.
pub fn run(args: CheckArgs) -> anyhow::Result<ExitCode> {
    let serving = Serving { redis_cluster: args.redis_cluster, spellings: CheckOperation::default().spellings() };
    let compares = args.compat == Some(Compat::ButtonDivvy);
    let Some(rules) = rules_file::load_for(&args.config, &serving, compares)? else { return Ok(ExitCode::FAILURE) };
    if let Some(other) = &args.against {
        return against::compare(&rules, &args.config, other, &args.server);
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
        let text = format!("lines {} together: {}", list(&lines), stacks::describe_stack(&members));
        writeln!(out, "{}", printable(&text))?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Lists words: `4, 11 and 18`.
fn list(words: &[String]) -> String {
    match words {
        [most @ .., last] if !most.is_empty() => format!("{} and {last}", most.join(", ")),
        words => words.concat(),
    }
}

fn summary(index: usize, rule: &Rule) -> String {
    let header = rule.to_string();
    let mut text = format!("line {}: [{header}] {}", rule.line, rule.full_summary());
    let name = rule.name(index);
    if name != header {
        text.push_str(&format!(" ({name})"));
    }
    text
}
