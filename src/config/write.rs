//! Writes rules as a rules file, so that reading it gives the same rules.

use serde_json::{Map, Value, json};

use super::{Format, ini, validate};
use crate::rules::{MatchPolicy, Rule, operation_text};

/// A rule that a format cannot hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "line {line}: [{rule}] cannot be written as INI: a key or value has a double quote or a line feed, and something \
     that only quotes could protect; keep these rules in a JSON file"
)]
pub struct Unwritable {
    /// Where the rule is in the file that it was read from.
    pub line: usize,
    pub rule: String,
}

/// The rules file that holds `rules`, in their order. Comments of the file that they were read from are not rules, and
/// not kept.
///
/// # Errors
/// The first rule that the format cannot hold; JSON can hold every rule.
pub fn write(rules: &[Rule], format: Format) -> Result<String, Unwritable> {
    match format {
        Format::Ini => write_ini(rules),
        Format::Json => Ok(write_json(rules)),
    }
}

/// The settings of `rule` in the order in which they are documented, those that are absent left out.
fn settings(rule: &Rule) -> impl Iterator<Item = (&'static str, Value)> {
    let policy = (rule.match_policy != MatchPolicy::default()).then(|| rule.match_policy.as_str());
    let settings = [
        (validate::CREDIT_LIMIT, json!(rule.settings.credit_limit)),
        (validate::RESET_SECONDS, json!(rule.settings.reset_seconds)),
        (validate::ACTOR_FIELD, json!(rule.actor_field)),
        (validate::MATCH_POLICY, json!(policy)),
        (validate::LABEL, json!(rule.label)),
        (validate::COMMENT, json!(rule.comment)),
    ];
    settings.into_iter().filter(|(_, value)| !value.is_null())
}

fn write_json(rules: &[Rule]) -> String {
    let mut overrides: Vec<_> = rules.iter().map(json_rule).collect();
    let default = rules.last().filter(|rule| rule.is_default()).and_then(|_| overrides.pop());
    let mut document = Map::new();
    document.insert("overrides".to_owned(), Value::Array(overrides));
    document.extend(default.map(|rule| ("default".to_owned(), rule)));
    format!("{:#}\n", Value::Object(document))
}

fn json_rule(rule: &Rule) -> Value {
    let operation: Map<_, _> = rule.pairs().map(|(key, value)| (key.to_owned(), json!(value))).collect();
    let operation = [("operation", Value::Object(operation))];
    Value::Object(operation.into_iter().chain(settings(rule)).map(|(key, value)| (key.to_owned(), value)).collect())
}

fn write_ini(rules: &[Rule]) -> Result<String, Unwritable> {
    let sections: Result<Vec<_>, _> = rules.iter().map(ini_section).collect();
    Ok(sections?.join("\n"))
}

fn ini_section(rule: &Rule) -> Result<String, Unwritable> {
    let header = ini_header(rule).ok_or_else(|| Unwritable { line: rule.line, rule: rule.to_string() })?;
    let mut section = format!("[{header}]\n");
    for (key, value) in settings(rule) {
        let value = match value {
            Value::String(text) if text != "null" && text.bytes().all(is_plain) => text,
            // A JSON string is what INI reads in double quotes.
            other => other.to_string(),
        };
        section.push_str(&format!("{key} = {value}\n"));
    }
    Ok(section)
}

/// The header that reads as the rule's operation: with quotes where they are needed, or else around every string, which
/// also protects a closing bracket. `None` when neither reads as it should.
fn ini_header(rule: &Rule) -> Option<String> {
    if rule.is_default() {
        return Some(ini::DEFAULT.to_owned());
    }
    let sparing = operation_text::write(rule.pairs()).ok();
    let all_quoted: Vec<_> = rule.pairs().map(|(key, value)| format!("\"{key}\"=\"{value}\"")).collect();
    let reads_as_rule = |header: &String| ini::header_pairs(header).is_some_and(|pairs| rule.pairs().eq(pairs));
    sparing.filter(reads_as_rule).or_else(|| Some(all_quoted.join(" ")).filter(reads_as_rule))
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'/' | b':' | b'*')
}
