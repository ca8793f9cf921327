//! Whole files: what a broken one reports, what the examples hold, and that writing loses nothing.

use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::rules::{MatchPolicy, Pattern, Rule, Settings};

/// The rules without their lines, which differ from file to file.
fn rules_of(loaded: &Loaded) -> Vec<Rule> {
    loaded.rules.rules().iter().map(|rule| Rule { line: 0, ..rule.clone() }).collect()
}

/// Everything that is said about a file, one line a problem.
fn said_about(text: &str, file_name: &str) -> String {
    let format = Format::of(Path::new(file_name)).unwrap();
    let (errors, warnings) = match parse(text, format, file_name) {
        Ok(loaded) => (Vec::new(), loaded.warnings),
        Err(report) => (report.errors, report.warnings),
    };
    let errors = errors.iter().map(|problem| format!("error: {problem}\n"));
    errors.chain(warnings.iter().map(|problem| format!("warning: {problem}\n"))).collect()
}

/// Compares what is said about a file beside this one with the file of that name plus `.report`.
macro_rules! golden {
    ($($test:ident: $file:literal,)*) => {$(
        #[test]
        fn $test() {
            let text = include_str!(concat!("golden/", $file));
            assert_eq!(said_about(text, $file), include_str!(concat!("golden/", $file, ".report")));
        }
    )*};
}

golden! {
    a_broken_ini_reports_everything_at_once: "broken.ini",
    a_broken_json_reports_everything_at_once: "broken.json",
    malformed_json_tells_the_line: "malformed.json",
    json_must_be_an_object: "array.json",
    json_must_be_something: "empty.json",
    an_ini_needs_a_default_rule: "empty.ini",
    a_json_needs_a_default_rule: "null.json",
    the_default_rule_is_last_and_stops: "defaults.ini",
    what_is_only_odd_is_a_warning: "odd.ini",
}

#[test]
fn values_in_json_that_are_no_strings_are_their_json_text() {
    let text = r#"{ "overrides": [{
        "operation": { "n": 1.50, "t": true, "z": null, "a": [1, "x y"], "s": "/*" }, "creditLimit": "7", "resetSeconds": 6e1
    }], "default": { "creditLimit": 0, "resetSeconds": 0, "label": "", "actorField": "", "comment": null } }"#;
    let loaded = parse(text, Format::Json, "rules.json").unwrap();
    let rules = loaded.rules.rules();
    let pairs: Vec<_> = rules[0].pairs().collect();
    assert_eq!(pairs, [("n", "1.50"), ("t", "true"), ("z", "null"), ("a", "[1,\"x y\"]"), ("s", "/*")]);
    assert_eq!(rules[0].settings, Settings { credit_limit: 7, reset_seconds: 60 });
    assert_eq!((&rules[1].label, &rules[1].actor_field, &rules[1].comment), (&None, &None, &None));
}

#[test]
fn files_that_cannot_be_read_say_so() {
    let directory = tempfile::tempdir().unwrap();
    let message = |name: &str, content: Option<&[u8]>| {
        let path = directory.path().join(name);
        if let Some(content) = content {
            std::fs::write(&path, content).unwrap();
        }
        let message = load(&path).unwrap_err().to_string();
        message.replace(&directory.path().display().to_string(), "DIR")
    };
    assert_eq!(
        message("none.ini", None),
        "DIR/none.ini: cannot read the file: No such file or directory (os error 2); check its path and its permissions"
    );
    assert_eq!(
        message("rules.yaml", Some(b"")),
        "DIR/rules.yaml: unknown file extension; name the file *.ini or *.json"
    );
    assert_eq!(
        message("latin1.ini", Some(b"[default]\n; \xe9\n")),
        "DIR/latin1.ini:2: the file is not UTF-8; save it as UTF-8"
    );
    let huge = vec![b'\n'; MAX_FILE_BYTES as usize + 1];
    assert_eq!(
        message("huge.ini", Some(&huge)),
        "DIR/huge.ini: the file is larger than 64 MiB; use fewer rules, with patterns in place of single values"
    );
}

#[test]
fn the_examples_hold_the_same_rules_and_no_problem() {
    let load_example = |name: &str| load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("config").join(name)).unwrap();
    let (ini, json) = (load_example("example.ini"), load_example("example.json"));
    assert_eq!(rules_of(&ini), rules_of(&json));
    assert_eq!((ini.warnings, json.warnings), (vec![], vec![]));
    let status = &ini.rules.rules()[0];
    assert_eq!(status.to_string(), "method=GET path=/status");
    assert_eq!(status.settings, Settings { credit_limit: 1000, reset_seconds: 60 });
}

#[test]
fn deeply_nested_json_is_refused() {
    let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
    let text = format!(r#"{{"overrides": [{{"operation": {{"a": {deep}}}, "label": {deep}}}], "default": {deep}}}"#);
    assert!(parse(&text, Format::Json, "deep.json").is_err());
}

#[test]
fn a_section_that_ini_cannot_hold_is_an_error() {
    let text = r#"{ "overrides": [{ "operation": { "a": "x \"y\"" }, "creditLimit": 1, "resetSeconds": 1 }],
                    "default": { "creditLimit": 0, "resetSeconds": 0 } }"#;
    let loaded = parse(text, Format::Json, "rules.json").unwrap();
    let error = write(loaded.rules.rules(), Format::Ini).unwrap_err();
    assert_eq!((error.line, error.rule.as_str()), (1, r#""a"="x \"y\"""#));
    assert_eq!(
        rules_of(&parse(&write(loaded.rules.rules(), Format::Json).unwrap(), Format::Json, "").unwrap()),
        rules_of(&loaded)
    );
}

/// Rules with awkward texts, each reachable by a key of its own, and a default rule.
fn valid_rules() -> impl Strategy<Value = Vec<Rule>> {
    let awkward = || prop_oneof![r#"[a\] ;#=\\'"\[\r\t*é]{0,6}"#, Just("null".to_owned()), "[a-z.]{1,5}"];
    let text = || prop::option::of(prop_oneof![awkward(), ".{1,9}"].prop_filter("empty is absent", |s| !s.is_empty()));
    let operation = prop::collection::btree_map(awkward(), awkward(), 0..3);
    let settings =
        (0..4_u64, 0..4_u64).prop_map(|(credit_limit, reset_seconds)| Settings { credit_limit, reset_seconds });
    let rule =
        (operation, settings, text(), any::<bool>(), text()).prop_map(|(pairs, settings, actor, canary, comment)| {
            Rule {
                operation: pairs.into_iter().map(|(key, value)| (key, Pattern::parse(&value))).collect(),
                settings,
                quota: settings.quota().unwrap(),
                actor_field: actor,
                match_policy: if canary { MatchPolicy::Canary } else { MatchPolicy::Stop },
                label: None,
                comment,
                line: 0,
            }
        });
    prop::collection::vec(rule, 1..6).prop_map(|mut rules| {
        for (index, rule) in rules.iter_mut().enumerate() {
            rule.operation.push((format!("rule{index}"), Pattern::Any));
            rule.label = (index % 2 == 0).then(|| format!("label-{index}"));
        }
        let default = rules.last_mut().unwrap();
        default.operation.clear();
        default.match_policy = MatchPolicy::Stop;
        rules
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read_again(rules in valid_rules()) {
        let json = write(&rules, Format::Json).unwrap();
        prop_assert_eq!(&rules_of(&parse(&json, Format::Json, "").unwrap()), &rules);
        match write(&rules, Format::Ini) {
            Ok(ini) => {
                let from_ini = parse(&ini, Format::Ini, "").unwrap();
                prop_assert_eq!(&rules_of(&from_ini), &rules);
                let json_again = write(from_ini.rules.rules(), Format::Json).unwrap();
                prop_assert_eq!(json_again, json);
            }
            Err(unwritable) => {
                let blocked = |text: &str| text.contains('"') || text.contains('\n');
                let rule = rules.iter().find(|rule| rule.to_string() == unwritable.rule).unwrap();
                prop_assert!(rule.pairs().any(|(key, value)| blocked(key) || blocked(value)));
            }
        }
    }

    #[test]
    fn any_text_is_read_or_refused(text in "([\\[\\]a=\"'{}:,;#\\\\0-9\n ]|creditLimit|default|overrides|operation){0,40}") {
        let _ = parse(&text, Format::Ini, "any.ini");
        let _ = parse(&text, Format::Json, "any.json");
    }
}
