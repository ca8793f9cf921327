//! Judges one rule of a document: its settings and its operation, each problem with its line.

use std::collections::{HashMap, HashSet};

use super::document::{RawRule, RawSetting, RawValue};
use super::nearest::nearest;
use super::problem::{Place, Problems};
use crate::rules::{MatchPolicy, Pattern, Quota, Rule, Settings};

pub(super) const CREDIT_LIMIT: &str = "creditLimit";
pub(super) const RESET_SECONDS: &str = "resetSeconds";
pub(super) const ACTOR_FIELD: &str = "actorField";
pub(super) const MATCH_POLICY: &str = "matchPolicy";
pub(super) const LABEL: &str = "label";
pub(super) const COMMENT: &str = "comment";

/// Every key that a rule may have.
const KNOWN_KEYS: [&str; 6] = [CREDIT_LIMIT, RESET_SECONDS, ACTOR_FIELD, MATCH_POLICY, LABEL, COMMENT];

const MAX_LABEL_LENGTH: usize = 255;

/// The rule that `raw` describes; `None` when its operation could not be read.
///
/// A setting that is wrong is reported and replaced by some valid one, so that the rule can still be compared with the
/// others: the rules are used only when nothing was reported.
pub(super) fn rule(raw: &RawRule, problems: &mut Problems) -> Option<Rule> {
    let mut checker = Checker { raw, settings: HashMap::new(), problems };
    checker.index_settings();
    let settings = Settings {
        credit_limit: checker.number(CREDIT_LIMIT, "how many hits are allowed in a window, or 0 to deny all"),
        reset_seconds: checker.number(RESET_SECONDS, "how many seconds a window lasts"),
    };
    Some(Rule {
        settings,
        quota: checker.quota(settings),
        actor_field: checker.text(ACTOR_FIELD),
        match_policy: checker.match_policy(),
        label: checker.label(),
        comment: checker.text(COMMENT),
        operation: checker.operation()?,
        line: raw.line,
    })
}

/// The line of a rule's setting, or that of the rule when it has no such setting.
pub(super) fn setting_line(raw: &RawRule, key: &str) -> usize {
    raw.settings.iter().find(|setting| setting.key == key).map_or(raw.line, |setting| setting.line)
}

struct Checker<'a> {
    raw: &'a RawRule,
    /// Known settings by key; the first when there are several.
    settings: HashMap<&'a str, &'a RawSetting>,
    problems: &'a mut Problems,
}

impl<'a> Checker<'a> {
    fn index_settings(&mut self) {
        for setting in &self.raw.settings {
            let key = setting.key.as_str();
            if !KNOWN_KEYS.contains(&key) {
                let fix = format!("did you mean `{}`?", nearest(key, &KNOWN_KEYS));
                self.error(setting.line, format!("unknown key `{key}`"), fix);
            } else if let Some(first) = self.settings.get(key) {
                let what = format!("`{key}` is set twice, first on line {}", first.line);
                self.error(setting.line, what, "keep one of them");
            } else {
                self.settings.insert(key, setting);
            }
        }
    }

    /// The setting, unless it is missing or `null`.
    fn setting(&self, key: &str) -> Option<&'a RawSetting> {
        self.settings.get(key).copied().filter(|setting| setting.value != RawValue::Null)
    }

    fn number(&mut self, key: &str, meaning: &str) -> u64 {
        let Some(setting) = self.setting(key) else {
            self.error(setting_line(self.raw, key), format!("`{key}` is missing"), format!("add it: {meaning}"));
            return 0;
        };
        let number = match &setting.value {
            RawValue::Number(text) => json_number(text),
            RawValue::Text(text) => digits(text),
            RawValue::Other(_) | RawValue::Null => None,
        };
        number.unwrap_or_else(|| {
            let text = setting.value.as_written();
            let wrong = match text.parse::<f64>() {
                Ok(number) if number < 0.0 => "is negative",
                Ok(number) if number.fract() != 0.0 => "is not whole",
                _ => "is not a whole number",
            };
            let what = format!("`{key}` {wrong}: {text:?}");
            self.error(setting.line, what, format!("write {meaning}, in digits only"));
            0
        })
    }

    fn quota(&mut self, settings: Settings) -> Quota {
        settings.quota().unwrap_or_else(|errors| {
            for error in errors {
                self.error(setting_line(self.raw, error.setting()), error.to_string(), "write a smaller number");
            }
            Quota::Never
        })
    }

    /// A text that is not empty.
    fn text(&mut self, key: &str) -> Option<String> {
        let setting = self.setting(key)?;
        let RawValue::Text(text) = &setting.value else {
            let what = format!("`{key}` is not a text: {}", setting.value.as_written());
            self.error(setting.line, what, "put it in quotes");
            return None;
        };
        Some(text.clone()).filter(|text| !text.is_empty())
    }

    fn match_policy(&mut self) -> MatchPolicy {
        let policies = [MatchPolicy::Stop, MatchPolicy::Canary];
        let Some(text) = self.text(MATCH_POLICY) else { return MatchPolicy::default() };
        policies.into_iter().find(|policy| policy.as_str() == text).unwrap_or_else(|| {
            let fix = format!("did you mean `{}`?", nearest(&text, &policies.map(MatchPolicy::as_str)));
            self.error(setting_line(self.raw, MATCH_POLICY), format!("unknown matchPolicy {text:?}"), fix);
            MatchPolicy::default()
        })
    }

    fn label(&mut self) -> Option<String> {
        let label = self.text(LABEL)?;
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        if label.len() > MAX_LABEL_LENGTH || !label.bytes().all(allowed) {
            let fix = format!("use at most {MAX_LABEL_LENGTH} letters, digits, `-` and `_`");
            self.error(setting_line(self.raw, LABEL), format!("bad label {label:?}"), fix);
        }
        Some(label)
    }

    fn operation(&mut self) -> Option<Vec<(String, Pattern)>> {
        let raw = self.raw;
        let mut operation: Vec<(String, Pattern)> = Vec::new();
        let mut seen = HashSet::new();
        for (key, value) in raw.operation.as_ref()? {
            if seen.insert(key) {
                operation.push((key.clone(), Pattern::parse(value)));
            } else {
                self.error(raw.line, format!("the operation names {key:?} twice"), "keep one of them");
            }
        }
        Some(operation)
    }

    fn error(&mut self, line: usize, what: impl Into<String>, fix: impl Into<String>) {
        self.problems.error(Place { line, operation: Some(&self.raw.header) }, what, fix);
    }
}

/// A number too large for 64 bits becomes the largest of them, which is out of every setting's range.
fn digits(text: &str) -> Option<u64> {
    let all_digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    all_digits.then(|| text.parse().unwrap_or(u64::MAX))
}

/// JSON may write a whole number as `60.0` or `6e1`.
fn json_number(text: &str) -> Option<u64> {
    digits(text).or_else(|| {
        let number: f64 = text.parse().ok()?;
        let whole = number >= 0.0 && number.fract() == 0.0 && !text.starts_with('-');
        // A cast from a float saturates.
        whole.then_some(number as u64)
    })
}
