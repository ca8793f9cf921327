//! Errors from compiling rules.

use super::UnknownSpelling;

/// An error that prevents the rules from being compiled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleSetError {
    /// The glob patterns of one key exceed the matcher's size.
    #[error(
        "key {key:?} has too many values with `*`, or too long ones, to match them at once; use fewer or shorter ones"
    )]
    TooManyGlobs {
        /// The key.
        key: String,
    },
    /// Conditions are about too many fields.
    #[error("`networks` and `list` are about more than {max} fields; use fewer fields")]
    TooManyConditionFields {
        /// The maximum.
        max: usize,
    },
    /// The number of rules does not fit the index.
    #[error("more than {} rules", u32::MAX)]
    TooManyRules,
    /// Checks never have a value that these patterns match.
    #[error("patterns that no check matches")]
    UnknownSpellings(Vec<UnknownSpelling>),
}
