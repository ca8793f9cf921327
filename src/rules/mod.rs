//! Policy: which limits apply to an operation.
//!
//! A [`Rule`] is what the operator wrote, validated; a [`RuleSet`] is all of them, compiled so that matching does not
//! grow with their number. Nothing here reads files, counts hits or knows a store.

pub mod operation;
pub mod operation_text;

pub use operation::Operation;

use crate::algorithm::Limit;

/// What a rule grants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quota {
    /// `creditLimit` 0: every hit is denied, no counter is touched.
    Never,
    /// `creditLimit` > 0 and `resetSeconds` 0: every hit is allowed, the reply's credit is `credit`, no counter is touched.
    Always { credit: u64 },
    /// Counted.
    Limited(Limit),
}

/// What happens after a rule matched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MatchPolicy {
    /// The rule answers.
    #[default]
    Stop,
    /// The rule is counted and takes credit, and matching goes on: a limit on trial.
    Canary,
}
