//! The most general operation of a rule: other rules match it only if they match every operation that the rule matches.

use std::borrow::Cow;

use super::key::Key;
use super::values::Values;
use super::{Pattern, Rule};

/// The most general operation that a rule matches.
pub(super) struct MostGeneralOperation<'a> {
    rule: &'a Rule,
    values: Vec<(&'a str, Vec<u8>)>,
}

impl<'a> MostGeneralOperation<'a> {
    pub(super) fn of(rule: &'a Rule) -> Self {
        let values = rule.operation.iter().map(|(key, pattern)| (key.as_str(), pattern.most_general_value())).collect();
        Self { rule, values }
    }
}

impl Values for MostGeneralOperation<'_> {
    fn keys(&self) -> impl Iterator<Item = &str> {
        self.values.iter().map(|(key, _)| *key)
    }

    fn value(&self, key: &Key) -> Option<&[u8]> {
        self.values.iter().find(|(candidate, _)| *candidate == key.as_str()).map(|(_, value)| value.as_slice())
    }

    /// Returns a value that meets the rule's condition, if there is one. It meets each condition that contains the rule's,
    /// and perhaps others.
    fn value_for(&self, key: &Key, setting: &'static str) -> Option<Cow<'_, [u8]>> {
        let general = self.value(key)?;
        let own = self.rule.conditions().find(|own| own.setting() == setting && own.field == key.as_str());
        let is_exact = matches!(self.rule.pattern(key.as_str()), Some(Pattern::Literal(_)));
        let Some(own) = own.filter(|own| !own.is_inverted && !is_exact) else { return Some(Cow::Borrowed(general)) };
        Some(own.example().map_or(Cow::Borrowed(general), Cow::Owned))
    }
}
