//! Conversions of whole files, and the reports on files that cannot be converted completely.

mod look_ups;
mod reference;
mod served;
mod statistics;

use std::path::Path;

use super::*;
use crate::config::conversion::Importer;
use crate::config::tests::{assert_golden, golden_files};
use crate::config::{Format, import, parse, write};

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

/// The rules must be valid in both formats.
#[test]
fn files_have_the_rules_and_the_reports_next_to_them() {
    let files = golden_files("ratelimit/golden", &["yaml"]);
    assert_eq!(files.len(), 4);
    for (name, text) in files {
        let (rules, report) = import_texts(&[(&name, &text)]);
        let rules = rules.unwrap();
        let ini = write(&rules, Format::Ini).unwrap();
        parse(&ini, Format::Ini, "rules.ini").unwrap();
        parse(&write(&rules, Format::Json).unwrap(), Format::Json, "rules.json").unwrap();
        assert_golden(&format!("ratelimit/golden/{name}.ini"), &ini);
        assert_golden(&format!("ratelimit/golden/{name}.report"), &report);
    }
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
fn deeply_nested_yaml_is_rejected() {
    let deep = format!("domain: a\ndescriptors: {}", "[{key: a, descriptors: ".repeat(100_000));
    // Tests are not optimized, so the parser's frames are larger than in the server.
    let thread = std::thread::Builder::new().stack_size(16 << 20);
    thread.spawn(move || assert!(refused(&deep).starts_with("left out: rules.yaml:"))).unwrap().join().unwrap();
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
    let marked = manifest("  a.yaml: \"\\uFEFFdomain: one\\ndescriptors: []\"\n");
    assert_eq!(converted(&marked).0, "default");
    let below = manifest("  a.yaml: |\n\n    # -\n\n    domain: one\n    rate: 5\n");
    assert!(converted(&below).1.contains("rules.yaml:8: [domain=one] `rate` is an unknown key"));
    let twice = refused(&format!("{ONE}---\n{ONE}"));
    assert!(twice.contains("rules.yaml:4: the domain \"one\" is in rules.yaml:1, too"), "{twice}");
}

#[test]
fn files_of_other_programs_are_named_for_what_they_are() {
    for (text, expected) in [
        ("", "rules.yaml:1: `domain` is missing, because the file has no limits"),
        ("kind: ConfigMap\n", "rules.yaml:1: `domain` is missing"),
        ("kind: Service\n---\nkind: Deployment\n", "rules.yaml:3: the Deployment is skipped"),
        ("rateLimitsByDomain: {a: []}\n", "rules.yaml:1: `domain` is missing"),
        ("descriptors: []\n", "rules.yaml:1: `domain` is missing; ratelimit rejects the file, too"),
    ] {
        let report = refused(text);
        assert!(report.contains(expected), "{text}: {report}");
    }
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

/// The rule takes the number, because nothing else can be meant.
#[test]
fn number_in_quotes_is_a_text_that_ratelimit_rejects() {
    for (number, is_reported) in [("\"5\"", true), ("'5'", true), ("!!str 5", true), ("5", false), ("\n    5", false)] {
        let text = format!(
            "# é\ndomain: one\ndescriptors:\n- key: a\n  rate_limit: {{unit: day, requests_per_unit: {number}}}\n"
        );
        for text in [text.clone(), manifest(&block("a.yaml", &text))] {
            let (rules, report) = import_texts(&[("rules.yaml", &text)]);
            assert_eq!(rules.unwrap()[0].settings.credit_limit, 5);
            assert_eq!(report.contains("`requests_per_unit` is a text"), is_reported, "{number}: {report}");
        }
    }
}

#[test]
fn numbers_that_ratelimit_rejects_are_left_out() {
    let converted = |entry: &str| converted(&format!("domain: one\ndescriptors:\n- {{{entry}}}\n"));
    for number in ["1e3", "08", "100.0", "9223372036854775808"] {
        let (rules, report) = converted(&format!("key: a, rate_limit: {{unit: day, requests_per_unit: {number}}}"));
        assert_eq!(rules, "default", "{number}");
        assert!(report.starts_with("left out: rules.yaml:3: [domain=one a=*] `requests_per_unit` is "), "{report}");
    }
    for value in ["1.10", "5e6"] {
        let (rules, report) =
            converted(&format!("key: a, value: {value}, rate_limit: {{unit: day, requests_per_unit: 1}}"));
        assert_eq!(rules, format!("domain=one a={value}, default"));
        assert!(report.starts_with("left out: rules.yaml:3: [domain=one a="), "{report}");
    }
}

#[test]
fn aliases_that_stand_for_too_much_are_refused() {
    let aliases = |number: u8| vec![format!("*a{number}"); 9].join(", ");
    let lists: String = (0..8).map(|n| format!("a{}: &a{} [{}]\n", n + 1, n + 1, aliases(n))).collect();
    let text = format!("a0: &a0 [x, x, x, x, x, x, x, x, x]\n{lists}domain: d\ndescriptors: *a8\n");
    let report = refused(&text);
    assert!(report.contains("aliases stand for most of the document"), "{report}");
}

/// Regression test: each alias of a text was read again, for minutes.
#[test]
fn aliases_of_texts_in_a_config_map_are_refused_beyond_the_bound_of_a_file() {
    let aliases: String = (0..1_000).map(|number| format!("  a{number}: *text\n")).collect();
    let text = format!("kind: ConfigMap\ndata:\n  a: &text \"{}\"\n{aliases}", "#".repeat(100_000));
    let report = refused(&text);
    assert!(report.contains("the texts of this ConfigMap are larger than"), "{report}");
}

#[test]
fn many_entries_and_aliases_are_read() {
    let entry = |number: usize| format!("- {{key: tenant, value: t{number}, rate_limit: *limit}}\n");
    let mut text = "domain: one\nlimits: [&limit {unit: day, requests_per_unit: 10}]\ndescriptors:\n".to_owned();
    text.extend((0..30_000).map(entry));
    let (rules, _) = import_texts(&[("rules.yaml", &text)]);
    assert_eq!(rules.unwrap().len(), 30_001);
}
