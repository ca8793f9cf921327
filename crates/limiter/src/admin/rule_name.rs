//! The names of a rule for operators.

use super::error::AdminError;
use crate::policy::{Bucket, Policy};
use crate::refusal::Refusal;
use divvy_core::rules::{Operation, Rule, Scope, header};

/// Maximum number of characters of a name that an error repeats. A client may have sent a very long one.
pub(super) const SHOWN: usize = 200;

/// The name of a rule.
#[derive(Debug, Clone, Copy)]
pub enum RuleName<'a> {
    /// The rule's name in answers and listings: see [`Rule::name`].
    Name(&'a str),
    /// The rule's operation as in the rules file, with pairs in any order.
    Operation(&'a Operation),
}

impl RuleName<'_> {
    /// Checks that the rule is in scope, with this actor if one is named. The answer about a rule out of scope does not
    /// depend on whether it exists.
    pub(super) fn check(self, policy: Option<&Policy>, actor: Option<&str>, scope: &Scope) -> Result<(), Refusal> {
        let rule = policy.and_then(|policy| policy.rules.rules().get(self.index(policy).ok()?));
        let label = if let Self::Name(name) = self { Some(name) } else { None };
        if scope.covers(rule, label, actor) { Ok(()) } else { Err(Refusal::OutOfScope) }
    }

    /// Finds the rule and its bucket. The rule must have a counter.
    pub(super) fn find(self, policy: &Policy) -> Result<(&Rule, &Bucket), AdminError> {
        let found = self.index(policy)?;
        let rule = policy.rules.rules().get(found).zip(policy.bucket(found));
        rule.ok_or_else(|| AdminError::Uncounted(self.shown()))
    }

    /// Finds the index of the rule.
    pub(super) fn index(self, policy: &Policy) -> Result<usize, AdminError> {
        match self {
            Self::Name(name) => policy.rules.find_by_name(name).ok_or_else(|| AdminError::NoSuchName(self.shown())),
            Self::Operation(operation) => {
                // A rule has each key once. So if there are as many pairs, and all of them are found, they are the same
                // pairs.
                let is_same = |(_, rule): &(usize, &Rule)| {
                    rule.operation.len() == operation.iter().len()
                        && rule.pairs().all(|(key, value)| operation.get(key) == Some(value))
                };
                let mut found = policy.rules.rules().iter().enumerate().filter(is_same);
                match (found.next(), found.next()) {
                    (Some((index, _)), None) => Ok(index),
                    (Some(_), Some(_)) => Err(AdminError::AmbiguousOperation(self.shown())),
                    (None, _) => Err(AdminError::NoSuchOperation(self.shown())),
                }
            }
        }
    }

    /// Finds the rule as [`RuleName::find`] does, for a change of its counters. The rule must not be named by its
    /// position, because the change would apply to another rule if the file was reordered.
    pub(super) fn find_for_change(self, policy: &Policy) -> Result<(&Rule, &Bucket), AdminError> {
        let found = self.find(policy)?;
        if let Self::Name(name) = self {
            lasting_name(name, found.0)?;
        }
        Ok(found)
    }

    /// Returns the start of the name, for an error.
    pub(super) fn shown(self) -> String {
        match self {
            Self::Name(name) => name.chars().take(SHOWN).collect(),
            Self::Operation(operation) => header(operation.iter()).chars().take(SHOWN).collect(),
        }
    }
}

/// Returns the name of a rule that was found by `name`, unless that name depends on the order of the rules.
pub(super) fn lasting_name<'a>(name: &str, rule: &'a Rule) -> Result<&'a str, AdminError> {
    rule.lasting_name().ok_or_else(|| AdminError::Unlabeled(RuleName::Name(name).shown()))
}
