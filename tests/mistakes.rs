//! A table of mistakes, each with a text that helps: in rules, on command lines, in the environment, and in requests.

mod command_lines;
mod ports;
mod requests;
mod rules;

/// Panics with every mistake whose text does not help. `texts` contains the mistake, the expected part of the text, and
/// the whole text.
fn check(texts: Vec<(String, &str, String)>) {
    let is_bad = |(_, expected, text): &&(String, &str, String)| !text.contains(expected);
    let bad: Vec<_> = texts.iter().filter(is_bad).collect();
    let lines = bad.iter().map(|(mistake, expected, text)| format!("\n{mistake}\n  lacks {expected:?}:\n  {text}"));
    assert!(bad.is_empty(), "{}", lines.collect::<String>());
}
