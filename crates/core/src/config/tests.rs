//! Whole files: the reports on broken files, the content of the examples, and lossless writing.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::ToSpan;
use jiff::civil::Time;
use proptest::prelude::*;

use super::*;
use crate::algorithm::{Kind, MAX_LOG_CREDITS};
use crate::calendar::{Calendar, Unit};
use crate::rules::{
    ActorPrefix, Condition, FinalSlash, List, MAX_CREDIT_LIMIT, MAX_RESET_SECONDS, MatchPolicy, Network, Overrun,
    Pattern, Penalty, PrefixLengths, Quota, Rule, Seconds, Settings, Spelling,
};

fn load(path: &Path) -> Result<Loaded, Report> {
    load_for(path, &Serving::default())
}

/// Returns the rules without their line numbers, which differ from file to file.
fn rules_of(loaded: &Loaded) -> Vec<Rule> {
    loaded.rules.rules().iter().map(|rule| Rule { line: 0, ..rule.clone() }).collect()
}

/// Returns the settings of a rule without an algorithm.
fn window(credit_limit: u64, reset_seconds: u64) -> Settings {
    Settings { credit_limit, reset_seconds: Seconds::whole(reset_seconds), ..Settings::default() }
}

/// Returns the report on a golden file, one line per problem. Rules in a file whose name begins with `checks` are for a server whose
/// checks have the default pairs.
fn report_on(path: &Path) -> String {
    let spelling = |key: &str, spelling| (key.to_owned(), spelling);
    let spellings = [
        spelling("method", Spelling::Method),
        spelling("path", Spelling::Path(FinalSlash::Keep)),
        spelling("host", Spelling::Host),
        spelling("ip", Spelling::Address),
    ];
    let is_for_checks = path.file_name().unwrap().to_str().unwrap().starts_with("checks");
    let spellings = spellings.into_iter().filter(|_| is_for_checks).collect();
    let (errors, warnings, differences) = match load_for(path, &Serving { spellings, ..Serving::default() }) {
        Ok(loaded) => (Vec::new(), loaded.warnings, loaded.differences),
        Err(report) => (report.errors, report.warnings, Vec::new()),
    };
    let kinds = [("error", errors), ("warning", warnings), ("difference", differences)];
    let lines =
        kinds.iter().flat_map(|(kind, problems)| problems.iter().map(move |problem| format!("{kind}: {problem}\n")));
    lines.collect::<String>().replace(&format!("{}/", path.parent().unwrap().display()), "")
}

/// Returns the names and texts of the golden files in this directory that have one of the extensions.
pub fn golden_files(directory: &str, extensions: &[&str]) -> Vec<(String, String)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/config").join(directory);
    let paths = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let inputs = paths.filter(|path| extensions.iter().any(|extension| path.extension() == Some(extension.as_ref())));
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    inputs.map(|path| (name(&path), String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned())).collect()
}

/// Compares a text with a golden file.
pub fn assert_golden(path: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/config").join(path);
    if std::env::var_os("DIVVY_TEST_WRITE_DOCS").is_some() {
        std::fs::write(&path, found).unwrap();
    }
    let hint = "if this is right, run the test with DIVVY_TEST_WRITE_DOCS=1";
    assert_eq!(found, std::fs::read_to_string(&path).unwrap(), "{}: {hint}", path.display());
}

#[test]
fn files_have_the_reports_next_to_them() {
    let files = golden_files("golden", &["ini", "json"]);
    assert_eq!(files.len(), 28);
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/config/golden");
    for (name, _) in files {
        assert_golden(&format!("golden/{name}.report"), &report_on(&directory.join(&name)));
    }
}

#[test]
fn json_numbers_and_booleans_become_their_text() {
    let text = r#"{ "overrides": [{
        "operation": { "n": 1.50, "t": true, "s": "/*" }, "creditLimit": "7", "resetSeconds": 60.0
    }], "default": { "creditLimit": 0, "resetSeconds": 0, "label": "", "actorField": "", "comment": null } }"#;
    let loaded = parse(text, Format::Json, "rules.json").unwrap();
    let rules = loaded.rules.rules();
    let pairs: Vec<_> = rules[0].pairs().collect();
    assert_eq!(pairs, [("n", "1.50"), ("t", "true"), ("s", "/*")]);
    assert_eq!(rules[0].settings, window(7, 60));
    assert_eq!((&rules[1].label, rules[1].actor_field(), &rules[1].comment), (&None, None, &None));
}

#[test]
fn unreadable_file_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("huge.ini"), vec![b'\n'; MAX_FILE_BYTES as usize + 1]).unwrap();
    for (name, expected) in [
        (
            "none.ini",
            ": cannot read the file: No such file or directory (os error 2); check its path and its permissions",
        ),
        ("rules.yaml", ": unknown file extension; name a rules file *.ini or *.json"),
        ("huge.ini", ": the file is larger than 64 MiB; use fewer rules, with patterns instead of single values"),
    ] {
        let message = load(&directory.path().join(name)).unwrap_err().to_string();
        assert!(message.contains(&format!("/{name}{expected}")), "{message}");
    }
}

#[test]
fn examples_in_both_formats_have_the_same_rules_and_no_problems() {
    let load_example =
        |name: &str| load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config").join(name)).unwrap();
    let (ini, json) = (load_example("example.ini"), load_example("example.json"));
    assert_eq!(rules_of(&ini), rules_of(&json));
    assert_eq!((ini.warnings, json.warnings), (vec![], vec![]));
    let status = &ini.rules.rules()[0];
    assert_eq!(status.to_string(), "method=GET path=/status");
    assert_eq!(status.settings, window(1000, 60));
}

#[test]
fn algorithms_example_has_a_rule_for_each_and_no_problems() {
    let loaded = load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config/algorithms.ini")).unwrap();
    assert_eq!(loaded.warnings, vec![]);
    let algorithms: Vec<_> = loaded.rules.rules().iter().filter_map(|rule| rule.settings.algorithm).collect();
    for algorithm in Kind::ALL {
        assert!(algorithms.contains(&algorithm), "{}", algorithm.name());
    }
}

#[test]
fn settings_are_written_as_given() {
    let ini = "[default]\ncreditLimit = 10\nresetSeconds = 0.25\nalgorithm = token-bucket\n\
               refillSeconds = 3155759999.123456789\ncostField = bytes\n";
    let json = r#"{
  "overrides": [],
  "default": {
    "operation": {},
    "creditLimit": 10,
    "resetSeconds": 0.25,
    "algorithm": "token-bucket",
    "refillSeconds": 3155759999.123456789,
    "costField": "bytes"
  }
}
"#;
    let from_ini = parse(ini, Format::Ini, "").unwrap();
    assert_eq!(write(from_ini.rules.rules(), Format::Json).unwrap(), json);
    let from_json = parse(json, Format::Json, "").unwrap();
    assert_eq!(write(from_json.rules.rules(), Format::Ini).unwrap(), ini);
}

#[test]
fn deeply_nested_json_is_rejected() {
    let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
    let text = format!(r#"{{"overrides": [{{"operation": {{"a": {deep}}}, "label": {deep}}}], "default": {deep}}}"#);
    assert!(parse(&text, Format::Json, "deep.json").is_err());
}

#[test]
fn rule_that_ini_cannot_express_is_an_error() {
    let text = r#"{ "overrides": [{ "operation": { "a": "x \"y\"" }, "creditLimit": 1, "resetSeconds": 1 }],
                    "default": { "creditLimit": 0, "resetSeconds": 0 } }"#;
    let loaded = parse(text, Format::Json, "rules.json").unwrap();
    let Err(Unwritable::Ini { line, rule }) = write(loaded.rules.rules(), Format::Ini) else {
        panic!("a double quote inside of a value was written")
    };
    assert_eq!((line, rule.as_str()), (1, r#""a"="x \"y\"""#));
    assert_eq!(
        rules_of(&parse(&write(loaded.rules.rules(), Format::Json).unwrap(), Format::Json, "").unwrap()),
        rules_of(&loaded)
    );
}

/// Generates settings for every algorithm, each optional one given or not.
fn valid_settings() -> impl Strategy<Value = Settings> {
    let credits = || prop_oneof![1..4_u64, Just(MAX_CREDIT_LIMIT)];
    let seconds = || {
        let nanos = prop_oneof![Just(0), Just(250_000_000), 0..1_000_000_000_u32];
        let whole = prop_oneof![0..4_u64, Just(MAX_RESET_SECONDS - 1)];
        (whole, nanos).prop_map(|(whole, nanos)| Seconds(Duration::new(whole, nanos)))
    };
    let interval = seconds().prop_filter("a refill takes some time", |seconds| !seconds.is_zero());
    let algorithm = prop::option::of(prop::sample::select(&Kind::ALL[..]));
    let optional = (prop::option::of(credits()), prop::option::of(interval), prop::option::of(credits()));
    let zone = prop::sample::select(vec!["UTC", "Europe/Berlin", "Pacific/Apia"]);
    let calendar = (prop::sample::select(&Unit::ALL[..]), zone, prop_oneof![Just(0), 0..1440i32]);
    let calendar = calendar.prop_map(|(unit, zone, minute)| {
        let minute = if unit.has_time_of_day() { minute } else { 0 };
        Calendar::new(unit, zone, Time::midnight() + minute.minutes()).unwrap()
    });
    let lengths = (seconds(), prop::option::of(calendar));
    let settings = (prop_oneof![Just(0), credits()], lengths, algorithm, optional);
    settings.prop_map(
        |(credit_limit, (reset_seconds, calendar), algorithm, (refill_credits, refill_seconds, burst))| {
            let is = |kind| algorithm == Some(kind);
            let calendar = calendar.filter(|_| algorithm.is_none() || is(Kind::FixedWindow));
            Settings {
                credit_limit: if is(Kind::SlidingLog) { credit_limit.min(MAX_LOG_CREDITS) } else { credit_limit },
                reset_seconds: match calendar {
                    Some(_) => Seconds::default(),
                    None if is(Kind::Concurrency) => Seconds::whole(reset_seconds.0.as_secs() % 1_000 + 1),
                    None => reset_seconds,
                },
                algorithm,
                calendar,
                refill_credits: refill_credits.filter(|_| is(Kind::TokenBucket)),
                refill_seconds: refill_seconds.filter(|_| is(Kind::TokenBucket)),
                burst: burst.filter(|_| is(Kind::LeakyBucket)),
            }
        },
    )
}

/// Generates rules with awkward texts, each reachable by its own key, and a default rule.
fn valid_rules() -> impl Strategy<Value = Vec<Rule>> {
    let awkward = || prop_oneof![r#"[a\] ;#=\\'"\[\r\t*é]{0,6}"#, Just("null".to_owned()), "[a-z.]{1,5}"];
    let text = || prop::option::of(prop_oneof![awkward(), ".{1,9}"].prop_filter("empty is absent", |s| !s.is_empty()));
    let operation = prop::collection::btree_map(awkward(), awkward(), 0..3);
    let actor_fields = prop::collection::btree_set(
        prop_oneof![awkward(), ".{1,9}"]
            .prop_filter("a name that INI can write", |s| !s.is_empty() && !s.contains(',') && s.trim() == s),
        0..3,
    );
    let prefix = prop::option::of((0..=32_u8, 0..=128_u8));
    let fields = (actor_fields, text(), prefix);
    let rule = (operation, valid_settings(), fields, any::<(bool, bool)>(), text());
    let rule = rule.prop_map(|(pairs, settings, (actor_fields, cost_field, prefix), (canary, debt), comment)| Rule {
        operation: pairs.into_iter().map(|(key, value)| (key, Pattern::parse(&value))).collect(),
        actor_prefix: prefix.and_then(|(v4, v6)| {
            let field = actor_fields.iter().find(|field| !field.contains(':'))?.clone();
            Some(ActorPrefix { field, lengths: PrefixLengths { v4, v6 } })
        }),
        settings,
        quota: settings.quota().unwrap(),
        actor_fields: actor_fields.iter().cloned().collect(),
        cost_field,
        overrun: match settings.algorithm() {
            Kind::SlidingLog | Kind::Concurrency => Overrun::Refuse,
            _ if debt => Overrun::Debt,
            _ => Overrun::Refuse,
        },
        hold_field: comment
            .clone()
            .filter(|field| settings.algorithm() == Kind::Concurrency && !actor_fields.contains(field)),
        share: match settings.algorithm() {
            Kind::FixedWindow if !debt && !canary && settings.credit_limit < 1_000_000_000 => {
                NonZeroU32::new(settings.credit_limit as u32)
            }
            _ => None,
        },
        match_policy: if canary { MatchPolicy::Canary } else { MatchPolicy::Stop },
        comment,
        ..Rule::default()
    });
    prop::collection::vec(rule, 1..6).prop_map(|mut rules| {
        for (index, rule) in rules.iter_mut().enumerate() {
            rule.operation.push((format!("rule{index}"), Pattern::Any));
            let networks = ["10.0.0.0/8", "2001:db8::/32"].map(|network| Network::parse(network).unwrap());
            rule.networks = (index % 3 == 1).then(|| Condition {
                field: format!("rule{index}"),
                is_inverted: index % 2 == 0,
                members: List::of_networks(networks.to_vec()),
            });
            rule.label = (index % 2 == 0).then(|| format!("label-{index}"));
            let may_have_counter = rule.settings.algorithm() != Kind::SlidingLog;
            rule.counter = (index % 3 == 0 && may_have_counter).then(|| format!("counter-{index}"));
            rule.share = rule.share.filter(|_| rule.counter.is_none());
            if index % 2 == 1 && rule.overrun == Overrun::Debt {
                rule.quota_group = Some("group".to_owned());
                rule.overrun = Overrun::Count;
                rule.match_policy = if index == 1 { MatchPolicy::And } else { MatchPolicy::Stop };
            }
        }
        let default = rules.last_mut().unwrap();
        default.operation.clear();
        default.networks = None;
        default.match_policy = MatchPolicy::Stop;
        rules
    })
}

proptest! {
    #[test]
    fn written_operations_parse_to_the_same_pairs(rules in valid_rules()) {
        let json = write(&rules, Format::Json).unwrap();
        prop_assert_eq!(&rules_of(&parse(&json, Format::Json, "").unwrap()), &rules);
        match write(&rules, Format::Ini) {
            Ok(ini) => {
                let from_ini = parse(&ini, Format::Ini, "").unwrap();
                prop_assert_eq!(&rules_of(&from_ini), &rules);
                let json_again = write(from_ini.rules.rules(), Format::Json).unwrap();
                prop_assert_eq!(json_again, json);
            }
            Err(Unwritable::Json(error)) => prop_assert!(false, "{}", error),
            Err(Unwritable::Ini { rule: unwritable, .. }) => {
                let blocked = |text: &str| text.contains('"') || text.contains('\n');
                let rule = rules.iter().find(|rule| rule.to_string() == unwritable).unwrap();
                prop_assert!(rule.pairs().any(|(key, value)| blocked(key) || blocked(value)));
            }
        }
    }

    #[test]
    fn any_text_is_read_or_rejected(text in "([\\[\\]a=\"'{}:,;#\\\\0-9\n ]|creditLimit|default|overrides|operation){0,40}") {
        let _ = parse(&text, Format::Ini, "any.ini");
        let _ = parse(&text, Format::Json, "any.json");
    }
}

#[test]
fn window_length_may_have_a_unit_and_a_rule_that_denies_all_needs_none() {
    let ini = "[a=b]\ncreditLimit = 5\nper = 7d\n\n[default]\ncreditLimit = 0\n";
    let json = r#"{ "overrides": [{ "operation": { "a": "b" }, "creditLimit": 5, "per": "7d" }], "default": { "creditLimit": 0 } }"#;
    for (text, format) in [(ini, Format::Ini), (json, Format::Json)] {
        let loaded = parse(text, format, "rules").unwrap();
        let [limited, default] = loaded.rules.rules() else { panic!("{text}") };
        assert_eq!((limited.settings, default.quota), (window(5, 7 * 86_400), Quota::Never), "{text}");
    }
    for text in ["[default]\ncreditLimit = 1\n", "[default]\ncreditLimit = none\n", "[default]\n"] {
        let report = parse(text, Format::Ini, "rules").unwrap_err().to_string();
        assert!(report.contains("or `per = 1h`, or `window = day`"), "{report}");
    }
}

/// Writes rules with these settings, and the list `office.txt`, to a directory.
fn write_rules(settings: &str, list: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rules.ini");
    let rules = format!("[path=/login]\n{settings}\ncreditLimit = 5\nper = 1m\n\n[default]\ncreditLimit = 0\n");
    std::fs::write(&path, rules).unwrap();
    std::fs::write(dir.path().join("office.txt"), list).unwrap();
    (dir, path)
}

#[test]
fn conditions_are_read_from_both_formats() {
    let settings = "networks = ip: not 10.0.0.0/8,2001:db8::/32\nlist = user: office.txt\nactorField = ip\nactorPrefix = ip: 32, 56";
    let (dir, path) = write_rules(settings, b"# people\nalice\n");
    let loaded = load(&path).unwrap();
    assert_eq!(loaded.lists, [dir.path().join("office.txt")]);
    let rule = &loaded.rules.rules()[0];
    assert_eq!(rule.to_string(), "path=/login ip=* user=*", "the fields are added");
    assert_eq!(rule.networks.as_ref().unwrap().to_string(), "ip: not 10.0.0.0/8, 2001:db8::/32");
    assert_eq!(rule.list.as_ref().unwrap().to_string(), "user: office.txt");
    assert_eq!(rule.actor_prefix.as_ref().unwrap().to_string(), "ip: 32, 56");
    assert_eq!(loaded.differences.len(), 3);
    for format in [Format::Ini, Format::Json] {
        let written = write(loaded.rules.rules(), format).unwrap();
        let again = parse(&written, format, &path).unwrap();
        assert_eq!(rules_of(&again), rules_of(&loaded), "{written}");
    }
    let json = r#"{ "overrides": [{ "operation": { "path": "/login" }, "networks": { "ip": ["10.0.0.0/8", "::1"] },
        "actorField": "ip", "actorPrefix": { "ip": [24, 64] }, "creditLimit": 5, "per": "1m" }],
        "default": { "creditLimit": 0 } }"#;
    let loaded = parse(json, Format::Json, "rules.json").unwrap();
    let rule = &loaded.rules.rules()[0];
    assert_eq!(rule.networks.as_ref().unwrap().to_string(), "ip: 10.0.0.0/8, ::1");
    assert_eq!(rule.actor_prefix.as_ref().unwrap().to_string(), "ip: 24, 64");
}

#[test]
fn entries_of_lists_are_bounded() {
    let list = "::1\n".repeat(conditions::MAX_LIST_ENTRIES + 1);
    let (_dir, path) = write_rules("list = ip: office.txt", list.as_bytes());
    let report = load(&path).unwrap_err().to_string();
    assert!(report.contains("office.txt:1000001: the lists of the rules have more than 1000000 entries"), "{report}");
    let list: String =
        (0..=conditions::MAX_LEADING_STARS).map(|number| format!("*.{number}.example.org\nu{number}*\n")).collect();
    let (_dir, path) = write_rules("list = ip: office.txt", list.as_bytes());
    let report = load(&path).unwrap_err().to_string();
    let expected = "office.txt:20001: the lists of the rules have more than 10000 patterns that begin with `*`";
    assert!(report.contains(expected), "{report}");
}

/// Returns a file with one rule that has these settings, on lines 2 and below.
fn rule_with(settings: &str) -> String {
    format!("[path=/login ip=*]\n{settings}\ncreditLimit = 5\nper = 1m\n[default]\ncreditLimit = 0\n")
}

#[test]
fn penalty_is_read_from_both_formats() {
    let settings = "actorField = ip\nlabel = login\nblockAfter = 5\nblockWindow = 300\nblockSeconds = 15m\n\
        blockFactor = 3\nblockMax = 12h\nblockForget = 2w";
    let loaded = parse(&rule_with(settings), Format::Ini, "rules.ini").unwrap();
    let penalty = Penalty {
        after: 5,
        window: Some(300),
        seconds: 900,
        factor: Some(3),
        max: Some(12 * 3600),
        forget: Some(14 * 86_400),
    };
    assert_eq!(loaded.rules.rules()[0].penalty, Some(penalty));
    assert_eq!((loaded.warnings.len(), loaded.differences.len()), (0, 1));
    for format in [Format::Ini, Format::Json] {
        let written = write(loaded.rules.rules(), format).unwrap();
        assert_eq!(rules_of(&parse(&written, format, "rules").unwrap()), rules_of(&loaded), "{written}");
    }
    let least = "actorField = ip\nlabel = login\nblockAfter = 5\nblockSeconds = 900";
    let loaded = parse(&rule_with(least), Format::Ini, "rules.ini").unwrap();
    let written = write(loaded.rules.rules(), Format::Ini).unwrap();
    assert!(written.contains("blockAfter") && !written.contains("blockMax"), "only what was given: {written}");
    assert!(loaded.rules.rules()[0].summary().ends_with(", and blocks for 900 s after 5 denials in 60 s"));
}

#[test]
fn page_lists_every_algorithm_and_setting() {
    let rules = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/rules.md")).unwrap();
    for name in crate::rules::setting_name::NAMES {
        let has_row = rules.lines().any(|line| line.starts_with('|') && line.contains(&format!("`{name}`")));
        assert!(has_row, "{name} in docs/rules.md");
    }
    let row = rules.lines().find(|line| line.starts_with("| `algorithm` |"));
    for name in Kind::ALL.map(Kind::name) {
        assert!(row.is_some_and(|row| row.contains(&format!("`{name}`"))), "{name} in docs/rules.md");
        assert!(
            rules.lines().any(|line| line.starts_with(&format!("| `{name}` | "))),
            "{name} has a row in docs/rules.md"
        );
    }
}

#[test]
fn problems_repeat_only_the_beginning_of_a_long_header() {
    let (header, settings) = ("a=b ".repeat(1_000), "unknown = 1\n".repeat(3));
    let text = format!("[{header}]\n{settings}[default]\ncreditLimit = 0\n");
    let report = parse(&text, Format::Ini, "rules.ini").unwrap_err();
    assert!(
        report.errors.iter().all(|error| error.operation.as_ref().is_none_or(|shown| shown.len() < 300)),
        "{report}"
    );
}
