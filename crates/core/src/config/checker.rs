//! The settings of one rule while they are checked: they are found by name, read as numbers, words or texts, and reported with
//! their lines.

use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;

use super::Problems;
use super::document::{self, InvalidNumber, RawRule, RawSetting, RawValue};
use crate::rules::Seconds;
use crate::rules::setting_name::{self, CREDIT_LIMIT, PER, WINDOW};
use crate::suggestion::{advice, nearest};

pub(super) const MAX_LABEL_LENGTH: usize = 255;

/// The notation of a number for messages, and its parser.
pub(super) type Notation<T> = (&'static str, fn(&RawValue) -> Result<T, InvalidNumber>);

pub(super) const WHOLE: Notation<u64> = ("in digits only", document::whole);
pub(super) const WHOLE_SECONDS: Notation<u64> = ("for example `900` or `15m`", document::whole_seconds);
pub(super) const SECONDS: Notation<Seconds> =
    ("for example `60` or `0.25`, or in `per` with a unit", document::seconds);
pub(super) const PERIOD: Notation<Seconds> = ("for example `90s`, `5m`, `12h`, `7d` or `2w`", document::period);

/// Returns the text with `-` in place of each character that a label cannot contain.
pub(super) fn to_label(text: &str) -> String {
    text.chars().map(|c| if u8::try_from(c).is_ok_and(is_label_byte) { c } else { '-' }).collect()
}

/// Returns whether a label may contain this byte.
fn is_label_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
}

/// The settings of a rule, while they are checked.
pub(super) struct Checker<'a> {
    pub raw: &'a RawRule,
    /// Known settings by key. The first one wins if a key is repeated.
    settings: HashMap<&'a str, &'a RawSetting>,
    /// Known keys that are probably meant by unknown ones. They are not reported as missing.
    misspelled: HashSet<&'static str>,
    pub problems: &'a mut Problems,
}

impl<'a> Checker<'a> {
    /// Finds the settings of a rule. Reports unknown and repeated ones.
    pub fn new(raw: &'a RawRule, problems: &'a mut Problems) -> Self {
        let (mut settings, mut misspelled): (HashMap<_, &RawSetting>, _) = (HashMap::new(), HashSet::new());
        for setting in &raw.settings {
            let (key, place) = (setting.key.as_str(), (setting.line, raw.header.as_str()));
            if !setting_name::NAMES.contains(&key) {
                let meant = nearest(key, setting_name::NAMES);
                misspelled.extend(meant);
                let fix = meant.map_or_else(
                    || format!("remove it: a rule has {}", setting_name::NAMES.join(", ")),
                    |meant| format!("did you mean `{meant}`?"),
                );
                problems.error(place, format!("unknown setting `{key}`"), fix);
            } else if let Some(first) = settings.get(key) {
                let what = format!("`{key}` is set twice, first on line {}", first.line);
                problems.error(place, what, "keep one of them");
            } else {
                settings.insert(key, setting);
            }
        }
        Self { raw, settings, misspelled, problems }
    }

    /// Returns the setting, unless it is missing or `null`.
    pub fn setting(&self, key: &str) -> Option<&'a RawSetting> {
        self.settings.get(key).copied().filter(|setting| setting.value != RawValue::Null)
    }

    pub fn has(&self, key: &str) -> bool {
        self.setting(key).is_some()
    }

    /// Returns the settings that are given.
    pub fn given(&self, keys: &[&'static str]) -> Vec<&'static str> {
        keys.iter().copied().filter(|key| self.has(key)).collect()
    }

    /// Returns whether the setting is missing, and no unknown one probably stands for it.
    pub fn lacks(&self, key: &str) -> bool {
        !self.has(key) && !self.misspelled.contains(key)
    }

    /// Returns the position of a setting, or of the rule if it has no such setting.
    pub fn place(&self, key: &str) -> (usize, &'a str) {
        (self.raw.setting_line(key), &self.raw.header)
    }

    /// Reports an error in a setting.
    pub fn error(&mut self, key: &str, what: impl Into<String>, fix: impl Into<String>) {
        self.problems.error(self.place(key), what, fix);
    }

    pub fn warning(&mut self, key: &str, what: impl Into<String>, fix: impl Into<String>) {
        self.problems.warning(self.place(key), what, fix);
    }

    /// Reports a setting that Button's Divvy does not have, and what it does instead.
    pub fn unsupported(&mut self, key: &str, instead: &str) {
        let what = format!("Button's Divvy 1.7.1 does not support `{key}`: it {instead}");
        self.problems.difference(self.place(key), what, "remove it if Button's Divvy reads the file, too");
    }

    pub fn required<T: Default>(&mut self, key: &'static str, meaning: &str, notation: Notation<T>) -> T {
        if self.lacks(key) && (key == CREDIT_LIMIT || [PER, WINDOW].iter().all(|other| self.lacks(other))) {
            let fix = if key == CREDIT_LIMIT { "" } else { ", or `per = 1h`, or `window = day`" };
            self.error(key, format!("`{key}` is missing"), format!("add it: {meaning}{fix}"));
        }
        self.number(key, meaning, notation).unwrap_or_default()
    }

    /// Returns a number; `None` if it is missing, or after reporting that it is no number.
    pub fn number<T>(&mut self, key: &str, meaning: &str, (notation, read): Notation<T>) -> Option<T> {
        let RawSetting { value, .. } = self.setting(key)?;
        read(value)
            .inspect_err(|error| {
                let written = value.as_written();
                let fix = format!("write {meaning}, {notation}");
                self.error(key, format!("`{key}` {error}: {written:?}"), fix);
            })
            .ok()
    }

    /// Returns a number as [`Checker::number`] does; `None` after reporting that it is out of range, too.
    pub fn number_within(
        &mut self,
        key: &str,
        meaning: &str,
        notation: Notation<u64>,
        range: RangeInclusive<u64>,
    ) -> Option<u64> {
        let number = self.number(key, meaning, notation)?;
        if !range.contains(&number) {
            let what = format!("`{key}` is {number}, but must be from {} to {}", range.start(), range.end());
            self.error(key, what, format!("write {meaning}"));
        }
        Some(number).filter(|number| range.contains(number))
    }

    /// Returns a non-empty string.
    pub fn text(&mut self, key: &str) -> Option<String> {
        let value = &self.setting(key)?.value;
        let Some(text) = value.as_text() else {
            self.error(key, format!("`{key}` is not a string: {}", value.as_written()), "put it in quotes");
            return None;
        };
        Some(text.to_owned()).filter(|text| !text.is_empty())
    }

    /// Returns one of `all` by its name. An unknown name is reported and replaced by the nearest.
    pub fn choice<T: Copy>(&mut self, key: &str, all: &[T], name: fn(T) -> &'static str) -> Option<T> {
        let text = self.text(key)?;
        let named = |text: &str| all.iter().copied().find(|candidate| name(*candidate) == text);
        named(&text).or_else(|| {
            let names: Vec<_> = all.iter().map(|candidate| name(*candidate)).collect();
            let nearest = nearest(&text, &names);
            self.error(key, format!("unknown {key} {text:?}"), advice(nearest, &names));
            nearest.and_then(named)
        })
    }

    /// Returns a short text for people, or a name.
    pub fn name(&mut self, key: &str) -> Option<String> {
        let name = self.text(key)?;
        if name.len() > MAX_LABEL_LENGTH || !name.bytes().all(is_label_byte) {
            let fix = format!("use at most {MAX_LABEL_LENGTH} letters, digits, `-` and `_`");
            self.error(key, format!("invalid {key} {name:?}"), fix);
        }
        Some(name)
    }
}
