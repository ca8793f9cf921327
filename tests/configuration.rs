//! docs/configuration.md lists every flag of every subcommand as clap defines it, and the Helm chart's schema every flag of
//! `divvy serve`.
//!
//! See [`crate::pages`].

use std::fmt::Write as _;
use std::fs;

use clap::builder::StyledStr;
use clap::{Arg, Command, CommandFactory};
use divvy::cli::Cli;
use serde_json::{Map, Value, json};

use crate::pages::compare;
use crate::support::{done, output, program, run};

/// clap's own subcommand and flags, which exist in every program.
const CLAPS_OWN: [&str; 3] = ["help", "version", "built-in"];
/// The heading of flags that have no heading of their own.
const NO_HEADING: &str = "Flags";
/// Prefix of defaults that only the help text contains, because they depend on other flags.
const DEFAULT_IN_HELP: &str = "[default: ";

#[test]
fn page_lists_all_flags_of_clap() {
    let mut cli = Cli::command();
    cli.build();
    compare("configuration.md", tables(&subcommands("divvy", &cli)).trim_start());
}

/// Flags that the chart passes because of other values than `flags`, and those that have no use in a pod.
const OTHER_VALUES: [&str; 24] = [
    "store",
    "data-dir",
    "listen",
    "resp-listen",
    "http-listen",
    "grpc-listen",
    "requirepass",
    "requirepass-file",
    "access-file",
    "token-key-file",
    "tls-cert",
    "tls-key",
    "tls-client-ca",
    "tls-fronts",
    "redis-url",
    "redis-sentinel-auth",
    "redis-ca",
    "redis-cert",
    "redis-key",
    "drain-delay",
    "drain-timeout",
    "reuse-port",
    "wait-for-lock",
    "ratelimit-env",
];

#[test]
fn chart_schema_has_the_flags_of_serve() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/helm/divvy/values.schema.json");
    let text = fs::read_to_string(path).unwrap();
    let mut schema: Value = serde_json::from_str(&text).unwrap();
    let mut cli = Cli::command();
    cli.build();
    let serve = cli.find_subcommand("serve").unwrap();
    let named = |name: &&str| flags(serve).any(|flag| flag.get_long() == Some(*name));
    let stale: Vec<_> = OTHER_VALUES.iter().filter(|name| !named(name)).collect();
    assert!(stale.is_empty(), "divvy serve has no flags {stale:?}");
    for (place, store) in
        [("/flags", None), ("/rocksdb/properties/flags", Some("rocksdb")), ("/redis/properties/flags", Some("redis"))]
    {
        let of_store = flags(serve).filter(|flag| store_of(flag) == store);
        let named = of_store.filter_map(|flag| Some((flag.get_long()?, flag)));
        let free = named.filter(|(name, _)| !OTHER_VALUES.contains(name));
        let properties: Map<_, _> = free.map(|(name, flag)| (name.to_owned(), schema_of(flag))).collect();
        let flags = schema.pointer_mut(&format!("/properties{place}")).unwrap();
        *flags = json!({"type": "object", "additionalProperties": false, "properties": properties});
    }
    let expected = serde_json::to_string_pretty(&schema).unwrap() + "\n";
    if std::env::var_os("DIVVY_TEST_WRITE_DOCS").is_some() {
        fs::write(path, expected).unwrap();
    } else {
        assert!(text == expected, "{path} is out of date: run `make docs`");
    }
}

/// Returns the store that a flag is for, as its help begins.
fn store_of(flag: &Arg) -> Option<&'static str> {
    let help = flag.get_help().map(plain).unwrap_or_default();
    let (stores, _) = help.split_once(':')?;
    ["rocksdb", "redis"].into_iter().find(|store| stores.split(", ").any(|named| named == *store))
}

/// Returns the JSON schema of a flag's values.
fn schema_of(flag: &Arg) -> Value {
    if !flag.get_action().takes_values() {
        return json!({"type": "boolean"});
    }
    let values: Vec<_> = flag.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
    if !values.is_empty() {
        let one = values.join("|");
        return match flag.get_value_delimiter() {
            Some(delimiter) => json!({"type": "string", "pattern": format!("^({one})({delimiter}({one}))*$")}),
            None => json!({"enum": values}),
        };
    }
    let number_or = |text: &str| {
        let text = json!({"type": "string", "pattern": format!("^{}$", text.replace("N", r"[0-9]+(\.[0-9]+)?"))});
        json!({"anyOf": [{"type": "integer", "minimum": 0}, text]})
    };
    match flag.get_value_names().unwrap_or_default() {
        [name] => match name.as_str() {
            "N" | "PORT" | "STATUS" => json!({"type": "integer", "minimum": 0}),
            "BYTES" => number_or("N(K|M|G|Ki|Mi|Gi)?"),
            "SECONDS" | "MS" => number_or("(N|(N(ms|s|m|h|d|w))+)"),
            _ => json!({"type": "string", "minLength": 1}),
        },
        names => panic!("{names:?}"),
    }
}

#[test]
fn every_flag_of_serve_is_under_a_heading() {
    let mut cli = Cli::command();
    cli.build();
    let without = rows(cli.find_subcommand("serve").unwrap(), NO_HEADING);
    assert!(without.is_empty(), "give these a `help_heading`: {without:?}");
}

/// Lists the subcommands of `command` with their full names, each before its own subcommands.
fn subcommands<'a>(name: &str, command: &'a Command) -> Vec<(String, &'a Command)> {
    let ours = command.get_subcommands().filter(|command| !CLAPS_OWN.contains(&command.get_name()));
    let with_own = ours.flat_map(|command| {
        let name = format!("{name} {}", command.get_name());
        let own = subcommands(&name, command);
        std::iter::once((name, command)).chain(own)
    });
    with_own.collect()
}

fn tables(commands: &[(String, &Command)]) -> String {
    let clients = commands.iter().map(|(_, command)| *command).filter(|command| connects(command));
    let rows_of_clients = clients.map(|command| rows(command, NO_HEADING));
    // These are the rows that all of them have.
    let common = rows_of_clients.reduce(|common, more| common.into_iter().filter(|row| more.contains(row)).collect());
    let connection = common.expect("subcommands with --server");
    let mut text = String::new();
    let mut shown: Vec<(String, &str)> = Vec::new();
    for (name, command) in commands {
        let level = "#".repeat(name.split(' ').count());
        let about = command.get_about().map(plain).unwrap_or_default();
        write!(text, "\n{level} {name}\n\n{about}.").unwrap();
        let mut headings: Vec<_> = flags(command).map(heading).collect();
        headings.dedup();
        let mut tables = String::new();
        for heading in headings {
            let own: Vec<_> = rows(command, heading).into_iter().filter(|row| !connection.contains(row)).collect();
            write_table(&mut tables, heading, &own);
        }
        let link = if connects(command) { " Accepts [connection flags](#connection-flags)." } else { "" };
        match shown.iter().find(|(earlier, _)| !tables.is_empty() && *earlier == tables) {
            Some((_, twin)) => writeln!(text, " Flags: as for [{twin}](#{}).", twin.replace(' ', "-")).unwrap(),
            None => write!(text, "{link}\n{tables}").unwrap(),
        }
        shown.push((tables, name.as_str()));
    }
    text.push_str("\n## Connection flags\n\nFlags of the subcommands that ask a running server.\n");
    write_table(&mut text, NO_HEADING, &connection);
    text.push('\n');
    text
}

fn connects(command: &Command) -> bool {
    flags(command).any(|flag| flag.get_long() == Some("server"))
}

fn flags(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|flag| !flag.is_hide_set() && !CLAPS_OWN.contains(&flag.get_id().as_str()))
}

fn heading(flag: &Arg) -> &str {
    flag.get_help_heading().unwrap_or(NO_HEADING)
}

fn write_table(text: &mut String, heading: &str, rows: &[String]) {
    if rows.is_empty() {
        return;
    }
    if heading != NO_HEADING {
        write!(text, "\n### {heading}\n").unwrap();
    }
    write!(text, "\n| flag | default | what it does |\n|---|---|---|\n{}", rows.concat()).unwrap();
}

/// Returns the row of each flag that is under a heading.
fn rows(command: &Command, of_heading: &str) -> Vec<String> {
    let flags = flags(command).filter(|flag| heading(flag) == of_heading);
    flags.map(|flag| row(flag, command.get_name() == "serve")).collect()
}

fn row(flag: &Arg, is_of_serve: bool) -> String {
    let help = flag.get_help().map(plain).unwrap_or_default();
    assert!(!help.is_empty(), "{} has no help text", flag.get_id());
    let (help, default_in_help) = help.split_once(DEFAULT_IN_HELP).unwrap_or((help.as_str(), ""));
    let meaning = format!("{}{}", help.trim_end(), values(flag));
    let default = default(flag, default_in_help.trim_end_matches(']'));
    let cells = [names(flag, is_of_serve), default, meaning].map(|cell| cell.replace('|', "\\|"));
    format!("| {} |\n", cells.join(" | "))
}

/// Returns `--flag VALUE`, `-f` or the name of a positional argument. Adds the variable, unless its name follows from
/// the flag's.
fn names(flag: &Arg, is_of_serve: bool) -> String {
    let is_free = flag.get_action().takes_values() && flag.get_possible_values().is_empty();
    let value_names = flag.get_value_names().filter(|_| is_free || flag.is_positional()).unwrap_or_default();
    let long = flag.get_long().map(|long| format!("--{long}"));
    let first: Vec<_> = long.into_iter().chain(value_names.iter().map(ToString::to_string)).collect();
    let short = flag.get_short().map(|short| format!("-{short}"));
    let follows = flag.get_long().map(|long| format!("DIVVY_{}", long.to_uppercase().replace('-', "_")));
    let variable = flag.get_env().map(|variable| variable.to_string_lossy().into_owned());
    let variable = variable.filter(|variable| !is_of_serve || follows.as_ref() != Some(variable));
    let all = std::iter::once(first.join(" ")).chain(short).chain(variable);
    all.map(|name| code(&name)).collect::<Vec<_>>().join(", ")
}

fn default(flag: &Arg, in_help: &str) -> String {
    let values: Vec<_> = flag.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    let takes_value = flag.get_action().takes_values();
    if takes_value && !values.is_empty() && !flag.is_hide_default_value_set() {
        return code(&values.join(","));
    }
    // A default with spaces is a description, not a value.
    match in_help {
        "" if flag.is_required_set() => "required".into(),
        description if description.is_empty() || description.contains(' ') => description.into(),
        value => code(value),
    }
}

/// Returns the possible values, and what each of them means.
fn values(flag: &Arg) -> String {
    let values = if flag.get_action().takes_values() { flag.get_possible_values() } else { Vec::new() };
    let separator = if values.iter().any(|value| value.get_help().is_some()) { ".<br>" } else { ", " };
    let shown = values.iter().map(|value| {
        let help = value.get_help().map(|help| format!(": {}", plain(help)));
        code(value.get_name()) + &help.unwrap_or_default()
    });
    let shown: Vec<_> = shown.collect();
    if shown.is_empty() { String::new() } else { format!(".<br>{}", shown.join(separator)) }
}

fn plain(text: &StyledStr) -> String {
    text.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

fn code(text: &str) -> String {
    format!("`{text}`")
}

fn names_of_subcommands() -> Vec<String> {
    Cli::command().get_subcommands().map(|command| command.get_name().to_owned()).collect()
}

#[test]
fn completions_include_every_subcommand_in_every_shell() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = done(&format!("completions {shell}"));
        for name in names_of_subcommands() {
            assert!(script.contains(&name), "{shell}: {name}");
        }
        assert!(script.contains("durability"), "{shell}");
    }
    assert_eq!(run("completions tcsh").0, 2);
}

/// Checks in bash that `divvy ser` has exactly one completion.
#[test]
fn bash_completes_with_the_script() {
    let script = done("completions bash");
    let ask = "COMP_WORDS=(divvy ser) COMP_CWORD=1; _divvy divvy ser divvy; echo \"${COMPREPLY[@]}\"";
    let (_, completed, error) = output(program("bash").args(["-c", &format!("{script}\n{ask}")]));
    assert_eq!(completed.trim(), "serve", "{error}");
}

#[test]
fn manual_has_a_page_for_each_subcommand() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(done(&format!("man --dir {}", dir.path().display())), "");
    let read = |page: &str| std::fs::read_to_string(dir.path().join(format!("{page}.1"))).unwrap();
    // In roff, a literal hyphen is escaped.
    let main = read("divvy").replace("\\-", "-");
    assert_eq!(main, done("man").replace("\\-", "-"));
    for name in names_of_subcommands().into_iter().filter(|name| name != "help") {
        assert!(main.contains(&format!("divvy-{name}(1)")), "{name} is not on the main page");
        assert!(read(&format!("divvy-{name}")).contains(&format!(".TH divvy-{name} 1")), "{name}");
    }
}
