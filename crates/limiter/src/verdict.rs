//! The answer to a hit or a peek.

use divvy_core::algorithm::Outcome;

/// The answer to a hit or a peek.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the request was granted.
    pub allowed: bool,
    /// Credits left now.
    pub credit: u64,
    /// Nanoseconds until there are more credits, as the rule's algorithm defines it.
    pub reset_ns: u64,
    /// Credits used beyond the limit, if none is left. See [`Outcome::owed`].
    pub owed: u64,
    /// Nanoseconds until the same request would be granted, if it was denied: see [`Outcome::retry_ns`].
    pub retry_ns: Option<u64>,
}

impl Verdict {
    /// Returns the answer of a rule without a counter.
    pub(super) fn uncounted(allowed: bool, credit: u64) -> Self {
        Self { allowed, credit, reset_ns: 0, owed: 0, retry_ns: None }
    }

    /// Returns the answer to a blocked actor. `ends_ns` is the time until its block ends, if it does.
    pub(super) fn blocked(ends_ns: Option<u64>) -> Self {
        Self { reset_ns: ends_ns.unwrap_or(0), retry_ns: ends_ns, ..Self::uncounted(false, 0) }
    }

    /// Returns the balance: credits left, negative if more were used than there were. Capped to 64 bits.
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
