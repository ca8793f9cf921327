//! Errors from compiling rules.

/// An error that prevents the rules from being compiled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleSetError {
    #[error(
        "key {key:?} has too many values with `*`, or too long ones, to match them at once; use fewer or shorter ones"
    )]
    TooManyGlobs { key: String },
    #[error("more than {} rules", u32::MAX)]
    TooManyRules,
}
