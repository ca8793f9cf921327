//! A request's part at one rule.

use crate::store::Action;

/// The action of a request on a rule.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    /// Index among the policy's rules.
    pub rule: usize,
    pub action: Action,
    /// The rule has a part in the request only if no other rule answers.
    pub is_absent: bool,
}
