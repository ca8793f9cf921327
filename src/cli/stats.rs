//! `divvy stats`: prints the figures in a running server's `INFO`.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::{Map, Value};

use super::resp::{RespClient, ServerArgs, text};

/// Maximum time for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Words that select all sections of `INFO`.
const ALL: [&str; 3] = ["all", "everything", "default"];

#[derive(Debug, clap::Args)]
pub struct StatsArgs {
    /// Print a JSON object with one member per section
    #[arg(long)]
    json: bool,
    /// Sections to print, such as `stats` or `memory` [default: all]
    #[arg(value_name = "SECTION")]
    sections: Vec<String>,
    #[command(flatten)]
    server: ServerArgs,
}

pub fn run(args: StatsArgs) -> anyhow::Result<ExitCode> {
    let mut client = args.server.connect(PATIENCE)?;
    let info = info(&mut client, &args.sections)?;
    let is_there = |asked: &String| sections(&info).chain(ALL).any(|known| known.eq_ignore_ascii_case(asked));
    if let Some(asked) = args.sections.iter().find(|asked| !is_there(asked)) {
        let all = self::info(&mut client, &[])?;
        let all: Vec<_> = sections(&all).map(str::to_lowercase).collect();
        bail!("there is no section {asked:?}; the sections are {}", all.join(", "));
    }
    let mut out = io::stdout().lock();
    if args.json {
        writeln!(out, "{}", Value::Object(parse(&info)))?;
    } else {
        write!(out, "{}", info.replace("\r\n", "\n"))?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn info(client: &mut RespClient, sections: &[String]) -> anyhow::Result<String> {
    let command: Vec<_> = ["INFO".to_owned()].into_iter().chain(sections.iter().cloned()).collect();
    text(&client.ask(&command)?).context("the server's answer is not text")
}

/// Returns the names of the sections.
fn sections(info: &str) -> impl Iterator<Item = &str> {
    info.lines().filter_map(|line| line.strip_prefix("# "))
}

/// Converts `# Section` and `field:value` lines to objects. Numeric values become numbers.
fn parse(info: &str) -> Map<String, Value> {
    let mut sections = Map::new();
    let mut name = String::new();
    for line in info.lines() {
        if let Some(section) = line.strip_prefix("# ") {
            name = section.to_lowercase();
        } else if let Some((field, value)) = line.split_once(':') {
            let number = value.parse().ok().and_then(serde_json::Number::from_f64).map(Value::Number);
            let value = value.parse::<u64>().map(Value::from).ok().or(number).unwrap_or_else(|| value.into());
            let section = sections.entry(name.clone()).or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(fields) = section {
                fields.insert(field.to_owned(), value);
            }
        }
    }
    sections
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_become_objects_with_numbers() {
        let info = "# Server\r\nredis_version:7.2.0\r\nrules:3\r\n\r\n# Stats\r\nrate:0.5\r\npath:/a:b\r\n";
        let expected = serde_json::json!({
            "server": { "redis_version": "7.2.0", "rules": 3 },
            "stats": { "rate": 0.5, "path": "/a:b" },
        });
        assert_eq!(Value::Object(parse(info)), expected);
    }
}
