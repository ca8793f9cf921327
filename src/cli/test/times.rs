//! Times in a file with test cases.

use std::fmt;
use std::time::Duration;

use divvy_core::clock::Timestamp;
use divvy_core::units::{self, Time};

/// Maximum time in a case: the longest that a clock can measure.
const MAX_SECONDS: u64 = u64::MAX / 1_000_000_000;

/// The last second that a [`Timestamp`] can represent.
pub const LAST_TIME: &str = "2554-07-21T23:34:33Z";

/// A time since the start of a case, in seconds or with a unit. Displays with its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "Written")]
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

    pub fn is_whole_seconds(self) -> bool {
        self.0.is_whole_seconds()
    }

    pub fn seconds(self) -> f64 {
        self.0.0.as_secs_f64()
    }
}

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // 0 would otherwise be shown without a unit.
        if *self == Self::ZERO { f.write_str("0s") } else { self.0.fmt(f) }
    }
}

impl TryFrom<Written> for Elapsed {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        let text = match written {
            Written::Whole(seconds) => seconds.to_string(),
            Written::Number(seconds) => seconds.to_string(),
            Written::Text(text) => text,
        };
        units::seconds(0..=MAX_SECONDS)(&text).map(Self)
    }
}

/// An expected time until the reset, in whole seconds. A number may be as large as the number in any answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "Written")]
pub struct ResetSeconds(pub u64);

impl TryFrom<Written> for ResetSeconds {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        match written {
            Written::Whole(seconds) => Ok(Self(seconds)),
            other => Elapsed::try_from(other).map(|time| Self(time.whole_seconds())),
        }
    }
}

/// A time as the file has it.
#[derive(serde::Deserialize)]
#[serde(untagged, expecting = "expected seconds, or a time such as \"90s\"")]
enum Written {
    Whole(u64),
    Number(f64),
    Text(String),
}

/// The start of a case.
#[derive(Debug, Clone, Copy, serde::Deserialize)]
#[serde(try_from = "String")]
pub struct Start(pub Timestamp);

impl TryFrom<String> for Start {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a time from 1970 to {LAST_TIME}, such as \"2026-03-01T09:30:00Z\"");
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
            [("-1", "is not a time"), ("\"1y\"", "is not a time"), ("1e300", "must be from 0"), ("[]", "seconds, or")]
        {
            let error = serde_json::from_str::<Elapsed>(json).unwrap_err().to_string();
            assert!(error.contains(part), "{json}: {error}");
        }
    }

    #[test]
    fn reset_may_be_as_large_as_in_an_answer() {
        let parse = |json: &str| serde_json::from_str::<ResetSeconds>(json).unwrap().0;
        for (json, seconds) in
            [("18446744073709551615", u64::MAX), ("\"1.5s\"", 2), ("0.5", 1), ("\"40000d\"", 3_456_000_000)]
        {
            assert_eq!(parse(json), seconds, "{json}");
        }
        for (json, part) in [("-1", "is not a time"), ("\"1y\"", "is not a time"), ("[]", "seconds, or")] {
            let error = serde_json::from_str::<ResetSeconds>(json).unwrap_err().to_string();
            assert!(error.contains(part), "{json}: {error}");
        }
    }

    #[test]
    fn last_time_is_the_last_second_of_a_timestamp() {
        let last = Start::try_from(LAST_TIME.to_owned()).unwrap().0;
        assert_eq!(last.as_nanos() / 1_000_000_000, u64::MAX / 1_000_000_000);
    }

    #[test]
    fn start_is_rfc_3339() {
        let nanos = |json: &str| serde_json::from_str::<Start>(json).map(|start| start.0.as_nanos());
        assert_eq!(nanos("\"1970-01-01T01:00:01+01:00\"").unwrap(), 1_000_000_000);
        for json in ["\"2026-03-01\"", "\"1969-12-31T23:59:59Z\"", "\"9999-01-01T00:00:00Z\"", "\"soon\""] {
            assert!(
                nanos(json)
                    .unwrap_err()
                    .to_string()
                    .contains("is not a time from 1970 to 2554-07-21T23:34:33Z, such as"),
                "{json}"
            );
        }
    }
}
