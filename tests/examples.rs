//! The rules files of the examples, the packages and the documentation: a client must not evade a rule by adding fields
//! to a request.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use divvy::config::{Format, Problem, parse};
use divvy::rules::{MatchPolicy, Operation, Rule, RuleSet, Scratch};

use crate::support::Server;

#[path = "../examples/burst_plot/plot.rs"]
mod burst_plot;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const DEBIAN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/debian/rules.ini");

/// The value of a field that a client adds, and the value for each `*`.
const INVENTED: &str = "invented";

struct Example {
    /// File and line.
    place: String,
    rules: RuleSet,
    warnings: Vec<Problem>,
}

#[test]
fn invented_api_key_does_not_bypass_the_login_limit_of_the_debian_package() {
    let server = Server::in_memory(DEBIAN);
    let mut client = server.resp();
    let mut login = |key: u32| client.command(&format!("DIVVY.HIT path=/login ip=192.0.2.7 api-key=invented-{key}"));
    let replies: Vec<String> = (0..6).map(&mut login).collect();
    let left: Vec<_> = replies.iter().map(|reply| reply.rsplit_once(' ').unwrap().0).collect();
    assert_eq!(left, ["[1 4", "[1 3", "[1 2", "[1 1", "[1 0", "[0 0"]);
}

#[test]
fn committed_plot_shows_the_algorithms() {
    assert_eq!(burst_plot::burst_plot().unwrap(), include_str!("../docs/burst.svg"));
}

#[test]
fn invented_field_bypasses_no_rule_of_an_example() {
    let examples = examples();
    assert!(examples.len() >= 40, "only {} examples were found", examples.len());
    let bypassed: BTreeSet<String> = examples.iter().flat_map(bypassed).collect();
    assert!(bypassed.is_empty(), "{bypassed:#?}");
}

/// The page of recipes says that `divvy check` warns about the trial.
#[test]
fn examples_have_no_warnings_but_that_of_a_trial() {
    let examples = examples();
    let warnings = examples.iter().flat_map(|example| &example.warnings).map(ToString::to_string);
    let unexpected: Vec<_> = warnings.filter(|text| !text.contains("the canary on line")).collect();
    assert!(unexpected.is_empty(), "{unexpected:#?}");
}

/// Returns the rules that no longer answer their own operation if it has more fields, one at a time or all at once.
fn bypassed(Example { place, rules, .. }: &Example) -> Vec<String> {
    let keys: BTreeSet<&str> = rules.rules().iter().flat_map(Rule::pairs).map(|(key, _)| key).collect();
    let mut found = Vec::new();
    for rule in rules.rules().iter().filter(|rule| !rule.is_default()) {
        let asked: Vec<_> = rule.pairs().map(|(key, pattern)| (key, pattern.replace('*', INVENTED))).collect();
        let missing: Vec<&str> = keys.iter().copied().filter(|key| rule.pattern(key).is_none()).collect();
        let expected = deciding_lines(rules, &asked, &[]);
        for added in missing.iter().map(std::slice::from_ref).chain([&missing[..]]) {
            if !expected.is_subset(&deciding_lines(rules, &asked, added)) {
                found.push(format!("{place}: [{rule}] is bypassed by adding {added:?}"));
            }
        }
    }
    found
}

/// Returns the lines of the rules that decide about an operation after a client has added fields.
fn deciding_lines(rules: &RuleSet, asked: &[(&str, String)], added: &[&str]) -> BTreeSet<usize> {
    let mut operation: Operation = asked.iter().map(|(key, value)| (*key, value.as_str())).collect();
    for key in added {
        operation.set(key, INVENTED);
    }
    let mut scratch = Scratch::default();
    let matching = rules.matches(&operation, &mut scratch);
    matching.filter(|(_, rule)| rule.match_policy != MatchPolicy::Canary).map(|(place, _)| place).collect()
}

fn examples() -> Vec<Example> {
    let mut files = vec![Path::new(ROOT).join("README.md")];
    for directory in ["config", "docs", "packaging", "src/cli/init"] {
        collect_files(&Path::new(ROOT).join(directory), &mut files);
    }
    files.sort();
    files.iter().flat_map(|path| examples_in(path)).collect()
}

fn collect_files(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() { collect_files(&entry, files) } else { files.push(entry) }
    }
}

/// Returns the rules in a file: the file itself, the blocks of a page, or the file inside a Kubernetes manifest.
fn examples_in(path: &Path) -> Vec<Example> {
    let is_rules = |text: &str| text.contains("[default]") || text.contains("\"default\"");
    let Some(extension) = path.extension().and_then(|extension| extension.to_str()) else { return Vec::new() };
    let Ok(text) = std::fs::read_to_string(path) else { return Vec::new() };
    let blocks = match extension {
        "ini" => vec![(1, Format::Ini, text)],
        "json" if is_rules(&text) && !is_cases(path) => vec![(1, Format::Json, text)],
        "md" => blocks(&text),
        "yaml" => manifest_rules(&text),
        _ => Vec::new(),
    };
    let example = |(line, format, text): (usize, Format, String)| {
        let place = format!("{}:{line}", path.strip_prefix(ROOT).unwrap().display());
        let loaded = parse(&text, format, path).unwrap_or_else(|report| panic!("{place}: {report}"));
        Example { place, rules: loaded.rules, warnings: loaded.warnings }
    };
    blocks.into_iter().filter(|(_, _, text)| is_rules(text)).map(example).collect()
}

/// Returns whether a file has test cases of rules, in place of rules.
fn is_cases(path: &Path) -> bool {
    path.to_str().is_some_and(|path| path.ends_with(".test.json"))
}

/// Returns the blocks of a page that are INI or JSON, each with its line.
fn blocks(page: &str) -> Vec<(usize, Format, String)> {
    let mut found = Vec::new();
    let mut lines = page.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        if !line.starts_with("```") {
            continue;
        }
        let block: Vec<_> = lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```").collect();
        match line {
            "```ini" => found.push((at + 2, Format::Ini, block.join("\n"))),
            "```json" => found.push((at + 2, Format::Json, block.join("\n"))),
            _ => {}
        }
    }
    found
}

/// Returns the text under `rules.ini: |`, without its indentation.
fn manifest_rules(manifest: &str) -> Vec<(usize, Format, String)> {
    let Some((before, from)) = manifest.split_once("  rules.ini: |\n") else { return Vec::new() };
    let indented = from.lines().take_while(|line| line.starts_with("    ") || line.is_empty());
    let text: Vec<_> = indented.map(str::trim_start).collect();
    vec![(before.lines().count() + 2, Format::Ini, text.join("\n"))]
}
