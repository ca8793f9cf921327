//! The rule that a command is about, owned, so that a task can keep it.

use crate::limiter::counters::RuleName;
use crate::protocol::command::{CommandError, NamedRule};
use crate::rules::Operation;

/// A rule, by its name or its operation.
pub enum RuleSelector {
    Name(String),
    Operation(Operation),
}

impl RuleSelector {
    /// Copies the rule's name.
    ///
    /// # Errors
    /// The pairs that name the rule are invalid.
    pub fn new(rule: NamedRule<'_>, max_pairs: usize) -> Result<Self, CommandError> {
        Ok(match rule {
            NamedRule::Name(name) => Self::Name(name.to_owned()),
            NamedRule::Operation(pairs) => {
                let mut operation = Operation::new();
                pairs.read_into(&mut operation, max_pairs)?;
                Self::Operation(operation)
            }
        })
    }

    pub fn name(&self) -> RuleName<'_> {
        match self {
            Self::Name(name) => RuleName::Name(name),
            Self::Operation(operation) => RuleName::Operation(operation),
        }
    }
}
