//! Whole files: the reports on broken files, the content of the examples, and lossless writing.

use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::ToSpan;
use jiff::civil::Time;
use proptest::prelude::*;

use super::*;
use crate::algorithm::{Kind, MAX_LOG_CREDITS};
use crate::calendar::{Calendar, Unit};
use crate::rules::{
    ActorPrefix, Condition, FinalSlash, MAX_CREDIT_LIMIT, MAX_RESET_SECONDS, MatchPolicy, Members, Network, NetworkSet,
    Overrun, Pattern, Penalty, PrefixLengths, Quota, Rule, Seconds, Settings, Spelling, setting_name,
};

/// Returns the rules without their line numbers, which differ from file to file.
fn rules_of(loaded: &Loaded) -> Vec<Rule> {
    loaded.rules.rules().iter().map(|rule| Rule { line: 0, ..rule.clone() }).collect()
}

/// Returns the settings of a rule without an algorithm.
fn window(credit_limit: u64, reset_seconds: u64) -> Settings {
    Settings { credit_limit, reset_seconds: Seconds::whole(reset_seconds), ..Settings::default() }
}

/// Returns the report on a file, one line per problem.
fn report_on(text: &str, file_name: &str) -> String {
    let format = Format::of(Path::new(file_name)).unwrap();
    let (errors, warnings) = match parse(text, format, file_name) {
        Ok(loaded) => (Vec::new(), loaded.warnings),
        Err(report) => (report.errors, report.warnings),
    };
    let errors = errors.iter().map(|problem| format!("error: {problem}\n"));
    errors.chain(warnings.iter().map(|problem| format!("warning: {problem}\n"))).collect()
}

/// Compares the report on a golden file with the file of that name plus `.report`.
macro_rules! golden {
    ($($test:ident: $file:literal,)*) => {$(
        #[test]
        fn $test() {
            let found = report_on(include_str!(concat!("golden/", $file)), $file);
            if std::env::var_os("DIVVY_TEST_WRITE_DOCS").is_some() {
                std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/src/config/golden/", $file, ".report"), found).unwrap();
            } else {
                let report = include_str!(concat!("golden/", $file, ".report"));
                assert_eq!(found, report, "if this is right, run the test with DIVVY_TEST_WRITE_DOCS=1");
            }
        }
    )*};
}

golden! {
    broken_ini_reports_all_problems_at_once: "broken.ini",
    broken_json_reports_all_problems_at_once: "broken.json",
    malformed_json_is_reported_with_its_line: "malformed.json",
    json_must_be_an_object: "array.json",
    json_must_not_be_empty: "empty.json",
    ini_needs_a_default_rule: "empty.ini",
    json_needs_a_default_rule: "null.json",
    default_rule_is_last_and_stops: "defaults.ini",
    harmless_oddities_are_warnings: "odd.ini",
    algorithm_settings_are_checked: "algorithms.ini",
    algorithm_settings_are_checked_in_json: "algorithms.json",
}

/// Returns the names and texts of the golden files in this directory that have one of the extensions.
pub fn golden_files(directory: &str, extensions: &[&str]) -> Vec<(String, String)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/config").join(directory);
    let paths = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let inputs = paths.filter(|path| extensions.iter().any(|extension| path.extension() == Some(extension.as_ref())));
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    inputs.map(|path| (name(&path), std::fs::read_to_string(&path).unwrap())).collect()
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
fn json_numbers_and_booleans_become_their_text() {
    let text = r#"{ "overrides": [{
        "operation": { "n": 1.50, "t": true, "s": "/*" }, "creditLimit": "7", "resetSeconds": 6e1
    }], "default": { "creditLimit": 0, "resetSeconds": 0, "label": "", "actorField": "", "comment": null } }"#;
    let loaded = parse(text, Format::Json, "rules.json").unwrap();
    let rules = loaded.rules.rules();
    let pairs: Vec<_> = rules[0].pairs().collect();
    assert_eq!(pairs, [("n", "1.50"), ("t", "true"), ("s", "/*")]);
    assert_eq!(rules[0].settings, window(7, 60));
    assert_eq!((&rules[1].label, rules[1].actor_field(), &rules[1].comment), (&None, None, &None));
}

#[test]
fn json_values_that_no_request_can_have_are_errors() {
    let rule = |operation: &str, settings: &str| {
        let text = format!(
            "{{\"overrides\": [{{\n\"operation\": {operation}, \"creditLimit\": 1, {settings} \"resetSeconds\": 6}}], \
             \"default\": {{\"creditLimit\": 0}}}}"
        );
        parse(&text, Format::Json, "r.json").unwrap_err().errors.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    for value in ["null", "[\"1\", \"2\"]", "{}"] {
        let found = rule(&format!("{{\"a\": {value}}}"), "");
        assert!(found[0].starts_with("r.json:2: the value of \"a\" in the operation is not a string"), "{found:?}");
    }
    for setting in ["networks", "list", "actorPrefix"] {
        let object = "{\"ip\": \"32, 56\",\n \"ip\": \"10.0.0.0/8\"}";
        let found = rule("{\"ip\": \"*\"}", &format!("\"{setting}\": {object},"));
        assert!(found.iter().any(|error| error.starts_with("r.json:3: \"ip\" is given twice")), "{found:?}");
    }
}

#[test]
fn json_numbers_that_buttons_divvy_reads_differently_are_reported() {
    let text = r#"{ "overrides": [
        { "operation": { "v": 1.0, "w": 7, "s": "1.0" }, "creditLimit": 1, "resetSeconds": 60 },
        { "operation": { "v": 1e3, "t": true }, "creditLimit": 1, "resetSeconds": 60 },
        { "operation": {
            "v": 12345678901234567890 }, "creditLimit": 1.0, "resetSeconds": 60 }
    ], "default": { "operation": {}, "creditLimit": 0, "resetSeconds": 0 } }"#;
    let loaded = parse(text, Format::Json, "r.json").unwrap();
    let differences: Vec<_> = loaded.differences.iter().map(ToString::to_string).collect();
    let fix = "write the value as a string if Button's Divvy reads the file, too";
    assert_eq!(
        differences,
        [
            format!("r.json:2: [v=1.0 w=7 s=1.0] Button's Divvy 1.7.1 reads v=1 here, not v=1.0; {fix}"),
            format!("r.json:3: [v=1e3 t=true] Button's Divvy 1.7.1 reads v=1000 here, not v=1e3; {fix}"),
            format!(
                "r.json:5: [v=12345678901234567890] Button's Divvy 1.7.1 reads v=12345678901234567000 here, not \
                 v=12345678901234567890; {fix}"
            ),
        ]
    );
    assert_eq!(loaded.warnings, []);
}

#[test]
fn unreadable_file_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let message = |name: &str, content: Option<&[u8]>| {
        let path = directory.path().join(name);
        if let Some(content) = content {
            std::fs::write(&path, content).unwrap();
        }
        let message = load(&path).unwrap_err().to_string();
        message.replace(&directory.path().display().to_string(), "DIR")
    };
    for (name, content, expected) in [
        (
            "none.ini",
            None,
            ": cannot read the file: No such file or directory (os error 2); check its path and its permissions",
        ),
        ("rules.txt", Some(&b""[..]), ": unknown file extension; name the file *.ini or *.json"),
        ("latin1.ini", Some(&b"[default]\n; \xe9\n"[..]), ":2: the file is not UTF-8; save it as UTF-8"),
    ] {
        assert_eq!(message(name, content), format!("DIR/{name}{expected}"));
    }
    let yaml = message("rules.yaml", Some(b""));
    assert!(
        yaml.starts_with("DIR/rules.yaml: rules are not written in YAML; if it is envoyproxy/ratelimit's"),
        "{yaml}"
    );
    let huge = vec![b'\n'; MAX_FILE_BYTES as usize + 1];
    assert_eq!(
        message("huge.ini", Some(&huge)),
        "DIR/huge.ini: the file is larger than 64 MiB; use fewer rules, with patterns instead of single values"
    );
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
fn page_lists_every_algorithm_and_setting() {
    let rules = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/rules.md")).unwrap();
    for name in setting_name::NAMES {
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
fn settings_are_written_as_given() {
    let ini = "[a=1]\n\
               creditLimit = 10\n\
               resetSeconds = 0.25\n\
               algorithm = token-bucket\n\
               refillCredits = 5\n\
               refillSeconds = 3155759999.123456789\n\
               costField = bytes\n\
               \n\
               [default]\n\
               creditLimit = 1\n\
               resetSeconds = 60\n";
    let json = r#"{
  "overrides": [
    {
      "operation": {
        "a": "1"
      },
      "creditLimit": 10,
      "resetSeconds": 0.25,
      "algorithm": "token-bucket",
      "refillCredits": 5,
      "refillSeconds": 3155759999.123456789,
      "costField": "bytes"
    }
  ],
  "default": {
    "operation": {},
    "creditLimit": 1,
    "resetSeconds": 60
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
                members: Members::Networks(NetworkSet::new(networks.to_vec())),
            });
            rule.label = (index % 2 == 0).then(|| format!("label-{index}"));
            let may_have_counter = rule.settings.algorithm() != Kind::SlidingLog;
            rule.counter = (index % 3 == 0 && may_have_counter).then(|| format!("counter-{index}"));
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
fn window_length_may_have_a_unit() {
    let ini = "[a=b]\ncreditLimit = 5\nper = 7d\n\n[default]\ncreditLimit = 0\n";
    let json = r#"{ "overrides": [{ "operation": { "a": "b" }, "creditLimit": 5, "per": "7d" }], "default": { "creditLimit": 0 } }"#;
    for (text, format) in [(ini, Format::Ini), (json, Format::Json)] {
        let loaded = parse(text, format, "rules").unwrap();
        assert_eq!(loaded.rules.rules()[0].settings, window(5, 7 * 86_400), "{text}");
    }
    let rows = r#"
        resetSeconds = 60; per = 1m => 4: [default] `per` and `resetSeconds` both set the length of the window; keep one of them
        per = 1 month => 3: [default] `per` is not a time, such as 90s or 1h30m (units: ms, s, m, h, d and w): "1 month"; write the length of a window, for example `90s`, `5m`, `12h`, `7d` or `2w`
        per = 99999w => 3: [default] `per` is 99999w, but at most 36525d, which is 100 years; write a smaller number
    "#;
    assert_reports(rows, report_on_default);
}

#[test]
fn rule_that_denies_all_needs_no_window() {
    let ini = "[a=b]\ncreditLimit = 0\n\n[default]\ncreditLimit = 0\n";
    let json = r#"{ "overrides": [{ "operation": { "a": "b" }, "creditLimit": 0 }], "default": { "creditLimit": 0 } }"#;
    for (text, format) in [(ini, Format::Ini), (json, Format::Json)] {
        let loaded = parse(text, format, "rules").unwrap();
        assert!(loaded.rules.rules().iter().all(|rule| rule.quota == Quota::Never), "{text}");
    }
    for text in ["[default]\ncreditLimit = 1\n", "[default]\ncreditLimit = none\n", "[default]\n"] {
        let report = parse(text, Format::Ini, "rules").unwrap_err().to_string();
        assert!(report.contains("add `per`, `resetSeconds` or `window`"), "{report}");
    }
}

/// Checks the reports on settings: each row is `settings => report`, and `; ` separates the settings.
fn assert_reports(rows: &str, report: impl Fn(&str) -> String) {
    for row in rows.trim().lines() {
        let (settings, expected) = row.trim().split_once(" => ").unwrap();
        assert_eq!(report(&settings.replace("; ", "\n")), expected, "{settings}");
    }
}

/// Returns the report on a default rule with these settings, on lines 3 and below.
fn report_on_default(settings: &str) -> String {
    let report = report_on(&format!("[default]\ncreditLimit = 5\n{settings}\n"), "rules.ini");
    report.trim_start_matches("error: rules.ini:").trim_end().to_owned()
}

#[test]
fn calendar_window_errors_name_the_problem() {
    for settings in ["window = day", "window = month\ntimezone = europe/berlin\nresetAt = 06:30"] {
        assert_eq!(report_on_default(settings), "");
    }
    let rows = r#"
        window = day; resetSeconds = 60 => 3: [default] `window` and `resetSeconds` both set the length of the window; keep one of them
        per = 1d; window = day => 4: [default] `window` and `per` both set the length of the window; keep one of them
        window = fortnight => 3: [default] unknown window "fortnight"; write `minute`, `hour`, `day`, `week`, `month` or `year`
        window = day; timezone = Atlantis => 4: [default] unknown time zone "Atlantis"; write an IANA name, such as `Europe/Berlin` or `UTC`
        resetSeconds = 1; timezone = UTC => 4: [default] `timezone` has no meaning without `window`; add `window = day`
        window = hour; resetAt = 06:00 => 4: [default] `resetAt` is a time of day, but the window is one hour; remove it, or write a longer window
        window = day; resetAt = 6 => 4: [default] `resetAt` is not a time of day: "6"; write hours and minutes, for example `06:00`
        window = day; algorithm = token-bucket => 3: [default] `window` is a setting of fixed-window, and this rule's algorithm is token-bucket; remove it, or set `algorithm = fixed-window`
    "#;
    assert_reports(rows, report_on_default);
}

#[test]
fn named_counter_errors_name_the_problem() {
    let plan = |plan: &str, settings: &str| {
        format!("[plan={plan} user=*]\nlabel = {plan}\nactorField = user\ncounter = usage\n{settings}\n\n")
    };
    let report = |rules: &[String]| report_on(&format!("{}[default]\ncreditLimit = 0\n", rules.concat()), "rules.ini");
    let free = plan("free", "creditLimit = 10\nresetSeconds = 60");
    for other in ["creditLimit = 20\nper = 1m", "creditLimit = 0"] {
        assert_eq!(report(&[free.clone(), plan("pro", other)]), "");
    }
    let sliding_log = "`counter` keeps usage as one number, but sliding-log keeps the time of each hit; set `algorithm = \
        sliding-window`, or remove it";
    for (settings, line, expected) in [
        ("resetSeconds = 61", 8, "keeps the counter usage with another window or refill; let them"),
        ("window = minute", 8, "keeps the counter usage with another window or refill;"),
        ("resetSeconds = 60\nalgorithm = sliding-window", 8, "keeps the counter usage with another algorithm;"),
        ("resetSeconds = 60\nalgorithm = sliding-log", 11, sliding_log),
        ("resetSeconds = 0", 11, "`counter` has no effect"),
    ] {
        let settings = format!("creditLimit = 20\n{settings}");
        let report = report(&[free.clone(), plan("pro", &settings)]);
        assert!(report.contains(&format!("rules.ini:{line}: [plan=pro user=*] ")), "{settings}: {report}");
        assert!(report.contains(expected) && !report.trim_end().contains('\n'), "{settings}: {report}");
    }
    let tokens =
        |plan_name, more: &str| plan(plan_name, &format!("algorithm = token-bucket\nresetSeconds = 60\n{more}"));
    assert_eq!(report(&[tokens("free", "creditLimit = 10"), tokens("pro", "creditLimit = 20")]), "");
    let other_refill =
        report(&[tokens("free", "creditLimit = 10"), tokens("pro", "creditLimit = 20\nrefillCredits = 5")]);
    assert!(other_refill.contains("with another window or refill;"), "{other_refill}");
    let by_plan =
        report(&[free.clone(), plan("pro", "creditLimit = 20\nper = 1h").replace("= user\n", "= user, plan\n")]);
    assert!(by_plan.contains("with another window or refill and another actorField;"), "{by_plan}");
    assert!(report(&[free.replace("usage", "a b")]).contains("invalid counter \"a b\""));
}

#[test]
fn rules_that_count_a_request_twice_are_rejected() {
    let rule = |header: &str, more: &str| {
        format!("[{header}]\ncreditLimit = 10\nper = 1m\nactorField = user\ncounter = usage\n{more}\n\n")
    };
    let report = |rules: &[String]| report_on(&format!("{}[default]\ncreditLimit = 0\n", rules.concat()), "rules.ini");
    for policy in ["matchPolicy = and", "matchPolicy = canary"] {
        let twice = report(&[rule("user=* a=1", policy), rule("user=* b=1", "")]);
        assert!(
            twice.contains(
                "error: rules.ini:8: [user=* b=1] a request may match this rule and the one on line 1, and both take \
                 from one counter; make sure that no request matches both"
            ),
            "{twice}"
        );
        let never = report(&[rule("user=* a=1", policy), rule("user=* a=2", "")]);
        assert!(!never.contains("from one counter"), "{never}");
    }
    assert_eq!(report(&[rule("user=* a=1", ""), rule("user=*", "")]), "");
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
        let again = parse_as(&written, format, &path).unwrap();
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
fn mistakes_in_conditions_are_reported() {
    let report = |settings: &str, list: &[u8]| {
        let (dir, path) = write_rules(settings, list);
        let text = load(&path).map_or_else(|report| report.to_string(), |_| "no errors".to_owned());
        text.replace(&dir.path().display().to_string(), "DIR")
    };
    let rows = r#"
        networks = ip => DIR/rules.ini:2: [path=/login] `networks` has no field with a colon: ip; write `ip: 10.0.0.0/8, 2001:db8::/32`, or in JSON {"ip": "10.0.0.0/8, 2001:db8::/32"}
        networks = ip: 10.0.0.1/8 => DIR/rules.ini:2: [path=/login] "10.0.0.1/8" is not a network: its address has bits after the prefix; write 10.0.0.0/8
        networks = ip: MANY => DIR/rules.ini:2: [path=/login] `networks` has 65 networks, but at most 64; write them to a file, one a line, and name it in `list`
        list = ip: none.txt => DIR/rules.ini:2: [path=/login] cannot read the list DIR/none.txt: No such file or directory (os error 2); check its path, which begins at the directory of the rules file, and its permissions
        actorPrefix = ip: 32, 56 => DIR/rules.ini:2: [path=/login] `actorPrefix` is about "ip", which is not in `actorField`; add `actorField = ip`, or remove it
        actorField = ip; actorPrefix = ip: 33, 56 => DIR/rules.ini:3: [path=/login] `actorPrefix` is not two lengths: "33, 56"; write the bits of IPv4 networks, up to 32, and of IPv6 networks, up to 128: `ip: 32, 56`
    "#;
    let many = vec!["::1"; 65].join(", ");
    assert_reports(rows, |settings| report(&settings.replace("MANY", &many), b""));
    let lines = "10.0.0.0/8\n10.0.0.1/8\n\n300.1.1.1\n".to_owned() + &"1.1.1.1/33\n".repeat(20);
    let text = report("list = ip: office.txt", lines.as_bytes());
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(
        lines[1],
        "DIR/office.txt:2: \"10.0.0.1/8\" is not a network: its address has bits after the prefix; write 10.0.0.0/8"
    );
    assert!(lines[0].starts_with("DIR/office.txt: 2 more lines are wrong") && lines.len() == 21, "{text}");
    assert!(report("list = ip: office.txt", b"a\n\xff\n").starts_with("DIR/office.txt:2: the line is not UTF-8"));
    let default = "[default]\ncreditLimit = 0\nnetworks = ip: ::1\n";
    let report = parse(default, Format::Ini, "rules.ini").unwrap_err().to_string();
    assert!(report.contains("the default rule answers every request, so it cannot have `networks`"), "{report}");
    let in_memory = "[ip=*]\ncreditLimit = 0\nlist = ip: office.txt\n[default]\ncreditLimit = 0\n";
    let report = parse(in_memory, Format::Ini, "rules.ini").unwrap_err().to_string();
    assert!(report.contains("the rules are not in a file"), "{report}");
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

#[test]
fn containment_of_networks_is_reported() {
    let rule = |networks: &str| format!("[ip=*]\nnetworks = ip: {networks}\ncreditLimit = 5\nper = 1m\n\n");
    let check = |first: &str, second: &str| {
        let text = rule(first) + &rule(second) + "[default]\ncreditLimit = 0\n";
        parse(&text, Format::Ini, "r.ini").map_or_else(|report| report.to_string(), |_| String::new())
    };
    let unreachable = "r.ini:6: [ip=*] unreachable: [ip=*] on line 1 answers every request that this rule matches; move \
        this rule above that one, or remove it";
    assert_eq!(check("10.0.0.0/8, ::/0", "10.1.0.0/16, 10.2.0.0/16"), unreachable);
    assert_eq!(check("10.0.0.0/9, 10.128.0.0/9", "10.0.0.0/8"), unreachable);
    assert_eq!(check("not 10.1.0.0/16", "not 10.0.0.0/8"), unreachable);
    assert_eq!(check("not 11.0.0.0/8", "10.0.0.0/8"), unreachable);
    for (first, second) in
        [("10.1.0.0/16", "10.0.0.0/8"), ("10.0.0.0/8", "not 11.0.0.0/8"), ("not 10.0.0.0/8", "10.0.0.0/7")]
    {
        assert_eq!(check(first, second), "", "{first} before {second}");
    }
    let twice = check("10.0.0.0/8, ::1", "::1, 10.0.0.0/8");
    assert!(twice.contains("remove one of them, or add `matchPolicy = and` to the first"), "{twice}");
    let globs =
        "[ip=10.*]\ncreditLimit = 5\nper = 1m\n".to_owned() + &rule("10.0.0.0/8") + "[default]\ncreditLimit = 0\n";
    assert!(parse(&globs, Format::Ini, "r.ini").is_ok(), "nothing is said about networks and globs");
    let literal = rule("10.0.0.0/8") + "[ip=10.1.2.3]\ncreditLimit = 5\nper = 1m\n[default]\ncreditLimit = 0\n";
    assert!(parse(&literal, Format::Ini, "r.ini").unwrap_err().to_string().contains("unreachable"));
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
fn mistakes_in_a_penalty_are_reported() {
    let report = |settings: &str| {
        let text = rule_with(settings);
        parse(&text, Format::Ini, "r.ini")
            .map_or_else(|report| report.to_string(), |loaded| format!("{:?}", loaded.warnings))
    };
    let who = "actorField = ip\nlabel = login\n";
    let rows = r#"
        actorField = ip; blockAfter = 5; blockSeconds = 60 => 3: [path=/login ip=*] `blockAfter` needs a `label`: blocks belong to it; add a name, for example `label = logins`
        label = login; blockAfter = 5; blockSeconds = 60 => 3: [path=/login ip=*] `blockAfter` blocks single actors, and the rule has no `actorField`; add `actorField`, for example `actorField = ip`
        WHO; blockAfter = 5 => 4: [path=/login ip=*] `blockAfter` needs `blockSeconds`, the length of the first block; add it, for example `blockSeconds = 15m`
        WHO; blockSeconds = 15m => 4: [path=/login ip=*] `blockSeconds` has no meaning without `blockAfter`; add `blockAfter = 5`, or remove it
        WHO; blockAfter = 1001; blockSeconds = 60 => 4: [path=/login ip=*] `blockAfter` is 1001, but must be from 1 to 1000; write the number of denials that lead to a block
        WHO; blockAfter = 5; blockSeconds = 0.5 => 5: [path=/login ip=*] `blockSeconds` is not a whole number: "0.5"; write the length of the first block in seconds, for example `900` or `15m`
        WHO; blockAfter = 5; blockSeconds = 15m; blockMax = 60 => 6: [path=/login ip=*] `blockMax` is 60, but must be from 900 to 3155760000; write the length of the longest block in seconds
        WHO; blockAfter = 5; blockSeconds = 15m; blockFactor = 0 => 6: [path=/login ip=*] `blockFactor` is 0, but must be from 1 to 100; write how many times as long as the one before each block is
        WHO; blockAftr = 5; blockSeconds = 15m => 4: [path=/login ip=*] unknown setting `blockAftr`; did you mean `blockAfter`?
    "#;
    assert_reports(rows, |settings| report(&settings.replace("WHO\n", who)).trim_start_matches("r.ini:").to_owned());
    let never =
        format!("[ip=*]\n{who}creditLimit = 0\nblockAfter = 5\nblockSeconds = 60\n[default]\ncreditLimit = 0\n");
    let loaded = parse(&never, Format::Ini, "r.ini").unwrap();
    let warnings: Vec<_> = loaded.warnings.iter().map(ToString::to_string).collect();
    assert!(warnings[0].contains("`blockAfter` has no effect: the rule counts nothing"), "{warnings:?}");
}

/// Returns the problems of a rules file with a list, for a server whose checks have the default pairs.
fn problems_for_checks(rules: &str, list: &str) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("list.txt"), list).unwrap();
    let path = dir.path().join("rules.ini");
    std::fs::write(&path, format!("{rules}\n[default]\ncreditLimit = 0\n")).unwrap();
    let spelling = |key: &str, spelling| (key.to_owned(), spelling);
    let spellings = [
        spelling("method", Spelling::Method),
        spelling("path", Spelling::Path(FinalSlash::Keep)),
        spelling("host", Spelling::Host),
        spelling("ip", Spelling::Address),
    ];
    let serving = Serving { spellings: spellings.into_iter().collect(), ..Serving::default() };
    let report = load_for(&path, &serving).err();
    let errors = report.into_iter().flat_map(|report| report.errors);
    errors.map(|error| error.to_string().replace(&format!("{}/", dir.path().display()), "")).collect()
}

#[test]
fn rules_that_are_the_same_for_checks_are_reported() {
    let limit = "creditLimit = 1\nper = 1m\n";
    for (first, second) in [
        ("host=Shop.example", "host=shop.example:443"),
        ("path=//x", "path=/x"),
        ("path=/./a/*", "path=//a/b"),
        ("ip=2001:db8::1", "ip=2001:DB8::1"),
        ("method=get", "method=GET"),
    ] {
        let problems = problems_for_checks(&format!("[{first}]\n{limit}[{second}]\n{limit}"), "");
        let expected = format!("rules.ini:4: [{second}] unreachable: [{first}] on line 1 answers every check");
        assert!(problems.iter().any(|problem| problem.starts_with(&expected)), "{problems:?}");
    }
    let apart = format!(
        "[path=//x user=a]\n{limit}[path=/x user=b]\n{limit}[host=a.example]\n{limit}[host=*.example]\n{limit}"
    );
    assert_eq!(problems_for_checks(&apart, ""), [""; 0]);
}

#[test]
fn entry_of_a_list_that_no_check_has_is_an_error_with_its_line() {
    for (field, entries) in [
        ("host", ["https://shop.example", "a,b", "*:8443"].as_slice()),
        ("path", &["/search?q=1", "https://shop.example/", "*/../x", "\"/a?b\""]),
        ("method", &["GET, HEAD", "10.0.0.0/8"]),
        ("ip", &["10.0.0.O", "10.0.0", "2001:db8:", "http://10.0.0.1/", "deny from 10.0.0", "::ffff:10.*"]),
    ] {
        for entry in entries {
            let rules = format!("[{field}=*]\nlist = {field}: list.txt\ncreditLimit = 0\n");
            let problems = problems_for_checks(&rules, &format!("# entries\n{entry}\n"));
            assert!(problems.len() == 1 && problems[0].starts_with("list.txt:2: "), "{entry}: {problems:?}");
        }
    }
    let entries = "user 10.0.0.O|user GET, HEAD|user 1.2|ip \"10.0.0.O\"|ip 10.*|ip unknown|host SHOP.example:443|\
        host 10.0.0.0/8|path //a|method get";
    for (field, entry) in entries.split('|').filter_map(|row| row.split_once(' ')) {
        let rules = format!("[{field}=*]\nlist = {field}: list.txt\ncreditLimit = 0\n");
        assert_eq!(problems_for_checks(&rules, entry), [""; 0], "{field} {entry}");
    }
}
