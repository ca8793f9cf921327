//! Times in a file with test cases.

use std::fmt;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error, Visitor};

use crate::cli::units::{self, Time};
use crate::clock::Timestamp;

/// Maximum time in a case: a little longer than the longest window of a rule, which is 100 years.
const MAX_SECONDS: u64 = 101 * 366 * 24 * 60 * 60;

/// A time since the start of a case, in seconds or with a unit. Displays with its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elapsed(Time);

impl Elapsed {
    pub const ZERO: Self = Self(Time(Duration::ZERO));

    pub fn nanos(self) -> u64 {
        u64::try_from(self.0.0.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Returns the seconds, rounded up as in an answer.
    pub fn whole_seconds(self) -> u64 {
        self.0.whole_seconds()
    }

    pub fn seconds(self) -> f64 {
        self.0.0.as_secs_f64()
    }

    fn parse<E: Error>(text: &str) -> Result<Self, E> {
        units::seconds(0..=MAX_SECONDS)(text).map(Self).map_err(E::custom)
    }
}

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // 0 would otherwise be shown without a unit.
        if *self == Self::ZERO { f.write_str("0s") } else { self.0.fmt(f) }
    }
}

impl<'de> Deserialize<'de> for Elapsed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ElapsedVisitor)
    }
}

struct ElapsedVisitor;

impl Visitor<'_> for ElapsedVisitor {
    type Value = Elapsed;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("seconds, or a time such as \"90s\"")
    }

    fn visit_u64<E: Error>(self, seconds: u64) -> Result<Elapsed, E> {
        Elapsed::parse(&seconds.to_string())
    }

    fn visit_i64<E: Error>(self, seconds: i64) -> Result<Elapsed, E> {
        Elapsed::parse(&seconds.to_string())
    }

    fn visit_f64<E: Error>(self, seconds: f64) -> Result<Elapsed, E> {
        Elapsed::parse(&seconds.to_string())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Elapsed, E> {
        Elapsed::parse(text)
    }
}

/// The start of a case.
#[derive(Debug, Clone, Copy, serde::Deserialize)]
#[serde(try_from = "String")]
pub struct Start(pub Timestamp);

impl TryFrom<String> for Start {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a time such as \"2026-03-01T09:30:00Z\", in 1970 or later");
        let moment: jiff::Timestamp = text.parse().map_err(|_| wrong())?;
        let nanos = u64::try_from(moment.as_nanosecond()).map_err(|_| wrong())?;
        Ok(Self(Timestamp::from_nanos(nanos)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_a_number_of_seconds_or_has_a_unit() {
        let parse = |json: &str| serde_json::from_str::<Elapsed>(json).unwrap();
        for (json, nanos, shown) in [
            ("0", 0, "0s"),
            ("90", 90_000_000_000, "90s"),
            ("0.25", 250_000_000, "250ms"),
            ("\"1.5h\"", 5_400_000_000_000, "90m"),
            ("\"31d\"", 2_678_400_000_000_000, "31d"),
        ] {
            assert_eq!((parse(json).nanos(), parse(json).to_string().as_str()), (nanos, shown), "{json}");
        }
        assert_eq!(parse("0.25").whole_seconds(), 1);
        for (json, part) in
            [("-1", "must be a time"), ("\"1y\"", "unknown unit"), ("1e300", "must be from 0"), ("[]", "seconds, or")]
        {
            let error = serde_json::from_str::<Elapsed>(json).unwrap_err().to_string();
            assert!(error.contains(part), "{json}: {error}");
        }
    }

    #[test]
    fn start_is_rfc_3339() {
        let nanos = |json: &str| serde_json::from_str::<Start>(json).map(|start| start.0.as_nanos());
        assert_eq!(nanos("\"1970-01-01T01:00:01+01:00\"").unwrap(), 1_000_000_000);
        for json in ["\"2026-03-01\"", "\"1969-12-31T23:59:59Z\"", "\"9999-01-01T00:00:00Z\"", "\"soon\""] {
            assert!(nanos(json).unwrap_err().to_string().contains("is not a time such as"), "{json}");
        }
    }
}
