//! Why rules cannot be compiled.

/// Rules that cannot be compiled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleSetError {
    #[error(
        "the values with `*` of key {key:?} are too many or too long to be matched at once; use fewer or shorter ones"
    )]
    TooManyGlobs { key: String },
    #[error("more than {} rules", u32::MAX)]
    TooManyRules,
}
