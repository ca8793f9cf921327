//! JSON rules files: any text is either rejected with a report, or read as rules that can be written and read again.

#![no_main]

use divvy::config::{self, Format};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(loaded) = config::parse(text, Format::Json, "fuzz.json") {
        for format in [Format::Ini, Format::Json] {
            let Ok(written) = config::write(loaded.rules.rules(), format) else { continue };
            let again = config::parse(&written, format, "again").expect("written rules can be read");
            assert_eq!(again.rules.rules().len(), loaded.rules.rules().len());
        }
    }
});
