//! Random rules files, read by divvy and as Button's Divvy 1.7.1 reads them, with the npm package that it uses for INI.
//! Both read the same rules, or divvy reports the difference.

use std::cell::RefCell;
use std::path::Path;
use std::process::Command;

use crate::clients::{NODE, installed};
use crate::support::Answering;
use divvy::config::{Format, parse};
use divvy::rules::{MatchPolicy, Rule};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};

/// A running tests/clients/node/original_rules.js.
struct Original(Answering);

impl Original {
    fn start() -> Self {
        installed(Path::new(NODE).join("node_modules/ini"));
        Self(Answering::start(Command::new("node").arg(Path::new(NODE).join("original_rules.js"))))
    }

    /// Returns the rules of an INI file; null if it is rejected.
    fn read(&mut self, text: &str) -> Value {
        self.send(&json!(text))
    }

    /// Returns the operations of a JSON file's rules.
    fn read_json(&mut self, text: &str) -> Value {
        self.send(&json!({ "json": text }))
    }

    fn send(&mut self, file: &Value) -> Value {
        serde_json::from_str(&self.0.ask(&file.to_string())).unwrap()
    }
}

/// Formats a rule as original_rules.js prints it.
fn printed(rule: &Rule) -> Value {
    let mut operation: Vec<_> = rule.pairs().collect();
    operation.sort_by(|one, other| one.0.encode_utf16().cmp(other.0.encode_utf16()));
    let seconds = rule.settings.reset_seconds.to_string().parse::<f64>().unwrap();
    let seconds = if rule.settings.credit_limit == 0 { 0.0 } else { seconds };
    assert_eq!(seconds.fract(), 0.0, "a fraction is reported as a difference");
    json!({
        "operation": operation,
        "creditLimit": rule.settings.credit_limit,
        "resetSeconds": seconds as u64,
        "actorField": rule.actor_field().unwrap_or_default(),
        "matchPolicy": if rule.match_policy == MatchPolicy::Canary { "canary" } else { "stop" },
        "label": rule.label.as_deref().unwrap_or_default(),
    })
}

fn one_of(choices: &'static [&'static str]) -> impl Strategy<Value = &'static str> + Clone {
    prop::sample::select(choices)
}

/// Chooses one of the texts between the bars.
fn words(choices: &'static str) -> impl Strategy<Value = &'static str> + Clone {
    prop::sample::select(choices.split('|').collect::<Vec<_>>())
}

/// Generates a section header with several pairs and awkward characters. `name` keeps rules apart.
fn header(name: usize) -> impl Strategy<Value = String> {
    let value = one_of(&[
        "1", "/x", "/x", "x*", "*", "", "/a#top", "/a;b", r"/a\#b", r"/a\;b", r"C:\d", r"a\\b", "\"a b\"", "\"a;b\"",
        "a\"b", "'a'", "é", "a]b", "\"a]b\"", "a.b", "a'b'", "x=y",
    ]);
    let before = one_of(&["[", "[", "[", "[", "[", "[ ", " [", "\t[", "[\u{a0}"]);
    let after = one_of(&["]", "]", "]", "]", "]", " ]", "] ", "] ; old", "]#x", " ; x]", "#]", "\\]", "\u{85}]"]);
    let between = one_of(&[" ", " ", "  ", "\t", "\u{a0}"]);
    let key = one_of(&["path", "path", "kind", "\"two words\"", "é", "\u{10000}", "\u{ffee}"]);
    (before, value, between, key, value_of_second(), after).prop_map(
        move |(before, value, between, key, second, after)| {
            format!("{before}k{name}={value}{between}{key}={second}{after}")
        },
    )
}

fn value_of_second() -> impl Strategy<Value = &'static str> {
    one_of(&["1", "2", "*", "/y#z", "\"q\"", r"\\", ""])
}

fn setting() -> impl Strategy<Value = String> {
    let number = words("5|5|5|60.9|7.0|'7'|\"8\"|\"8\" ; c|9 # c|9;c| 4 |0|1e3|'2.0'");
    let text = words(
        "ip|ip|'ip'|\"ip\"|\"ip\" ; c|'ip' # c|null|'null'|\"null\"|true|false|''||'7'|'1.0'|a\\;b|a\\\\|\"a\\tb\"|\
         \u{feff}ip|ip\u{85}|a\u{2028}|'\"ip\"'|it's|=",
    );
    let policy = one_of(&["stop", "canary", "canary", "'canary'", "\"canary\"", "null", "false", "''", "canary ; c"]);
    prop_oneof![
        number.clone().prop_map(|value| format!("resetSeconds={value}")),
        number.prop_map(|value| format!("creditLimit = {value}")),
        text.clone().prop_map(|value| format!("actorField = {value}")),
        text.clone().prop_map(|value| format!("label = {value}")),
        text.prop_map(|value| format!("  comment = {value}")),
        policy.prop_map(|value| format!("matchPolicy = {value}")),
        one_of(&["; a comment", "  # another", "", "\t"]).prop_map(str::to_owned),
    ]
}

fn file() -> impl Strategy<Value = String> {
    let section = |name| {
        let settings = prop::collection::vec(setting(), 0..3);
        let line_end = one_of(&["\n", "\n", "\r\n", "\r"]);
        (header(name), settings, line_end).prop_map(|(header, settings, line_end)| {
            let has = |key: &str| settings.iter().any(|setting| setting.trim_start().starts_with(key));
            let mut lines = vec![header];
            lines
                .extend(["creditLimit", "resetSeconds"].iter().filter(|key| !has(key)).map(|key| format!("{key} = 3")));
            lines.extend(settings.iter().cloned());
            lines.join(line_end) + line_end
        })
    };
    let sections = (0..3_usize).prop_flat_map(move |count| (0..count).map(section).collect::<Vec<_>>());
    (one_of(&["", "", "\u{feff}", "\u{feff}; c\n"]), sections).prop_map(|(start, sections)| {
        format!("{start}{}[default]\ncreditLimit = 1\nresetSeconds = 60\n", sections.concat())
    })
}

#[test]
fn both_read_the_same_rules_or_divvy_reports_the_difference() {
    let original = RefCell::new(Original::start());
    let compared = RefCell::new(0);
    let config = ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() };
    let result = TestRunner::new(config).run(&file(), |text| {
        let Ok(loaded) = parse(&text, Format::Ini, "rules.ini") else { return Ok(()) };
        if !loaded.differences.is_empty() {
            return Ok(());
        }
        let ours: Vec<_> = loaded.rules.rules().iter().map(printed).collect();
        let theirs = original.borrow_mut().read(&text);
        let is_limit_without_end = |rule: &Value| rule["creditLimit"] != 0 && rule["resetSeconds"] == 0;
        if theirs.is_null() {
            prop_assert!(ours.iter().any(is_limit_without_end), "refused there:\n{}", text);
        } else {
            prop_assert_eq!(json!(ours), theirs, "{}", text);
            *compared.borrow_mut() += usize::from(ours.len() > 1);
        }
        Ok(())
    });
    result.unwrap();
    assert!(*compared.borrow() >= 100, "only {} files were the same to both", compared.borrow());
}

/// Generates a number or a boolean. An operation has no other values but strings.
fn json_value() -> impl Strategy<Value = String> {
    let number = "-?(0|[1-9][0-9]{0,24})([.][0-9]{1,20})?([eE][+-]?[0-9]{1,3})?";
    let near_whole = (any::<u64>(), -3..4_i32).prop_map(|(whole, power)| format!("{whole}e{power}"));
    let any_double = any::<f64>().prop_filter("JSON has no others", |number| number.is_finite());
    let other = one_of(&["true", "false"]);
    prop_oneof![
        number.prop_map(String::from),
        near_whole,
        any_double.prop_map(|number| format!("{number:e}")),
        any::<i32>().prop_map(|whole| whole.to_string()),
        other.prop_map(String::from),
    ]
}

#[test]
fn both_read_the_same_json_values_or_divvy_reports_the_difference() {
    let original = RefCell::new(Original::start());
    let (same, answer) = (RefCell::new(0), RefCell::new(0));
    let config = ProptestConfig { cases: 3_000, failure_persistence: None, ..ProptestConfig::default() };
    let result = TestRunner::new(config).run(&json_value(), |value| {
        let text = format!(
            r#"{{"overrides": [{{"operation": {{"k": {value}}}, "creditLimit": 1, "resetSeconds": 60}}],
            "default": {{"operation": {{}}, "creditLimit": 0, "resetSeconds": 0}}}}"#
        );
        let loaded = parse(&text, Format::Json, "rules.json").unwrap();
        let ours: Vec<_> = loaded.rules.rules().iter().map(|rule| rule.pairs().collect::<Vec<_>>()).collect();
        let theirs = original.borrow_mut().read_json(&text);
        match loaded.differences.as_slice() {
            [] => {
                prop_assert_eq!(json!(ours), theirs, "{}", text);
                *same.borrow_mut() += 1;
            }
            [_] => *answer.borrow_mut() += 1,
            more => panic!("{text}: {more:?}"),
        }
        Ok(())
    });
    result.unwrap();
    assert!(*same.borrow() >= 100 && *answer.borrow() >= 100, "{same:?} same, {answer:?} answer");
}
