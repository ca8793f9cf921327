//! rust-ini judges what is read from files that both can read: no quotes, no escapes, comments on lines of their own, and
//! each section and each key once.

use std::collections::HashSet;

use ::ini::{Ini, ParseOption};
use proptest::prelude::*;

use super::*;

/// A section's pairs, and its settings.
type Read = (Vec<(String, String)>, Vec<(String, String)>);

/// The number keeps sections apart.
fn any_header(number: usize) -> impl Strategy<Value = String> {
    let pairs = prop::collection::btree_map("[a-z]{1,3}", "[a-z0-9/.*_-]{1,5}", 0..3);
    pairs.prop_map(move |pairs| {
        let pairs: Vec<_> = pairs.iter().map(|(key, value)| format!(" {key}={value}")).collect();
        format!("[NUMBER={number}{}]", pairs.concat())
    })
}

fn any_setting() -> impl Strategy<Value = (String, String)> {
    let equals = prop::sample::select(vec!["=", " = ", "= ", " =", "\t=\t"]);
    let value = "[a-zA-Z/*_-][a-zA-Z0-9/.*_-]{0,4}( [a-z0-9.]{1,4}){0,2}";
    ("[a-zA-Z]{1,6}", equals, value).prop_map(|(key, equals, value)| (key.clone(), format!("{key}{equals}{value}")))
}

fn any_noise() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), Just("  ".to_owned()), "[;#][ a-z=;#.]{0,9}"]
}

/// A header and its settings, each below a line of noise.
fn any_section(number: usize) -> impl Strategy<Value = String> {
    let settings = prop::collection::vec((any_noise(), any_setting()), 0..6);
    (any_noise(), any_header(number), settings).prop_map(|(noise, header, settings)| {
        let mut keys = HashSet::new();
        let mut lines = vec![noise, header];
        for (noise, (key, setting)) in settings {
            if keys.insert(key) {
                lines.extend([noise, setting]);
            }
        }
        lines.join("\n") + "\n"
    })
}

fn any_file() -> impl Strategy<Value = String> {
    (any_section(1), any_section(2), any_section(3), any::<bool>()).prop_map(|(one, two, three, has_returns)| {
        let text = [one, two, three].concat();
        if has_returns { text.replace('\n', "\r\n") } else { text }
    })
}

fn ours(text: &str) -> Vec<Read> {
    let document = read(text, &mut Problems::new("random.ini"));
    let owned = |setting: &RawSetting| (setting.key.clone(), setting.value.as_written().to_owned());
    let rules = document.rules.into_iter();
    rules.map(|rule| (rule.operation.unwrap(), rule.settings.iter().map(owned).collect())).collect()
}

fn theirs(text: &str) -> Vec<Read> {
    let options = ParseOption { enabled_quote: false, enabled_escape: false, ..ParseOption::default() };
    let file = Ini::load_from_str_opt(text, options).unwrap();
    let owned = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
    let sections = file.iter().filter_map(|(header, settings)| Some((header?, settings)));
    sections.map(|(header, settings)| (owned_pairs(header).unwrap(), settings.iter().map(owned).collect())).collect()
}

proptest! {
    #[test]
    fn reads_what_rust_ini_reads(text in any_file()) {
        prop_assert_eq!(ours(&text), theirs(&text));
    }
}
