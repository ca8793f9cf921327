//! Limits of ratelimit, limitador and Kuadrant: any text is either rejected with a report, or read as rules that `divvy convert`
//! writes and `divvy serve` reads. A server takes every configuration of ratelimit that is converted completely.

#![no_main]

use divvy::config::ratelimit::model::Domains;
use divvy::config::{self, Format, Problems, Report};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let mut problems = Problems::new("fuzz.yaml");
    Domains::default().add_text(text, &mut problems);
    let Ok(import) = config::import_text(text, "fuzz.yaml") else { return };
    // The server says so about other programs' limits.
    let is_about_others = |what: &str| what.contains("this is a list") || what.contains("the file has no limits");
    let is_refused = Report::from(problems).errors.iter().any(|problem| !is_about_others(&problem.what));
    assert!(!is_refused || !import.left_out.is_empty(), "the server refuses what is converted");
    assert!(import.rules.last().is_some_and(|rule| rule.pairs().next().is_none()), "the default rule is last");
    for format in [Format::Ini, Format::Json] {
        let Ok(written) = config::write(&import.rules, format) else { continue };
        if let Ok(again) = config::parse(&written, format, "again") {
            assert_eq!(again.rules.rules().len(), import.rules.len());
        }
    }
});
