//! How operators name a rule.

use super::error::AdminError;
use crate::limiter::policy::{Bucket, Policy};
use crate::rules::{Operation, Rule, header};

/// Characters of a name that an error repeats. A client may have sent a very long one.
pub(super) const SHOWN: usize = 200;

/// The name of a rule.
#[derive(Debug, Clone, Copy)]
pub enum RuleName<'a> {
    /// The rule's name in answers and listings: see [`Rule::name`].
    Name(&'a str),
    /// The rule's operation, as the rules file has it, in any order.
    Operation(&'a Operation),
}

impl RuleName<'_> {
    /// Finds the rule, which must count, and its bucket.
    pub(super) fn find(self, policy: &Policy) -> Result<(&Rule, &Bucket), AdminError> {
        let rules = policy.rules.rules();
        let found = match self {
            Self::Name(name) => policy.rules.find_by_name(name).ok_or_else(|| AdminError::NoSuchName(self.shown()))?,
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

    /// Finds the rule like [`RuleName::find`], for a change of its counters. It must not be named by its position, because the
    /// change would apply to another rule if the file was reordered.
    pub(super) fn find_for_change(self, policy: &Policy) -> Result<(&Rule, &Bucket), AdminError> {
        let found = self.find(policy)?;
        if let Self::Name(name) = self {
            lasting_name(name, found.0)?;
        }
        Ok(found)
    }

    /// Returns the start of the name.
    pub(super) fn shown(self) -> String {
        match self {
            Self::Name(name) => name.chars().take(SHOWN).collect(),
            Self::Operation(operation) => header(operation.iter()).chars().take(SHOWN).collect(),
        }
    }
}

/// Returns the name of a rule that was found by `name`, if that does not depend on the order of the rules.
pub(super) fn lasting_name<'a>(name: &str, rule: &'a Rule) -> Result<&'a str, AdminError> {
    rule.lasting_name().ok_or_else(|| AdminError::Unlabeled(RuleName::Name(name).shown()))
}
