//! Sizes and times as operators write them: `64Ki`, `1.5G`, `250ms`, `1h30m`.
//!
//! This is the only parser of times, for flags, rules files, test cases and CrowdSec's messages. jiff's parser of spans is
//! no substitute: it refuses fractions of days and weeks, and it accepts months and years, whose lengths differ.
//!
//! Each parser of a flag is given the range of the flag. A number without a unit is in the unit of the flag's placeholder:
//! bytes, seconds or milliseconds.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::clock::{NANOS_PER_MILLI, NANOS_PER_SECOND};

/// Maximum size of anything in memory (bytes). Sums of a few such sizes fit into 64 bits.
pub const MAX_IN_MEMORY: u64 = 1 << 40;
/// Maximum time in a flag: one year. Much longer times would overflow a clock.
pub const MAX_SECONDS: u64 = 365 * 24 * 60 * 60;

const KI: u64 = 1 << 10;
const SIZES: [(&str, u64); 6] =
    [("Gi", KI * KI * KI), ("Mi", KI * KI), ("Ki", KI), ("G", 1_000_000_000), ("M", 1_000_000), ("K", 1_000)];

/// The units of time and their nanoseconds, the largest first. Programs in Go write those below a millisecond, and a
/// microsecond with the micro sign or with the Greek letter.
const TIMES: [(&str, u64); 10] = [
    ("w", 604_800 * NANOS_PER_SECOND),
    ("d", 86_400 * NANOS_PER_SECOND),
    ("h", 3_600 * NANOS_PER_SECOND),
    ("m", 60 * NANOS_PER_SECOND),
    ("s", NANOS_PER_SECOND),
    ("ms", NANOS_PER_MILLI),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ns", 1),
];

/// Maximum number of digits after the decimal point.
const MAX_DECIMALS: usize = 18;

/// The error for a text that is not a time.
pub(crate) const NOT_A_TIME: &str = "is not a time, such as 90s or 1h30m (units: ms, s, m, h, d and w)";
const NOT_A_SIZE: &str = "is not a number of bytes, such as 65536, 64Ki or 1.5M (units: K, M, G, Ki, Mi and Gi)";

/// A size in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl Bytes {
    /// Returns the size of something in memory.
    pub fn in_memory(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl From<usize> for Bytes {
    fn from(bytes: usize) -> Self {
        Self(bytes as u64)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_in_largest_unit(f, self.0, &SIZES)
    }
}

/// A size for people, in its largest binary unit with at most one decimal.
#[derive(Debug, Clone, Copy)]
pub struct Approximate(pub u64);

impl fmt::Display for Approximate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = SIZES.iter().filter(|(name, _)| name.ends_with('i')).find(|(_, factor)| self.0 >= *factor);
        match unit {
            Some((name, factor)) if self.0.is_multiple_of(*factor) => write!(f, "{} {name}B", self.0 / factor),
            Some((name, factor)) => write!(f, "{:.1} {name}B", self.0 as f64 / *factor as f64),
            None => write!(f, "{} B", self.0),
        }
    }
}

/// A time in whole nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Time(pub Duration);

impl Time {
    /// Returns the seconds, rounded up.
    pub fn whole_seconds(self) -> u64 {
        self.0.as_secs() + u64::from(self.0.subsec_nanos() > 0)
    }

    /// Returns whether it has no fraction of a second.
    pub fn is_whole_seconds(self) -> bool {
        self.0.subsec_nanos() == 0
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match u64::try_from(self.0.as_nanos()) {
            Ok(nanos) if nanos.is_multiple_of(NANOS_PER_MILLI) => write_in_largest_unit(f, nanos, &TIMES),
            _ => write!(f, "{:?}", self.0),
        }
    }
}

/// A parser of a flag's value. An error says what is wrong with it.
pub trait Parse<T>: Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {}

impl<T, F: Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static> Parse<T> for F {}

/// Parses a number within `range`.
pub fn count<T: TryFrom<u64>>(range: RangeInclusive<u64>) -> impl Parse<T> {
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        let number = number.and_then(|number| T::try_from(number).ok());
        number.ok_or_else(|| format!("must be a whole number from {} to {}", range.start(), range.end()))
    }
}

/// Parses a size within `range` of bytes.
pub fn bytes(range: RangeInclusive<u64>) -> impl Parse<Bytes> {
    move |text| {
        let (number, unit) = Decimal::split_from(text).ok_or(NOT_A_SIZE)?;
        let unit = match unit {
            "" => 1,
            _ => SIZES.iter().find(|(name, _)| *name == unit).ok_or(NOT_A_SIZE)?.1,
        };
        let (bytes, is_exact) = number.in_units_of(unit);
        if !is_exact {
            return Err("is not a whole number of bytes".to_owned());
        }
        let bytes = u64::try_from(bytes).ok().filter(|bytes| range.contains(bytes));
        bytes.map(Bytes).ok_or_else(|| describe_range(Bytes(*range.start()), Bytes(*range.end())))
    }
}

/// Parses a time within `range` of seconds. A number without a unit is in seconds.
pub fn seconds(range: RangeInclusive<u64>) -> impl Parse<Time> {
    time(range, NANOS_PER_SECOND)
}

/// Parses a whole number of seconds as [`seconds`] does.
pub fn whole_seconds(range: RangeInclusive<u64>) -> impl Parse<Time> {
    let parse = seconds(range);
    move |text| {
        let time = parse(text)?;
        if time.is_whole_seconds() { Ok(time) } else { Err("must be a whole number of seconds".to_owned()) }
    }
}

/// Parses a time within `range` of milliseconds. A number without a unit is in milliseconds.
pub fn millis(range: RangeInclusive<u64>) -> impl Parse<Time> {
    time(range, NANOS_PER_MILLI)
}

fn time(range: RangeInclusive<u64>, bare: u64) -> impl Parse<Time> {
    let of = move |count: u64| Duration::from_nanos(count.saturating_mul(bare));
    let (shortest, longest) = (of(*range.start()), of(*range.end()));
    move |text| {
        let time = parse_time(text, Some(bare)).ok_or(NOT_A_TIME)?;
        if !(shortest..=longest).contains(&time) {
            return Err(describe_range(Time(shortest), Time(longest)));
        }
        // A task with a shorter interval would run all the time.
        if !time.is_zero() && time < Duration::from_millis(1) {
            return Err("is shorter than 1ms, the shortest time that is not 0".to_owned());
        }
        Ok(Time(time))
    }
}

fn describe_range<T: fmt::Display>(least: T, most: T) -> String {
    format!("must be from {least} to {most}")
}

/// Parses a time with a unit: `90s`, `1.5h`, `1h30m`. Returns `None` for other texts. See [`parse_time`] for details.
pub fn parse_duration(text: &str) -> Option<Duration> {
    parse_time(text, None)
}

/// Parses a number of `bare` nanoseconds, or numbers with units, the largest unit first. A day has 24 hours.
///
/// The result is rounded down to whole nanoseconds, but only 0 becomes 0. A time that does not fit becomes the longest.
fn parse_time(text: &str, bare: Option<u64>) -> Option<Duration> {
    let mut nanos: u128 = 0;
    let (mut rest, mut units) = (text, TIMES.as_slice());
    loop {
        let (number, after) = Decimal::split_from(rest)?;
        let length = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (name, after) = after.split_at_checked(length)?;
        let unit = match bare {
            Some(bare) if name.is_empty() && rest == text => bare,
            _ => {
                let at = units.iter().position(|(known, _)| *known == name)?;
                let (found, smaller) = units.get(at..)?.split_first()?;
                units = smaller;
                found.1
            }
        };
        nanos = nanos.saturating_add(number.in_units_of(unit).0.max(number.digits.min(1)));
        rest = after;
        if rest.is_empty() {
            break;
        }
    }
    let (seconds, nanos) = (nanos / u128::from(NANOS_PER_SECOND), nanos % u128::from(NANOS_PER_SECOND));
    let duration = u64::try_from(seconds).ok().zip(u32::try_from(nanos).ok());
    Some(duration.map_or(Duration::MAX, |(seconds, nanos)| Duration::new(seconds, nanos)))
}

/// A decimal number that is not negative.
struct Decimal {
    /// All digits. If there are too many, the largest number.
    digits: u128,
    /// The number of times that the digits are too large, because of those after the point.
    scale: u128,
}

impl Decimal {
    /// Splits the text after the number that it begins with. `None` if the text begins otherwise, or if the number has too many
    /// decimals.
    fn split_from(text: &str) -> Option<(Self, &str)> {
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, rest) = text.split_at_checked(end)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() || fraction.contains('.') || fraction.len() > MAX_DECIMALS {
            return None;
        }
        let digits = format!("{whole}{fraction}").parse().unwrap_or(u128::MAX);
        Some((Self { digits, scale: 10_u128.pow(fraction.len() as u32) }, rest))
    }

    /// Returns the amount, rounded down, and whether it is exact.
    fn in_units_of(&self, factor: u64) -> (u128, bool) {
        let scaled = self.digits.saturating_mul(u128::from(factor));
        (scaled / self.scale, scaled.is_multiple_of(self.scale))
    }
}

/// Writes an amount in the first unit that divides it, or without a unit if none does.
fn write_in_largest_unit(f: &mut fmt::Formatter<'_>, amount: u64, units: &[(&str, u64)]) -> fmt::Result {
    match units.iter().find(|(_, factor)| amount != 0 && amount.is_multiple_of(*factor)) {
        Some((unit, factor)) => write!(f, "{}{unit}", amount / factor),
        None => write!(f, "{amount}"),
    }
}

/// Cuts a text to `max` bytes, and an ellipsis that says so.
#[must_use]
pub fn shorten(mut text: String, max: usize) -> String {
    if text.len() > max {
        text.truncate(text.floor_char_boundary(max));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::testing::cases;
    use proptest::prelude::*;

    fn size(text: &str) -> Result<u64, String> {
        bytes(1..=MAX_IN_MEMORY)(text).map(|bytes| bytes.0)
    }

    fn time_of(text: &str) -> Result<Duration, String> {
        seconds(0..=MAX_SECONDS)(text).map(|time| time.0)
    }

    #[test]
    fn sizes_have_units_of_1000_and_1024() {
        let rows = "1 => 1|65536 => 65536|1K => 1000|2M => 2000000|3G => 3000000000|1Ki => 1024|2Mi => 2097152|\
            3Gi => 3221225472|1.5M => 1500000|.5Ki => 512|0064 => 64";
        for (text, expected) in cases(rows) {
            let expected = expected.parse().unwrap();
            assert_eq!(size(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn times_have_units_and_default_to_seconds_or_milliseconds() {
        let rows = "0 => 0|30 => 30000|0.25 => 250|250ms => 250|30s => 30000|5m => 300000|1.5h => 5400000|\
            1m30s => 90000|7d => 604800000|0.5w => 302400000|0.250000000000000004 => 250";
        for (text, expected) in cases(rows) {
            let expected = expected.parse().unwrap();
            assert_eq!(time_of(text), Ok(Duration::from_millis(expected)), "{text}");
        }
        let in_millis = |text| millis(1..=10_000)(text).map(|time| time.0);
        assert_eq!(in_millis("500"), Ok(Duration::from_millis(500)));
        assert_eq!(in_millis("2s"), Ok(Duration::from_secs(2)));
    }

    #[test]
    fn invalid_amounts_are_rejected_with_what_is_expected() {
        for text in ["", "x", "-1", "1.2.3K", "1e3", "1 K", "1k", "1KB", "1Ki1K"] {
            assert_eq!(size(text), Err(NOT_A_SIZE.to_owned()), "{text:?}");
        }
        let rows = "0.3 => whole number of bytes|0 => from 1 to 1024Gi|1025Gi => from 1 to 1024Gi|\
            99999999999999999999G => from 1 to 1024Gi|\
            999999999999999999999999999999999999999999999 => from 1 to 1024Gi";
        for (text, expected) in cases(rows) {
            let error = size(text).unwrap_err();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
        let rows = "0.5ms => 1ms|0.000000001 => 1ms|8761h => from 0 to 365d|366d => from 0 to 365d|\
            18446744073709551615 => from 0 to 365d|\
            99999999999999999999999999999999999999999w => from 0 to 365d";
        for (text, expected) in cases(rows) {
            let error = time_of(text).unwrap_err();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
    }

    /// Some of these mean something else to other programs.
    #[test]
    fn other_texts_are_not_times() {
        for text in [
            "", "s", "-1s", "+1s", "nan", "1e3s", "1y", "1M", "1mo", "1min", "1S", "1 s", " 1s", "1s ", "1h 30m",
            "1h30", "90,5s", "1..5s", "1.5.5s", ".s", "30m1h", "1h1h", "5m ago", "PT1H", "01:30:00", "0x1s",
            "\u{661}s", "\u{b5}s",
        ] {
            assert_eq!(time_of(text), Err(NOT_A_TIME.to_owned()), "{text:?}");
            assert_eq!(parse_duration(text), None, "{text:?}");
        }
        assert_eq!(parse_duration("90"), None);
    }

    #[test]
    fn times_have_several_units_and_those_of_go() {
        let rows = "1h30m => 5400000000000|1w1d1h1m1s1ms1us1ns => 694861001001001|\
            3h59m58.938970518s => 14398938970518|1m0s => 60000000000|.5s => 500000000|5.s => 5000000000|\
            21.406045ms => 21406045|12\u{b5}s => 12000|12\u{3bc}s34ns => 12034|0.1234567899999s => 123456789|\
            0.00000000001s => 1";
        for (text, nanos) in cases(rows) {
            let nanos = nanos.parse().unwrap();
            assert_eq!(parse_duration(text), Some(Duration::from_nanos(nanos)), "{text}");
        }
        assert_eq!(parse_duration("99999999999999999999s"), Some(Duration::MAX));
        assert_eq!(parse_duration("2562047h47m16.854775807s").unwrap().as_nanos(), i64::MAX as u128);
    }

    #[test]
    fn whole_seconds_have_no_fraction() {
        let parse = |text| whole_seconds(1..=90)(text).map(|time| time.0.as_secs());
        assert_eq!((parse("1m"), parse("1.0"), parse("0.5m")), (Ok(60), Ok(1), Ok(30)));
        for text in ["1.5", "1500ms", "2s5"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert_eq!(parse("1.5").unwrap_err(), "must be a whole number of seconds");
    }

    #[test]
    fn counts_are_whole_numbers_within_their_range() {
        assert_eq!(count::<u16>(1..=65_535)("65535"), Ok(65_535));
        for wrong in ["0", "65536", "1.5", "1K", "x", "-1", "18446744073709551616"] {
            assert_eq!(
                count::<u16>(1..=65_535)(wrong),
                Err("must be a whole number from 1 to 65535".into()),
                "{wrong}"
            );
        }
    }

    #[test]
    fn amounts_display_in_their_largest_unit() {
        for (bytes, expected) in
            cases("0 => 0|1 => 1|1000 => 1K|1024 => 1Ki|262144 => 256Ki|17179869184 => 16Gi|1001 => 1001")
        {
            assert_eq!(Bytes(bytes.parse().unwrap()).to_string(), expected);
        }
        for (millis, expected) in cases("0 => 0|250 => 250ms|1500 => 1500ms|300000 => 5m|3600000 => 1h|172800000 => 2d")
        {
            assert_eq!(Time(Duration::from_millis(millis.parse().unwrap())).to_string(), expected);
        }
    }

    proptest! {
        #[test]
        fn displayed_amounts_parse_to_the_same_value(number in 1..=MAX_IN_MEMORY, millis in 0..=MAX_SECONDS * 1_000) {
            prop_assert_eq!(size(&Bytes(number).to_string()), Ok(number));
            let time = Duration::from_millis(millis);
            prop_assert_eq!(time_of(&Time(time).to_string()), Ok(time));
        }

        #[test]
        fn parsing_never_panics(text in ".*", digits in "[0-9.]{0,60}[a-zA-Zµ]{0,3}") {
            let _ = (size(&text), time_of(&text), size(&digits), time_of(&digits));
        }
    }
}
