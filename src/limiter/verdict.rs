//! The answer to a hit or a peek.

use crate::algorithm::Outcome;

/// The answer to a hit or a peek.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the request was granted.
    pub allowed: bool,
    /// Credits left now.
    pub credit: u64,
    /// Nanoseconds until more credits, as the rule's algorithm defines it.
    pub reset_ns: u64,
    /// Credits below 0, when none is left: see [`Outcome::owed`].
    pub owed: u64,
    /// Nanoseconds until the same request would be granted, if it was denied: see [`Outcome::retry_ns`].
    pub retry_ns: Option<u64>,
}

impl Verdict {
    /// The answer of a rule that counts nothing.
    pub(super) fn uncounted(allowed: bool, credit: u64) -> Self {
        Self { allowed, credit, reset_ns: 0, owed: 0, retry_ns: None }
    }

    /// The balance: credits left, below 0 if more was used. The nearest number of 64 bits.
    pub fn balance(&self) -> i64 {
        let balance = i128::from(self.credit) - i128::from(self.owed);
        i64::try_from(balance).unwrap_or(if self.owed > 0 { i64::MIN } else { i64::MAX })
    }
}

impl From<Outcome> for Verdict {
    fn from(Outcome { allowed, left, owed, reset_ns, retry_ns, .. }: Outcome) -> Self {
        Self { allowed, credit: left, reset_ns, owed, retry_ns }
    }
}
