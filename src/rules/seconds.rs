//! Times as operators write them: seconds, with fractions down to the nanosecond.

use std::fmt;
use std::time::Duration;

/// A time in seconds, exact, without floating point. Displays as a decimal number without trailing zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Seconds(pub Duration);

impl Seconds {
    /// Returns a time without a fraction.
    pub const fn whole(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    /// Returns whether the time is exactly 0.
    pub fn is_zero(self) -> bool {
        self.0.is_zero()
    }

    /// Returns whole seconds; `None` if there is a fraction.
    pub fn as_whole(self) -> Option<u64> {
        (self.0.subsec_nanos() == 0).then_some(self.0.as_secs())
    }

    /// Returns nanoseconds, at most the 584 years that fit 64 bits.
    pub fn as_nanos(self) -> u64 {
        u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX)
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, nanos) = (self.0.as_secs(), self.0.subsec_nanos());
        if nanos == 0 {
            return write!(f, "{whole}");
        }
        let decimals = format!("{nanos:09}");
        write!(f, "{whole}.{}", decimals.trim_end_matches('0'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_display_as_decimals() {
        let text = |seconds, nanos| Seconds(Duration::new(seconds, nanos)).to_string();
        assert_eq!(text(60, 0), "60");
        assert_eq!(text(0, 250_000_000), "0.25");
        assert_eq!(text(3_155_760_000, 1), "3155760000.000000001");
    }

    #[test]
    fn nanoseconds_saturate() {
        assert_eq!(Seconds(Duration::new(1, 5)).as_nanos(), 1_000_000_005);
        assert_eq!(Seconds::whole(u64::MAX).as_nanos(), u64::MAX);
    }
}
