//! The settings of a rule by their names: the one list that files, replies and comparisons of rules are made from.

use std::fmt;

use super::setting_name::{
    ACTOR_FIELD, ACTOR_PREFIX, ALGORITHM, BLOCK_AFTER, BLOCK_FACTOR, BLOCK_FORGET, BLOCK_MAX, BLOCK_SECONDS,
    BLOCK_WINDOW, BURST, COMMENT, COST_FIELD, COUNTER, CREDIT_LIMIT, HOLD_FIELD, LABEL, LIMIT, LIST, MATCH_POLICY,
    MIDNIGHT, NETWORKS, OVERRUN, REFILL_CREDITS, REFILL_SECONDS, RESET_AT, RESET_SECONDS, TIMEZONE, UNLIMITED, UTC,
    WINDOW,
};
use super::{ActorPrefix, Condition, MatchPolicy, Overrun, Rule};
use crate::calendar;

/// A setting of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedSetting {
    /// Name of the setting in a rules file.
    pub name: &'static str,
    /// Value of the setting.
    pub value: SettingValue,
    /// Whether the rule means the same without the setting.
    pub is_default: bool,
}

/// The value of a setting. Displays as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingValue {
    /// A word or a text.
    Text(String),
    /// Digits, perhaps with decimals. May be more than a floating-point number can hold.
    Number(String),
    /// Names of fields, at least one.
    Fields(Vec<String>),
    /// A field, and a text about it. Displays as `field: text`.
    OfField(String, String),
}

impl fmt::Display for SettingValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) | Self::Number(text) => f.write_str(text),
            Self::Fields(fields) => f.write_str(&fields.join(", ")),
            Self::OfField(field, text) => write!(f, "{field}: {text}"),
        }
    }
}

impl Rule {
    /// The name of the header in [`Rule::describe`].
    pub(super) const HEADER: &str = "rule";
    /// Name of the setting for people, which nothing depends on.
    pub const COMMENT: &str = COMMENT;
    /// Name of the setting that says what a hit does that costs more than is left.
    pub const OVERRUN: &str = OVERRUN;

    /// Returns its settings by their names in a rules file, preceded by its header as `rule`. The algorithm and the
    /// match policy are always included, others only if they were given.
    pub fn describe(&self) -> Vec<(&'static str, String)> {
        let settings = self.named_settings().map(|setting| (setting.name, setting.value.to_string()));
        std::iter::once((Self::HEADER, self.to_string())).chain(settings).collect()
    }

    /// Returns its settings in the order of the documentation. The algorithm, the match policy and all settings of a
    /// calendar and of a penalty are always included, others only if they were given.
    pub fn named_settings(&self) -> impl Iterator<Item = NamedSetting> {
        let text = |text: &Option<String>| text.clone().map(SettingValue::Text);
        let word = |word: &str| SettingValue::Text(word.to_owned());
        let condition = |condition: &Condition| SettingValue::OfField(condition.field.clone(), condition.entries());
        let prefix = |prefix: &ActorPrefix| SettingValue::OfField(prefix.field.clone(), prefix.lengths.to_string());
        let number = |number: &dyn ToString| SettingValue::Number(number.to_string());
        let (numbers, calendar) = (&self.settings, self.settings.calendar);
        let reset_at = calendar.filter(|calendar| calendar.unit().has_time_of_day());
        let is_unlimited = numbers.are_unlimited();
        let settings = [
            (LIMIT, is_unlimited.then(|| word(UNLIMITED))),
            (CREDIT_LIMIT, (!is_unlimited).then(|| number(&numbers.credit_limit))),
            (RESET_SECONDS, (!is_unlimited && calendar.is_none()).then(|| number(&numbers.reset_seconds))),
            (WINDOW, calendar.map(|calendar| word(calendar.unit().name()))),
            (TIMEZONE, calendar.map(|calendar| word(calendar.zone()))),
            (RESET_AT, reset_at.map(|calendar| word(&calendar::write_time_of_day(calendar.reset_at())))),
            (ALGORITHM, Some(word(numbers.algorithm().name()))),
            (REFILL_CREDITS, numbers.refill_credits.map(|credits| number(&credits))),
            (REFILL_SECONDS, numbers.refill_seconds.map(|seconds| number(&seconds))),
            (BURST, numbers.burst.map(|credits| number(&credits))),
            (NETWORKS, self.networks.as_ref().map(condition)),
            (LIST, self.list.as_ref().map(condition)),
            (
                ACTOR_FIELD,
                Some(self.actor_fields.clone()).filter(|fields| !fields.is_empty()).map(SettingValue::Fields),
            ),
            (ACTOR_PREFIX, self.actor_prefix.as_ref().map(prefix)),
            (COST_FIELD, text(&self.cost_field)),
            (OVERRUN, (self.overrun != Overrun::default()).then(|| word(self.overrun.as_str()))),
            (HOLD_FIELD, text(&self.hold_field)),
            (COUNTER, text(&self.counter)),
            (BLOCK_AFTER, self.penalty.map(|penalty| number(&penalty.after))),
            (BLOCK_WINDOW, self.penalty.map(|penalty| number(&penalty.window_seconds()))),
            (BLOCK_SECONDS, self.penalty.map(|penalty| number(&penalty.seconds))),
            (BLOCK_FACTOR, self.penalty.map(|penalty| number(&penalty.growth()))),
            (BLOCK_MAX, self.penalty.map(|penalty| number(&penalty.max_seconds()))),
            (BLOCK_FORGET, self.penalty.map(|penalty| number(&penalty.forget_seconds()))),
            (MATCH_POLICY, Some(word(self.match_policy.as_str()))),
            (LABEL, text(&self.label)),
            (COMMENT, text(&self.comment)),
        ];
        settings.into_iter().filter_map(|(name, value)| {
            let value = value?;
            Some(NamedSetting { name, is_default: self.is_default_setting(name, &value), value })
        })
    }

    fn is_default_setting(&self, name: &str, value: &SettingValue) -> bool {
        match (name, value) {
            (ALGORITHM, _) => self.settings.algorithm.is_none(),
            (MATCH_POLICY, _) => self.match_policy == MatchPolicy::default(),
            (BLOCK_WINDOW, _) => self.penalty.is_some_and(|penalty| penalty.window.is_none()),
            (BLOCK_FACTOR, _) => self.penalty.is_some_and(|penalty| penalty.factor.is_none()),
            (BLOCK_MAX, _) => self.penalty.is_some_and(|penalty| penalty.max.is_none()),
            (BLOCK_FORGET, _) => self.penalty.is_some_and(|penalty| penalty.forget.is_none()),
            (TIMEZONE, SettingValue::Text(zone)) => zone == UTC,
            (RESET_AT, SettingValue::Text(time)) => time == MIDNIGHT,
            _ => false,
        }
    }
}
