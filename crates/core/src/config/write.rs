//! Writes rules as a rules file. Reading the file returns the same rules.

use std::collections::HashMap;
use std::hash::Hasher;

use serde::Serialize;
use serde::ser::{Error, SerializeMap, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use siphasher::sip128::{Hasher128, SipHasher13};

use super::Format;
use super::conditions::split_field;
use super::document::DEFAULT;
use super::ini;
use crate::rules::{Rule, SettingValue, operation};

/// Rules that a format cannot express.
#[derive(Debug, thiserror::Error)]
pub enum Unwritable {
    /// A key, value or actor field of this rule has no INI notation.
    #[error(
        "line {line}: [{rule}] cannot be written as INI: a key or value contains a double quote or a line \
         feed, and characters that need quotes, or an actor field's name contains a comma, \
         or the name of a field with a condition contains a colon and a space; keep these rules in a JSON file"
    )]
    Ini {
        /// Line of the rule in the file that it was read from.
        line: usize,
        /// Header of the rule, as written in the file.
        rule: String,
    },
    /// Never occurs: every rule that can be read can be written as JSON.
    #[error("cannot be written as JSON: {0}")]
    Json(#[from] serde_json::Error),
}

/// Returns a rules file that contains `rules`, in order. Comments of the original file are lost.
///
/// # Errors
/// Names the first rule that the format cannot express. JSON can express every rule.
pub fn write(rules: &[Rule], format: Format) -> Result<String, Unwritable> {
    match format {
        Format::Ini => Ok(rules.iter().map(ini_section).collect::<Result<Vec<_>, _>>()?.join("\n")),
        Format::Json => write_json(rules),
    }
}

/// Returns 32 hexadecimal digits that depend only on the rules, their lists and their order, not on the file's format or the
/// machine. They are for comparing two servers or two loads. They are not secret, and deliberate collisions are possible.
pub fn fingerprint(rules: &[Rule]) -> String {
    let mut hasher = SipHasher13::new();
    // Every rule can be written as JSON.
    hasher.write(write(rules, Format::Json).unwrap_or_default().as_bytes());
    for list in rules.iter().filter_map(|rule| rule.list.as_ref()) {
        hasher.write(format!("\n{:032x}", list.members.digest()).as_bytes());
    }
    for descriptor in rules.iter().filter_map(|rule| rule.descriptor.as_ref()) {
        hasher.write(format!("\n{descriptor:?}").as_bytes());
    }
    format!("{:032x}", hasher.finish128().as_u128())
}

/// Returns the settings of `rule`, in the order of the documentation, without those that were not given.
fn settings(rule: &Rule) -> impl Iterator<Item = (&'static str, SettingValue)> {
    let given = rule.named_settings().filter(|setting| !setting.is_default);
    given.map(|setting| match setting.value {
        SettingValue::Fields(fields) => (setting.name, join_fields(fields)),
        value => (setting.name, value),
    })
}

/// Joins the fields with commas, unless they could not be read back.
fn join_fields(fields: Vec<String>) -> SettingValue {
    let is_clear = |field: &String| !field.contains(',') && field.trim() == field;
    match fields.as_slice() {
        [field] if !field.contains(',') => SettingValue::Text(field.clone()),
        several if several.iter().all(is_clear) => SettingValue::Text(several.join(", ")),
        _ => SettingValue::Fields(fields),
    }
}

fn write_json(rules: &[Rule]) -> Result<String, Unwritable> {
    let default = rules.split_last().filter(|(last, _)| last.is_default());
    let overrides = default.map_or(rules, |(_, overrides)| overrides).iter().map(JsonRule).collect();
    let file = JsonFile { overrides, default: default.map(|(default, _)| JsonRule(default)) };
    Ok(serde_json::to_string_pretty(&file)? + "\n")
}

#[derive(Serialize)]
struct JsonFile<'a> {
    overrides: Vec<JsonRule<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    default: Option<JsonRule<'a>>,
}

struct JsonRule<'a>(&'a Rule);

impl Serialize for JsonRule<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut rule = serializer.serialize_map(None)?;
        let operation: Map<String, Value> = self.0.pairs().map(|(key, value)| (key.to_owned(), value.into())).collect();
        rule.serialize_entry("operation", &operation)?;
        for (key, value) in settings(self.0) {
            match value {
                SettingValue::Text(text) => rule.serialize_entry(key, &text)?,
                SettingValue::Fields(list) => rule.serialize_entry(key, &list)?,
                SettingValue::OfField(field, text) => rule.serialize_entry(key, &HashMap::from([(field, text)]))?,
                SettingValue::Number(digits) => {
                    rule.serialize_entry(key, &RawValue::from_string(digits).map_err(S::Error::custom)?)?;
                }
            }
        }
        rule.end()
    }
}

fn ini_section(rule: &Rule) -> Result<String, Unwritable> {
    let unwritable = || Unwritable::Ini { line: rule.line, rule: rule.to_string() };
    let header = ini_header(rule).ok_or_else(unwritable)?;
    let mut section = format!("[{header}]\n");
    for (key, value) in settings(rule) {
        let value = match value {
            SettingValue::Number(digits) => digits,
            SettingValue::Fields(_) => return Err(unwritable()),
            SettingValue::OfField(field, text) => {
                let written = format!("{field}: {text}");
                if split_field(&written) != Some((&*field, &*text)) {
                    return Err(unwritable());
                }
                Value::String(written).to_string()
            }
            SettingValue::Text(text) if text != "null" && text.bytes().all(is_plain) => text,
            // In double quotes, INI reads a JSON string.
            SettingValue::Text(text) => Value::String(text).to_string(),
        };
        section.push_str(&format!("{key} = {value}\n"));
    }
    Ok(section)
}

/// Returns a header that reads as the rule's operation. Tries quotes where they are needed, and then around every string, which
/// also protects comment characters and a closing bracket. `None` if neither is read correctly.
fn ini_header(rule: &Rule) -> Option<String> {
    if rule.is_default() {
        return Some(DEFAULT.to_owned());
    }
    let sparing = operation::write(rule.pairs()).ok();
    let all_quoted: Vec<_> = rule.pairs().map(|(key, value)| format!("\"{key}\"=\"{value}\"")).collect();
    let reads_as_rule = |header: &String| {
        let pairs = ini::header_pairs(header).unwrap_or_default();
        rule.pairs().eq(pairs.iter().map(|(key, value)| (key.as_str(), value.as_str())))
    };
    [sparing, Some(all_quoted.join(" "))].into_iter().flatten().find(reads_as_rule)
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'/' | b':' | b'*')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    #[test]
    fn fingerprint_depends_on_the_rules_not_the_file() {
        let of = |text, format| fingerprint(parse(text, format, "rules").unwrap().rules.rules());
        let ini = of("; mine\n[default]\ncreditLimit = 5\nresetSeconds = 60\n", Format::Ini);
        assert_eq!(ini.len(), 32);
        assert_eq!(ini, of(r#"{"default": {"creditLimit": 5, "resetSeconds": 60}}"#, Format::Json));
        assert_ne!(ini, of(r#"{"default": {"creditLimit": 6, "resetSeconds": 60}}"#, Format::Json));
    }
}
