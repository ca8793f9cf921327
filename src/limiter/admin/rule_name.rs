//! How operators name a rule.

use super::error::AdminError;
use crate::limiter::policy::{Bucket, DEFAULT_RULE, Policy};
use crate::rules::{Operation, Rule, header};

/// Characters of a name that an error repeats. A client may have sent a very long one.
const SHOWN: usize = 200;

/// The name of a rule.
#[derive(Debug, Clone, Copy)]
pub enum RuleName<'a> {
    /// The rule's label, or `default` for the default rule.
    Label(&'a str),
    /// The rule's operation, as the rules file has it, in any order.
    Operation(&'a Operation),
}

impl RuleName<'_> {
    /// Finds the rule, which must count, and its bucket.
    pub(super) fn find(self, policy: &Policy) -> Result<(&Rule, &Bucket), AdminError> {
        let rules = policy.rules.rules();
        let found = match self {
            Self::Label(label) => rules
                .iter()
                .position(|rule| rule.label.as_deref() == Some(label))
                .or_else(|| rules.iter().position(|rule| label == DEFAULT_RULE && rule.is_default()))
                .ok_or_else(|| AdminError::NoSuchLabel(self.shown()))?,
            Self::Operation(operation) => {
                // A rule has every key once. So as many pairs, all of them found, are the same pairs.
                let is_same = |(_, rule): &(usize, &Rule)| {
                    rule.operation.len() == operation.iter().len()
                        && rule.pairs().all(|(key, value)| operation.get(key) == Some(value))
                };
                let mut found = rules.iter().enumerate().filter(is_same);
                match (found.next(), found.next()) {
                    (Some((index, _)), None) => index,
                    (Some(_), Some(_)) => return Err(AdminError::AmbiguousOperation(self.shown())),
                    (None, _) => return Err(AdminError::NoSuchOperation(self.shown())),
                }
            }
        };
        let rule = rules.get(found).zip(policy.bucket(found));
        rule.ok_or_else(|| AdminError::Uncounted(self.shown()))
    }

    /// Returns the start of the name.
    fn shown(self) -> String {
        match self {
            Self::Label(label) => label.chars().take(SHOWN).collect(),
            Self::Operation(operation) => header(operation.iter()).chars().take(SHOWN).collect(),
        }
    }
}
