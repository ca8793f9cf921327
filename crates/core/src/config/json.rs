//! Reads JSON rules files: `overrides`, an array of rules, and `default`, the last rule.
//!
//! Values are read as slices of the text, and their positions give the lines. The recursion depth never exceeds
//! `serde_json`'s own limit.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue as Slice;

use super::Problems;
use super::document::{RawRule, RawSetting, RawValue};
use crate::suggestion::nearest;
use crate::{json, rules};

const TOP_LEVEL_KEYS: [&str; 2] = ["overrides", "default"];

/// An object's members in order, including repeated keys.
pub(super) struct Pairs<'a>(pub Vec<(String, &'a Slice)>);

/// Reads a JSON rules file; `None` if the text is not a JSON object.
pub(super) fn read(text: &str, problems: &mut Problems) -> Option<Vec<RawRule>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let report = |error: serde_json::Error| {
        let (what, fix) = if error.is_data() {
            ("the file is not a JSON object".to_owned(), "write {\"overrides\": [{…}, …], \"default\": {…}}")
        } else {
            let message = json::message(&error);
            (format!("malformed JSON at column {}: {message}", error.column()), "correct it there")
        };
        problems.error(error.line().max(1), what, fix);
    };
    let Pairs(members) = serde_json::from_str(text).map_err(report).ok()?;
    let line_ends = memchr::memchr_iter(b'\n', text.as_bytes()).collect();
    Some(Reader { text, line_ends, problems }.rules(members))
}

struct Reader<'a, 'p> {
    text: &'a str,
    /// The offsets of all line feeds.
    line_ends: Vec<usize>,
    problems: &'p mut Problems,
}

impl<'a> Reader<'a, '_> {
    fn rules(mut self, members: Vec<(String, &'a Slice)>) -> Vec<RawRule> {
        let mut overrides = None;
        let mut default = None;
        for (key, value) in members {
            let member = match key.as_str() {
                "overrides" => &mut overrides,
                "default" => &mut default,
                _ => {
                    let fix = match nearest(&key, &TOP_LEVEL_KEYS) {
                        Some(nearest) => format!("did you mean {nearest:?}?"),
                        None => "write the rules in \"overrides\" and \"default\"".to_owned(),
                    };
                    self.error(value, format!("unknown key {key:?} at the top level"), fix);
                    continue;
                }
            };
            if member.replace(value).is_some() {
                self.error(value, format!("{key:?} is given twice"), "keep one of them");
            }
        }
        let mut rules = overrides.filter(is_given).map_or(Vec::new(), |overrides| self.overrides(overrides));
        rules.extend(default.filter(is_given).and_then(|default| self.default_rule(default)));
        rules
    }

    fn overrides(&mut self, slice: &'a Slice) -> Vec<RawRule> {
        let rules: Option<Vec<&Slice>> =
            self.parse(slice, "\"overrides\" is not an array", "write the rules as [{…}, {…}]");
        rules.into_iter().flatten().filter_map(|rule| self.override_rule(rule)).collect()
    }

    fn override_rule(&mut self, slice: &'a Slice) -> Option<RawRule> {
        let (operation, settings) = self.rule_members(slice)?;
        let line = self.line_of(slice);
        let mut rule = match operation {
            None => {
                self.error(slice, "the rule has no \"operation\"", "add it, or make this rule the \"default\"");
                RawRule::unreadable(line, "no operation")
            }
            Some(operation) => match self.operation(operation) {
                Some(pairs) => RawRule::new(line, pairs),
                None => RawRule::unreadable(line, operation.get()),
            },
        };
        rule.settings = settings;
        Some(rule)
    }

    fn default_rule(&mut self, slice: &'a Slice) -> Option<RawRule> {
        let (operation, settings) = self.rule_members(slice)?;
        if let Some(operation) = operation {
            let pairs = self.operation(operation);
            if pairs.is_some_and(|pairs| !pairs.is_empty()) {
                let fix = "write \"operation\": {}, or move the rule to \"overrides\"";
                self.error(operation, "the \"default\" rule has an operation", fix);
            }
        }
        Some(RawRule { settings, ..RawRule::new(self.line_of(slice), Vec::new()) })
    }

    /// Returns a rule's operation and its settings. `null` counts as no operation.
    fn rule_members(&mut self, slice: &'a Slice) -> Option<(Option<&'a Slice>, Vec<RawSetting>)> {
        let members = self.object(slice, "a rule")?;
        let mut operation = None;
        let mut settings = Vec::new();
        for (key, value) in members {
            if key != "operation" {
                settings.push(RawSetting { line: self.line_of(value), key, value: self.value(value) });
            } else if operation.replace(value).is_some() {
                self.error(value, "\"operation\" is given twice", "keep one of them");
            }
        }
        Some((operation.filter(is_given), settings))
    }

    /// Reads an operation. Numbers and booleans become their JSON text, as in a hit. Reports numbers that Button's Divvy reads
    /// differently.
    fn operation(&mut self, slice: &'a Slice) -> Option<Vec<(String, String)>> {
        let members = self.object(slice, "an operation")?;
        for (key, value) in &members {
            if value.get().starts_with(['n', '[', '{']) {
                let what = format!("the value of {key:?} in the operation is not a string, a number or a boolean");
                self.error(value, what, "write it as a string, and a rule for each value");
            }
        }
        let values: Vec<_> = members.into_iter().map(|(key, slice)| (key, slice, self.value(slice))).collect();
        let pairs: Vec<_> = values.iter().map(|(key, _, value)| (key.clone(), value.as_written().to_owned())).collect();
        for (key, slice, value) in &values {
            let RawValue::Number(text) = value else { continue };
            // JavaScript writes the digits of other numbers in its own way.
            if text.parse().is_ok_and(|number: i64| number.unsigned_abs() < 1 << 53 && number.to_string() == *text) {
                continue;
            }
            let what = format!("Button's Divvy 1.7.1 reads {key}={text} as a number of JavaScript, with its digits");
            let header = rules::header(pairs.iter().map(|(key, value)| (key.as_str(), value.as_str())));
            let fix = "write the value as a string if Button's Divvy reads the file, too";
            self.problems.difference((self.line_of(slice), header.as_str()), what, fix);
        }
        Some(pairs)
    }

    fn object(&mut self, slice: &'a Slice, what: &str) -> Option<Vec<(String, &'a Slice)>> {
        let what = format!("{what} must be an object");
        self.parse(slice, &what, "write it as {\"key\": \"value\", …}").map(|Pairs(members)| members)
    }

    /// Parses a part of the text. The error is `what` if it has another type. Otherwise, one of its strings is wrong.
    fn parse<T: Deserialize<'a>>(&mut self, slice: &'a Slice, what: &str, fix: &str) -> Option<T> {
        match serde_json::from_str(slice.get()) {
            Ok(value) => return Some(value),
            Err(error) if error.is_data() => self.error(slice, what, fix),
            Err(error) => self.error(slice, json::message(&error), "correct the string"),
        }
        None
    }

    fn value(&mut self, slice: &'a Slice) -> RawValue {
        let text = slice.get();
        match text.bytes().next() {
            Some(b'"') => self.parse(slice, "", "").map_or(RawValue::Null, RawValue::Text),
            Some(b'n') => RawValue::Null,
            // On one line, for messages. A string has no line feed.
            Some(b'[' | b'{' | b't' | b'f') => RawValue::Other(text.lines().map(str::trim).collect()),
            _ => RawValue::Number(text.to_owned()),
        }
    }

    fn error(&mut self, slice: &'a Slice, what: impl Into<String>, fix: impl Into<String>) {
        let line = self.line_of(slice);
        self.problems.error(line, what, fix);
    }

    /// Returns the line where `slice` begins.
    fn line_of(&self, slice: &'a Slice) -> usize {
        let offset = (slice.get().as_ptr() as usize).saturating_sub(self.text.as_ptr() as usize);
        self.line_ends.partition_point(|end| *end < offset) + 1
    }
}

fn is_given(slice: &&Slice) -> bool {
    slice.get() != "null"
}

impl<'de> Deserialize<'de> for Pairs<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PairsVisitor;
        impl<'de> Visitor<'de> for PairsVisitor {
            type Value = Pairs<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let members = std::iter::from_fn(|| map.next_entry().transpose());
                members.collect::<Result<_, _>>().map(Pairs)
            }
        }
        deserializer.deserialize_map(PairsVisitor)
    }
}
