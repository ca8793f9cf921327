//! Quotas: the numbers that the operator wrote, and what they grant.

use std::num::NonZeroU64;

use crate::algorithm::{FixedWindow, Limit};
use crate::clock::NANOS_PER_SECOND;

/// The largest `creditLimit`: 2^53 - 1, the largest whole number that a JavaScript client reads exactly.
pub const MAX_CREDIT_LIMIT: u64 = (1 << 53) - 1;

/// The longest `resetSeconds`: 100 years, so that its nanoseconds fit a timestamp.
pub const MAX_RESET_SECONDS: u64 = 36_525 * 24 * 60 * 60;

/// What a rule grants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quota {
    /// `creditLimit` 0: every hit is denied, no counter is touched.
    Never,
    /// `creditLimit` > 0 and `resetSeconds` 0: every hit is allowed, the reply's credit is `credit`, no counter is
    /// touched.
    Always { credit: u64 },
    /// Counted.
    Limited(Limit),
}

/// The settings that decide a rule's [`Quota`], as the operator wrote them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// `creditLimit`, at most [`MAX_CREDIT_LIMIT`].
    pub credit_limit: u64,
    /// `resetSeconds`, at most [`MAX_RESET_SECONDS`].
    pub reset_seconds: u64,
}

/// A setting out of its range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuotaError {
    #[error("creditLimit is over {MAX_CREDIT_LIMIT}, the largest number that every client reads exactly")]
    CreditLimitTooLarge,
    #[error("resetSeconds is over {MAX_RESET_SECONDS}, which is 100 years")]
    ResetTooLong,
}

impl QuotaError {
    /// The name of the setting to correct.
    pub fn setting(&self) -> &'static str {
        match self {
            Self::CreditLimitTooLarge => "creditLimit",
            Self::ResetTooLong => "resetSeconds",
        }
    }
}

impl Settings {
    /// The settings under their names in a rules file.
    pub fn described(&self) -> Vec<(&'static str, String)> {
        vec![("creditLimit", self.credit_limit.to_string()), ("resetSeconds", self.reset_seconds.to_string())]
    }

    /// The quota that these settings describe.
    ///
    /// # Errors
    /// Every setting that is out of range.
    pub fn quota(&self) -> Result<Quota, Vec<QuotaError>> {
        let too_large = (self.credit_limit > MAX_CREDIT_LIMIT).then_some(QuotaError::CreditLimitTooLarge);
        let too_long = (self.reset_seconds > MAX_RESET_SECONDS).then_some(QuotaError::ResetTooLong);
        let errors: Vec<_> = too_large.into_iter().chain(too_long).collect();
        if !errors.is_empty() {
            return Err(errors);
        }
        let window_ns = NonZeroU64::new(self.reset_seconds.saturating_mul(NANOS_PER_SECOND));
        Ok(match (NonZeroU64::new(self.credit_limit), window_ns) {
            (None, _) => Quota::Never,
            (Some(credits), None) => Quota::Always { credit: credits.get() },
            (Some(credits), Some(window_ns)) => Quota::Limited(Limit::FixedWindow(FixedWindow { credits, window_ns })),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(credit_limit: u64, reset_seconds: u64) -> Result<Quota, Vec<QuotaError>> {
        Settings { credit_limit, reset_seconds }.quota()
    }

    #[test]
    fn zeros_have_meanings_of_their_own() {
        assert_eq!(quota(0, 0), Ok(Quota::Never));
        assert_eq!(quota(0, 60), Ok(Quota::Never));
        assert_eq!(quota(7, 0), Ok(Quota::Always { credit: 7 }));
    }

    #[test]
    fn the_largest_settings_fit() {
        let Ok(Quota::Limited(Limit::FixedWindow(limit))) = quota(MAX_CREDIT_LIMIT, MAX_RESET_SECONDS) else {
            panic!("the largest settings are a limit")
        };
        assert_eq!(limit.window_ns.get() / NANOS_PER_SECOND, MAX_RESET_SECONDS);
    }

    #[test]
    fn all_that_is_out_of_range_is_named() {
        let both = vec![QuotaError::CreditLimitTooLarge, QuotaError::ResetTooLong];
        assert_eq!(quota(MAX_CREDIT_LIMIT + 1, MAX_RESET_SECONDS + 1), Err(both));
    }
}
