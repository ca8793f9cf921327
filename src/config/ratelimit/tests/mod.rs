//! The rules that whole files become, and the reports on files that cannot be converted completely.

mod reference;

use super::*;
use crate::config::{Format, parse, write};

/// The rules of files given as name and text; what was left out and the warnings, one line a problem.
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
    let (rules, said) = import_texts(&[("rules.yaml", text)]);
    assert!(rules.is_err(), "{text}: {said}");
    said
}

/// Compares the rules of a file beside this one, and what is said about it, with the files of that name plus `.ini` and
/// `.report`. The rules must be such that both formats can be served.
macro_rules! golden {
    ($($test:ident: $file:literal,)*) => {$(
        #[test]
        fn $test() {
            let (rules, said) = import_texts(&[($file, include_str!(concat!("../golden/", $file)))]);
            let rules = rules.unwrap();
            let ini = write(&rules, Format::Ini).unwrap();
            parse(&ini, Format::Ini, "rules.ini").unwrap();
            parse(&write(&rules, Format::Json).unwrap(), Format::Json, "rules.json").unwrap();
            assert_eq!(ini, include_str!(concat!("../golden/", $file, ".ini")));
            assert_eq!(said, include_str!(concat!("../golden/", $file, ".report")));
        }
    )*};
}

golden! {
    everything_that_can_be_carried_over: "everything.yaml",
    everything_that_is_left_out_is_listed: "left-out.yaml",
}

#[test]
fn the_example_is_carried_over_as_a_whole() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/ratelimit.yaml");
    let import = import(&[example]).unwrap();
    assert_eq!((import.left_out, import.warnings), (vec![], vec![]));
}

#[test]
fn domains_of_several_files_do_not_meet() {
    let file = |domain: &str| {
        format!("domain: {domain}\ndescriptors: [{{key: a, rate_limit: {{unit: day, requests_per_unit: 1}}}}]")
    };
    let (one, other) = (file("one"), file("other"));
    let (rules, said) = import_texts(&[("1.yaml", &one), ("2.yaml", &other)]);
    let headers: Vec<_> = rules.unwrap().iter().map(Rule::to_string).collect();
    assert_eq!((headers.join(", ").as_str(), said.as_str()), ("domain=one a=*, domain=other a=*, default", ""));
    let (rules, said) = import_texts(&[("1.yaml", &one), ("2.yaml", &one)]);
    assert!(rules.is_err());
    assert_eq!(
        said,
        "left out: 2.yaml: the domain \"one\" is in 1.yaml, too; put all descriptors of a domain in one file\n"
    );
}

#[test]
fn what_is_not_ratelimits_is_refused_with_its_line() {
    assert!(refused("domain: a\ndescriptors:\n  - key: [").starts_with("left out: rules.yaml:3"));
    assert!(refused("domain: a\ndescriptors:\n  key: a\n").starts_with("left out: rules.yaml:3"));
    assert!(refused("domain: a\ndescriptors:\n  - a\n").starts_with("left out: rules.yaml:3"));
    assert!(refused("domain: a\n---\ndomain: b\n").starts_with("left out: rules.yaml:"));
    assert!(refused("descriptors: []\n").contains("`domain` is missing"));
    assert!(refused("").starts_with("left out: rules.yaml:1"));
    assert!(refused("domain: a*\n").starts_with("left out: rules.yaml:1: the domain \"a*\" has a `*`"));
}

#[test]
fn null_is_as_if_nothing_were_there() {
    let (rules, said) =
        import_texts(&[("a.yaml", "domain: a\ndescriptors:\n  - key: k\n    value: ~\n    rate_limit:\n")]);
    assert_eq!((rules.unwrap().len(), said.as_str()), (1, ""));
    let (rules, said) = import_texts(&[("a.yaml", "domain: a\ndescriptors:\n")]);
    assert_eq!((rules.unwrap().len(), said.as_str()), (1, ""));
}

#[test]
fn deeply_nested_yaml_is_refused() {
    let deep = format!("domain: a\ndescriptors: {}", "[{key: a, descriptors: ".repeat(100_000));
    assert!(refused(&deep).starts_with("left out: rules.yaml:"));
}
