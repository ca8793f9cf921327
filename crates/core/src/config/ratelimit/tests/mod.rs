//! Conversions of whole files, and the reports on files that cannot be converted completely.

mod reference;

use super::*;
use crate::config::{Format, parse, write};
use crate::rules::{MatchPolicy, Quota};

/// Converts files given as name and text. Returns the rules and a report with one line for each problem.
fn import_texts(files: &[(&str, &str)]) -> (Result<Vec<Rule>, ()>, String) {
    let mut importer = Importer::default();
    for (name, text) in files {
        importer.add(Some(text), name, Problems::new(name));
    }
    let (rules, errors, warnings) = match importer.finish() {
        Ok(import) => (Ok(import.rules), import.left_out, import.warnings),
        Err(report) => (Err(()), report.errors, report.warnings),
    };
    let errors = errors.iter().map(|problem| format!("left out: {problem}\n"));
    (rules, errors.chain(warnings.iter().map(|problem| format!("warning: {problem}\n"))).collect())
}

fn refused(text: &str) -> String {
    let (rules, report) = import_texts(&[("rules.yaml", text)]);
    assert!(rules.is_err(), "{text}: {report}");
    report
}

/// Compares the rules of a file next to this one, and the report on it, with the files of that name plus `.ini` and
/// `.report`. The rules must be valid in both formats.
macro_rules! golden {
    ($($test:ident: $file:literal,)*) => {$(
        #[test]
        fn $test() {
            let (rules, report) = import_texts(&[($file, include_str!(concat!("../golden/", $file)))]);
            let rules = rules.unwrap();
            let ini = write(&rules, Format::Ini).unwrap();
            parse(&ini, Format::Ini, "rules.ini").unwrap();
            parse(&write(&rules, Format::Json).unwrap(), Format::Json, "rules.json").unwrap();
            if std::env::var_os("DIVVY_TEST_WRITE_DOCS").is_some() {
                let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/config/ratelimit/golden/", $file, ".ini");
                std::fs::write(path, &ini).unwrap();
                return;
            }
            let written = include_str!(concat!("../golden/", $file, ".ini"));
            assert_eq!(ini, written, "if this is right, run the test with DIVVY_TEST_WRITE_DOCS=1");
            assert_eq!(report, include_str!(concat!("../golden/", $file, ".report")));
        }
    )*};
}

golden! {
    convertible_entries_are_converted: "everything.yaml",
    left_out_entries_are_listed: "left-out.yaml",
}

#[test]
fn ratelimits_example_is_converted_completely() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config/ratelimit.yaml");
    let import = import(&[example]).unwrap();
    assert_eq!((import.left_out, import.warnings), (vec![], vec![]));
}

#[test]
fn domains_of_several_files_stay_separate() {
    let file = |domain: &str| {
        format!("domain: {domain}\ndescriptors: [{{key: a, rate_limit: {{unit: day, requests_per_unit: 1}}}}]")
    };
    let (one, other) = (file("one"), file("other"));
    let (rules, report) = import_texts(&[("1.yaml", &one), ("2.yaml", &other)]);
    let headers: Vec<_> = rules.unwrap().iter().map(Rule::to_string).collect();
    assert_eq!((headers.join(", ").as_str(), report.as_str()), ("domain=one a=*, domain=other a=*, default", ""));
    let (rules, report) = import_texts(&[("1.yaml", &one), ("2.yaml", &one)]);
    assert!(rules.is_err());
    assert_eq!(
        report,
        "left out: 2.yaml:1: the domain \"one\" is in 1.yaml:1, too; put all descriptors of a domain in one document\n"
    );
}

#[test]
fn invalid_configuration_is_rejected_with_its_line() {
    assert!(refused("domain: a\ndescriptors:\n  - key: [").starts_with("left out: rules.yaml:3"));
    assert!(refused("domain: a\ndescriptors:\n  key: a\n").starts_with("left out: rules.yaml:3"));
    assert!(refused("domain: a\ndescriptors:\n  - a\n").starts_with("left out: rules.yaml:3"));
    assert!(refused("descriptors: []\n").contains("`domain` is missing"));
    assert!(refused("").starts_with("left out: rules.yaml:1"));
    assert!(refused("domain: a*\n").starts_with("left out: rules.yaml:1: the domain \"a*\" has a `*`"));
}

#[test]
fn null_counts_as_missing() {
    let (rules, report) =
        import_texts(&[("a.yaml", "domain: a\ndescriptors:\n  - key: k\n    value: ~\n    rate_limit:\n")]);
    assert_eq!((rules.unwrap().len(), report.as_str()), (1, ""));
    let (rules, report) = import_texts(&[("a.yaml", "domain: a\ndescriptors:\n")]);
    assert_eq!((rules.unwrap().len(), report.as_str()), (1, ""));
}

#[test]
fn deeply_nested_yaml_is_rejected() {
    let deep = format!("domain: a\ndescriptors: {}", "[{key: a, descriptors: ".repeat(100_000));
    // Tests are not optimized, so the parser's frames are larger than in the server.
    let thread = std::thread::Builder::new().stack_size(16 << 20);
    thread.spawn(move || assert!(refused(&deep).starts_with("left out: rules.yaml:"))).unwrap().join().unwrap();
}

/// Returns the YAML of a domain with these entries, one per line from line 3 on.
fn domain(entries: &[&str]) -> String {
    entries.iter().fold("domain: a\ndescriptors:\n".to_owned(), |text, entry| text + "- " + entry + "\n")
}

/// Returns each rule with a counter, and whether it is a canary.
fn counted(rules: &[Rule]) -> Vec<(String, bool)> {
    let counted = rules.iter().filter(|rule| !matches!(rule.quota, Quota::Always { .. }));
    counted.map(|rule| (rule.to_string(), rule.match_policy == MatchPolicy::Canary)).collect()
}

const LIMIT: &str = "rate_limit: {unit: day, requests_per_unit: 1}";

#[test]
fn single_quota_of_a_domain_becomes_an_ordinary_limit() {
    let quota = format!("{{key: k, value: x, quota_mode: true, {LIMIT}}}");
    let ordinary = format!("{{key: l, {LIMIT}}}");
    let idle = "{key: m, quota_mode: true}".to_owned();
    let unlimited = "{key: n, quota_mode: true, rate_limit: {unlimited: true}}".to_owned();
    let file = domain(&[&quota, &ordinary, &idle, &unlimited]);
    let other = file.replace("domain: a", "domain: b");
    let (rules, report) = import_texts(&[("1.yaml", &file), ("2.yaml", &other)]);
    let expected = ["domain=a k=x", "domain=a l=*", "domain=b k=x", "domain=b l=*"];
    assert_eq!(counted(&rules.unwrap()), expected.map(|rule| (rule.to_owned(), false)));
    assert!(!report.contains("left out"), "{report}");
    assert!(report.contains("1.yaml:5: [domain=a m=*] `quota_mode` has no effect on an entry without `rate_limit`"));
    assert!(report.contains("1.yaml:6: [domain=a n=*] `quota_mode` has no effect on an unlimited entry"), "{report}");
}

#[test]
fn single_quota_that_a_request_can_send_twice_causes_a_warning() {
    let (rules, report) = import_texts(&[("a.yaml", &domain(&[&format!("{{key: k, quota_mode: true, {LIMIT}}}")]))]);
    assert_eq!(counted(&rules.unwrap()), [("domain=a k=*".to_owned(), false)]);
    assert!(report.starts_with("warning: a.yaml:3: [domain=a k=*] `quota_mode` becomes an ordinary limit"), "{report}");
}

#[test]
fn several_quotas_of_a_domain_are_rejected_each_with_its_line() {
    let quota = |key: &str| format!("{{key: {key}, value: x, quota_mode: true, {LIMIT}}}");
    let nested = format!("{{key: k, descriptors: [{}]}}", quota("l"));
    // An entry that no rule can express still counts in ratelimit.
    let inexpressible = quota("domain");
    for (entries, lines) in [
        (vec![quota("k"), quota("l"), quota("m")], vec![3, 4, 5]),
        (vec![quota("k"), nested], vec![3, 4]),
        (vec![quota("k"), inexpressible], vec![3]),
        // In ratelimit, the first quota never denies a request that also has the second one.
        (vec![quota("k"), format!("{{key: l, shadow_mode: true, quota_mode: true, {LIMIT}}}")], vec![3]),
    ] {
        let entries: Vec<&str> = entries.iter().map(String::as_str).collect();
        let (rules, report) = import_texts(&[("a.yaml", &domain(&entries))]);
        assert!(counted(&rules.unwrap()).iter().all(|(_, is_canary)| *is_canary), "{report}");
        let refused = report.lines().filter(|line| line.contains("`quota_mode` is also set on line"));
        let refused: Vec<u32> = refused.map(|line| line.split(':').nth(2).unwrap().parse().unwrap()).collect();
        assert_eq!(refused, lines, "{report}");
    }
    let one_line = format!("domain: a\ndescriptors: [{}, {}]", quota("k"), quota("l"));
    let (rules, report) = import_texts(&[("a.yaml", &one_line)]);
    assert_eq!((counted(&rules.unwrap()), report.matches("the limit is left out").count()), (vec![], 2), "{report}");
}

#[test]
fn single_quota_in_shadow_mode_becomes_a_canary() {
    let both = format!("{{key: k, value: x, shadow_mode: true, quota_mode: true, {LIMIT}}}");
    let (rules, report) = import_texts(&[("a.yaml", &domain(&[&both]))]);
    assert_eq!((counted(&rules.unwrap()), report.as_str()), (vec![("domain=a k=x".to_owned(), true)], ""));
}

const ONE: &str = "domain: one\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1}}]\n";

/// Returns the operations of the rules, and the report.
fn converted(text: &str) -> (String, String) {
    let (rules, report) = import_texts(&[("rules.yaml", text)]);
    let operations: Vec<_> = rules.unwrap().iter().map(Rule::to_string).collect();
    (operations.join(", "), report)
}

/// Returns a ConfigMap with these texts.
fn manifest(texts: &str) -> String {
    format!("kind: ConfigMap\ndata:\n{texts}")
}

/// Returns a text of a ConfigMap.
fn block(name: &str, text: &str) -> String {
    format!("  {name}: |\n    {}\n", text.trim_end().replace('\n', "\n    "))
}

#[test]
fn all_documents_and_config_maps_of_a_file_are_read() {
    let other = ONE.replace("one", "other");
    let only_first = "warning: rules.yaml:4: this is not the first document, and ratelimit itself reads only that one; \
                      write a file for each domain if ratelimit is to read them, too\n";
    for text in
        [ONE.to_owned(), format!("---\n{ONE}---\n"), format!("\u{feff}{ONE}"), format!("{ONE}---\n---\n# end\n")]
    {
        assert_eq!(converted(&text), ("domain=one a=*, default".into(), String::new()), "{text}");
    }
    let (rules, report) = converted(&format!("{ONE}---\n{other}"));
    assert_eq!((rules.as_str(), report.as_str()), ("domain=one a=*, domain=other a=*, default", only_first));

    let deployment = "---\nkind: Deployment\nspec: {replicas: 1}\n";
    let text = manifest(&(block("a.yaml", ONE) + &block("b.yaml", &other))) + deployment;
    let (rules, report) = converted(&text);
    assert_eq!(rules, "domain=one a=*, domain=other a=*, default");
    assert_eq!(report, "warning: rules.yaml:10: the Deployment is skipped: it has no limits; nothing to do\n");

    let wrong = manifest(&(block("a.yaml", ONE) + &block("b.yaml", &other.replace("day", "eon"))));
    assert!(
        converted(&wrong).1.contains("rules.yaml:8: [domain=other a=*] unknown unit \"eon\""),
        "lines are the file's"
    );
    let quoted = manifest("  a.yaml: \"domain: one\\ndescriptors: []\"\n");
    assert_eq!(converted(&quoted).0, "default");
    let twice = refused(&format!("{ONE}---\n{ONE}"));
    assert!(twice.contains("rules.yaml:4: the domain \"one\" is in rules.yaml:1, too"), "{twice}");
}

#[test]
fn files_of_other_programs_are_named_for_what_they_are() {
    for (text, expected) in [
        ("", "rules.yaml:1: `domain` is missing, because the file is empty"),
        ("- namespace: a\n  max_value: 1\n", "rules.yaml:1: this is a list, as limitador's limits are"),
        (
            "kind: ConfigMap\ndata:\n  limits.yaml: |\n    - namespace: a\n",
            "rules.yaml:4: this is a list, as limitador's",
        ),
        ("kind: ConfigMap\n", "rules.yaml:1: the ConfigMap has no `data`"),
        ("kind: Service\n---\nkind: Deployment\n", "rules.yaml:1: this is a Kubernetes manifest (Deployment, Service)"),
        ("rateLimitsByDomain: {a: []}\n", "rules.yaml:1: these are the actions of Envoy's routes"),
        ("image: {}\nservice:\n  config: {domain: a}\n", "it has no `domain`, but `image`, `service`"),
        ("descriptors: []\n", "rules.yaml:1: `domain` is missing; ratelimit rejects the file, too"),
    ] {
        let report = refused(text);
        assert!(report.contains(expected), "{text}: {report}");
    }
}

#[test]
fn last_of_repeated_keys_counts_and_both_lines_are_named() {
    let text = "domain: one\ndescriptors:\n- key: a\n  rate_limit: {unit: day, requests_per_unit: 10}\n  \
                rate_limit:\n    unit: day\n    unit: hour\n    requests_per_unit: 20\ndomain: two\n";
    let (rules, report) = import_texts(&[("rules.yaml", text)]);
    assert_eq!(rules.unwrap().first().unwrap().settings.credit_limit, 20);
    let expected = "warning: rules.yaml:5: [domain=two a=*] `rate_limit` is on line 4, too, and the last value of each of its keys counts, as in ratelimit; \
                    remove one of them\n\
                    warning: rules.yaml:7: [domain=two a=*] `unit` is on line 6, too, and the value here counts, as in ratelimit; \
                    remove one of them\n\
                    warning: rules.yaml:9: [domain=two] `domain` is on line 1, too, and the value here counts, as in ratelimit; \
                    remove one of them\n";
    assert_eq!(report, expected);
    let merged = "domain: one\nx: &limit {unit: day, requests_per_unit: 10}\ndescriptors:\n\
                  - {key: a, rate_limit: {<<: *limit, requests_per_unit: 5}}\n";
    let (rules, report) = import_texts(&[("rules.yaml", merged)]);
    assert_eq!(rules.unwrap().first().unwrap().settings.credit_limit, 5);
    assert!(!report.contains("too, and"), "{report}");
}

/// Ratelimit's parser (`mappingStruct` in decode.go of yaml.v2) decodes all keys and merges of a mapping in their order, and a
/// second limit into the first one.
#[test]
fn merges_and_repeated_limits_are_decoded_in_their_order() {
    let limit = |entry: &str| {
        let text = format!(
            "domain: one\nx: [&minute {{unit: minute, requests_per_unit: 5}}, &hour {{unit: hour}}, &entry {{key: b, rate_limit: \
             *minute}}, &nested {{key: d, rate_limit: *minute}}]\ndescriptors:\n- {entry}\n"
        );
        let (rules, report) = import_texts(&[("rules.yaml", &text)]);
        let rule = rules.unwrap().remove(0);
        (format!("{rule} {}", rule.settings), report.contains("too, and"))
    };
    for (entry, expected, is_reported) in [
        ("{key: a, rate_limit: {requests_per_unit: 7, <<: *minute}}", "a=* allows 5 a minute", true),
        ("{key: a, rate_limit: {<<: *minute, requests_per_unit: 7}}", "a=* allows 7 a minute", false),
        ("{key: a, rate_limit: {<<: [*minute, *hour]}}", "a=* allows 5 a minute", false),
        ("{key: a, rate_limit: {<<: [*hour, *minute]}}", "a=* allows 5 an hour", false),
        ("{key: a, rate_limit: {<<: {<<: *minute, unit: day}}}", "a=* allows 5 a day", false),
        ("{key: a, <<: *entry}", "b=* allows 5 a minute", true),
        ("{<<: *entry, key: a}", "a=* allows 5 a minute", false),
        ("{<<: *entry, key: a, rate_limit: {requests_per_unit: 7}}", "a=* allows 7 a minute", false),
        ("{key: a, rate_limit: *minute, rate_limit: {requests_per_unit: 7}}", "a=* allows 7 a minute", true),
        // A list is a value: an empty one replaces another, too.
        ("{key: a, rate_limit: *minute, descriptors: [*nested], <<: {descriptors: []}}", "a=* allows 5 a minute", true),
        ("{<<: {descriptors: []}, key: a, descriptors: [*nested]}", "a=* d=* allows 5 a minute", false),
        (
            "{<<: {descriptors: [*nested]}, key: a, rate_limit: *minute, descriptors: []}",
            "a=* allows 5 a minute",
            false,
        ),
        ("{<<: {descriptors: [*nested]}, key: a}", "a=* d=* allows 5 a minute", false),
    ] {
        let (found, report) = limit(entry);
        assert!(found.starts_with(&format!("domain=one {expected}")), "{entry}: {found}");
        assert_eq!(report, is_reported, "{entry}: {found}");
    }
}

#[test]
fn number_in_quotes_is_a_text_that_ratelimit_rejects() {
    for (number, is_reported) in [("\"5\"", true), ("'5'", true), ("5", false), ("\n    5", false)] {
        let text = format!(
            "# é\ndomain: one\ndescriptors:\n- key: a\n  rate_limit: {{unit: day, requests_per_unit: {number}}}\n"
        );
        for text in [text.clone(), manifest(&block("a.yaml", &text))] {
            let (rules, report) = import_texts(&[("rules.yaml", &text)]);
            assert_eq!(rules.unwrap()[0].settings.credit_limit, 5);
            assert_eq!(report.contains("is a text, which ratelimit rejects"), is_reported, "{number}: {report}");
        }
    }
}

#[test]
fn repeated_keys_of_a_config_map_are_reported() {
    let text = manifest(
        "  a.yaml: |\n    domain: one\n    descriptors: []\n  a.yaml: |\n    domain: two\n    descriptors: []\n",
    );
    let (rules, report) = import_texts(&[("rules.yaml", &text)]);
    assert_eq!(rules.unwrap().len(), 1);
    assert!(report.contains("`a.yaml` is on line 3, too, and the value here counts"), "{report}");
    let (_, report) = import_texts(&[("rules.yaml", &(text + "data: {b.yaml: \"domain: one\"}\n"))]);
    assert!(report.contains("`data` is on line 2, too"), "{report}");
}

#[test]
fn aliases_that_stand_for_too_much_are_refused() {
    let aliases = |number: u8| vec![format!("*a{number}"); 9].join(", ");
    let lists: String = (0..8).map(|n| format!("a{}: &a{} [{}]\n", n + 1, n + 1, aliases(n))).collect();
    let text = format!("a0: &a0 [x, x, x, x, x, x, x, x, x]\n{lists}domain: d\ndescriptors: *a8\n");
    let started = std::time::Instant::now();
    assert!(refused(&text).contains("rules.yaml:"));
    assert!(started.elapsed().as_secs() < 20);
}

#[test]
fn repeated_entries_and_entry_keys_name_both_lines() {
    let limit = "rate_limit: {unit: day, requests_per_unit: 1}";
    let text = format!("domain: one\ndescriptors:\n- {{key: a, {limit}}}\n- {{key: a, {limit}}}\n");
    assert!(converted(&text).1.contains("rules.yaml:4: [domain=one] the entry \"a\" is on line 3, too"));
    let text =
        format!("domain: one\ndescriptors:\n- key: a\n  value: x\n  descriptors:\n  - {{key: a, value: y, {limit}}}\n");
    assert!(converted(&text).1.contains("rules.yaml:6: [domain=one a=x] the entry on line 3 has the key \"a\", too"));
}

#[test]
fn many_entries_and_aliases_are_read() {
    let entry = |number: usize| format!("- {{key: tenant, value: t{number}, rate_limit: *limit}}\n");
    let mut text = "domain: one\nlimits: [&limit {unit: day, requests_per_unit: 10}]\ndescriptors:\n".to_owned();
    text.extend((0..30_000).map(entry));
    let (rules, _) = import_texts(&[("rules.yaml", &text)]);
    assert_eq!(rules.unwrap().len(), 30_001);
}
