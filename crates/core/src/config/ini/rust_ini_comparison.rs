//! Compares our reader with the crate rust-ini, on files that mean the same to both: bare keys and values, `=`, and
//! comments on their own lines. rust-ini reads quotes, escapes and comments after a value differently.

use ini::{Ini, ParseOption};
use proptest::prelude::*;

use super::read;
use crate::config::Problems;
use crate::config::document::RawValue;

/// The expected content of a file: sections with their settings.
type Sections = Vec<(String, Pairs)>;
type Pairs = Vec<(String, String)>;

/// A line of a file.
#[derive(Debug, Clone)]
enum Line {
    Blank(String),
    Comment(String),
    Setting { key: String, value: String, before: String, after: String },
}

fn blank() -> impl Strategy<Value = String> {
    "[ \t]{0,2}"
}

fn line() -> impl Strategy<Value = Line> {
    // Leaves out characters that start a comment, a quote or an escape in only one of the readers, and rust-ini's
    // separator `:`.
    let value = "([a-z0-9A-Z*/._?&@+%(é-][a-z0-9A-Z*/._?&@+%()= é-]{0,12})?";
    prop_oneof![
        1 => blank().prop_map(Line::Blank),
        1 => "[;#][ a-z=\\[\\]\"';#]{0,12}".prop_map(Line::Comment),
        4 => ("[a-zA-Z][a-zA-Z0-9_.-]{0,8}", value, blank(), blank())
            .prop_map(|(key, value, before, after)| Line::Setting { key, value, before, after }),
    ]
}

/// Generates the pairs of an operation. The number makes each section unique.
fn header() -> impl Strategy<Value = String> {
    prop::collection::vec(("[a-z]{1,5}", "[a-zA-Z0-9*/._?&@+%(){}!é-]{1,10}"), 0..3)
        .prop_map(|pairs| pairs.into_iter().map(|(key, value)| format!(" {key}={value}")).collect())
}

fn file() -> impl Strategy<Value = (String, Sections)> {
    let section = (header(), prop::collection::vec(line(), 0..6));
    (prop::collection::vec(section, 0..5), prop_oneof![Just("\n"), Just("\r\n")]).prop_map(|(sections, end)| {
        let (mut text, mut meant) = (String::new(), Sections::new());
        for (number, (rest, lines)) in sections.into_iter().enumerate() {
            let header = format!("number={number}{rest}");
            text.push_str(&format!("[{header}]{end}"));
            let mut settings = Vec::new();
            for (place, line) in lines.into_iter().enumerate() {
                let written = match line {
                    Line::Blank(blank) => blank,
                    Line::Comment(comment) => comment,
                    Line::Setting { key, value, before, after } => {
                        // Each key appears once, because readers disagree about repeated keys.
                        let (key, value) = (format!("{key}{place}"), value.trim_end().to_owned());
                        let written = format!("{before}{key}{after}={before}{value}{after}");
                        settings.push((key, value));
                        written
                    }
                };
                text.push_str(&format!("{written}{end}"));
            }
            meant.push((header, settings));
        }
        (text, meant)
    })
}

fn ours(text: &str) -> Result<Vec<(Pairs, Pairs)>, TestCaseError> {
    let mut problems = Problems::new("test.ini");
    let document = read(text, &mut problems);
    prop_assert!(!problems.has_errors(), "{text:?}");
    let rules = document.into_iter().map(|rule| {
        let settings = rule.settings.into_iter().map(|setting| {
            let value = match setting.value {
                RawValue::Null => "null".to_owned(),
                RawValue::Text(value) => value,
                other => panic!("{other:?} in an INI file"),
            };
            (setting.key, value)
        });
        (rule.operation.expect("a header that could be read"), settings.collect())
    });
    Ok(rules.collect())
}

fn theirs(text: &str) -> Result<Sections, TestCaseError> {
    let options = ParseOption { enabled_quote: false, enabled_escape: false, ..ParseOption::default() };
    let ini = Ini::load_from_str_opt(text, options)
        .map_err(|error| TestCaseError::fail(format!("rust-ini refuses {text:?}: {error}")))?;
    // rust-ini also returns a section without a header, for settings above the first header.
    let named = ini.iter().filter_map(|(header, settings)| Some((header?, settings)));
    let owned = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
    Ok(named.map(|(header, settings)| (header.to_owned(), settings.iter().map(owned).collect())).collect())
}

/// Parses the pairs of a header, which rust-ini leaves as text.
fn pairs(header: &str) -> Pairs {
    let pair = |word: &str| word.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned()));
    header.split(' ').filter_map(pair).collect()
}

proptest! {
    #[test]
    fn rust_ini_reads_the_same_sections_keys_and_values((text, meant) in file()) {
        let theirs = theirs(&text)?;
        // The comparison only counts if rust-ini read what was written.
        prop_assert_eq!(&theirs, &meant);
        let theirs: Vec<_> = theirs.into_iter().map(|(header, settings)| (pairs(&header), settings)).collect();
        prop_assert_eq!(ours(&text)?, theirs);
    }

    #[test]
    fn rust_ini_reads_the_same_between_quotes(value in "[a-z0-9 .,:/=+-]{0,20}", quote in "['\"]") {
        let text = format!("[a=b]\nlabel = {quote}{value}{quote}\n");
        let ini = Ini::load_from_str(&text).map_err(|error| TestCaseError::fail(error.to_string()))?;
        let theirs = ini.get_from(Some("a=b"), "label").unwrap_or_default();
        let ours = ours(&text)?;
        prop_assert_eq!(&ours[0].1, &[("label".to_owned(), theirs.to_owned())]);
    }
}
