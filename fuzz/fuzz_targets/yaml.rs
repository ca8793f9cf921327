//! ratelimit's configuration: any text is either rejected with a report, or read as rules that `divvy convert` writes
//! and `divvy serve` reads.

#![no_main]

use divvy::config::{self, Format};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let Ok(import) = config::import_text(text, "fuzz.yaml") else { return };
    assert!(import.rules.last().is_some_and(|rule| rule.pairs().next().is_none()), "the default rule is last");
    for format in [Format::Ini, Format::Json] {
        let Ok(written) = config::write(&import.rules, format) else { continue };
        if let Ok(again) = config::parse(&written, format, "again") {
            assert_eq!(again.rules.rules().len(), import.rules.len());
        }
    }
});
