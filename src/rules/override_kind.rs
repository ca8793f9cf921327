//! The kinds of overrides.

use std::fmt;

use serde::Serialize;

/// An operator's decision about a single actor, in place of the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OverrideKind {
    /// The actor is always denied.
    Block,
    /// The actor is never denied.
    Allow,
}

impl OverrideKind {
    /// All kinds.
    pub const ALL: [Self; 2] = [Self::Block, Self::Allow];

    /// Returns the word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::Allow => "allow",
        }
    }
}

impl fmt::Display for OverrideKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
