//! Numbers, sizes and times in flags: `100`, `64Ki`, `1.5G`, `250ms`.
//!
//! Each parser is given the range of its flag, and its errors name the range or the units. A number without a unit is
//! in the unit of the flag's placeholder: bytes, seconds or milliseconds. The help of each flag documents the meaning
//! of its value.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

/// Last paragraph of the help of subcommands with sizes and times.
pub const HELP: &str = "\
BYTES accepts the units K, M, G (powers of 1000) and Ki, Mi, Gi (powers of 1024), as in 64Ki. SECONDS and MS accept \
ms, s, m, h, d and w, as in 250ms. A number without a unit is in the unit that the placeholder names.";

/// Maximum size of anything in memory (bytes). Sums of a few such sizes fit into 64 bits.
pub const MAX_IN_MEMORY: u64 = 1 << 40;
/// Maximum time: one year. Much longer times would overflow a clock.
pub const MAX_SECONDS: u64 = 365 * 24 * 60 * 60;

const KI: u64 = 1 << 10;
const SIZES: [(&str, u64); 6] =
    [("Gi", KI * KI * KI), ("Mi", KI * KI), ("Ki", KI), ("G", 1_000_000_000), ("M", 1_000_000), ("K", 1_000)];

const NANOS_PER_MILLI: u64 = 1_000_000;
const NANOS_PER_SECOND: u64 = 1_000_000_000;
const TIMES: [(&str, u64); 6] = [
    ("w", 604_800 * NANOS_PER_SECOND),
    ("d", 86_400 * NANOS_PER_SECOND),
    ("h", 3_600 * NANOS_PER_SECOND),
    ("m", 60 * NANOS_PER_SECOND),
    ("s", NANOS_PER_SECOND),
    ("ms", NANOS_PER_MILLI),
];

/// Maximum number of digits after the decimal point.
const MAX_DECIMALS: usize = 18;

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

/// A size for people, in its largest binary unit with one decimal.
#[derive(Debug, Clone, Copy)]
pub struct Approximate(pub u64);

impl fmt::Display for Approximate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = SIZES.iter().filter(|(name, _)| name.ends_with('i')).find(|(_, factor)| self.0 >= *factor);
        match unit {
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

/// Parses a number within `range`.
pub fn count<T: TryFrom<u64>>(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        let number = number.and_then(|number| T::try_from(number).ok());
        number.ok_or_else(|| format!("must be a whole number from {} to {}", range.start(), range.end()))
    }
}

/// Parses a size within `range` of bytes.
pub fn bytes(range: RangeInclusive<u64>) -> impl Fn(&str) -> Result<Bytes, String> + Clone + Send + Sync + 'static {
    move |text| {
        let (bytes, is_exact) = parse(text, 1, &SIZES).map_err(|fault| match fault {
            InvalidAmount::Number => "must be a number of bytes, such as 65536, 64Ki or 1.5M".to_owned(),
            InvalidAmount::Unit(unit) => format!(
                "has the unknown unit {unit:?}: the units of bytes are K, M, G, Ki, Mi and \
                 Gi"
            ),
            InvalidAmount::TooLarge => describe_range(&range, Bytes),
        })?;
        if !is_exact {
            return Err("is not a whole number of bytes".to_owned());
        }
        if range.contains(&bytes) { Ok(Bytes(bytes)) } else { Err(describe_range(&range, Bytes)) }
    }
}

/// Parses a time within `range` of seconds. A number without a unit is in seconds.
pub fn seconds(range: RangeInclusive<u64>) -> impl Fn(&str) -> Result<Time, String> + Clone + Send + Sync + 'static {
    time(range, NANOS_PER_SECOND)
}

/// Parses a whole number of seconds as [`seconds`] does.
pub fn whole_seconds(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<Time, String> + Clone + Send + Sync + 'static {
    let parse = seconds(range);
    move |text| {
        let time = parse(text)?;
        if time.is_whole_seconds() { Ok(time) } else { Err("must be a whole number of seconds".to_owned()) }
    }
}

/// Parses a time within `range` of milliseconds. A number without a unit is in milliseconds.
pub fn millis(range: RangeInclusive<u64>) -> impl Fn(&str) -> Result<Time, String> + Clone + Send + Sync + 'static {
    time(range, NANOS_PER_MILLI)
}

fn time(
    range: RangeInclusive<u64>,
    bare: u64,
) -> impl Fn(&str) -> Result<Time, String> + Clone + Send + Sync + 'static {
    let range = range.start().saturating_mul(bare)..=range.end().saturating_mul(bare);
    let of_nanos = |nanos| Time(Duration::from_nanos(nanos));
    move |text| {
        let (nanos, is_exact) = parse(text, bare, &TIMES).map_err(|fault| match fault {
            InvalidAmount::Number => "must be a time, such as 30, 250ms or 1.5h".to_owned(),
            InvalidAmount::Unit(unit) => {
                format!("has the unknown unit {unit:?}: the units of time are ms, s, m, h, d and w")
            }
            InvalidAmount::TooLarge => describe_range(&range, of_nanos),
        })?;
        if !range.contains(&nanos) {
            return Err(describe_range(&range, of_nanos));
        }
        // A task with a shorter interval would run all the time.
        if nanos < NANOS_PER_MILLI && (nanos, is_exact) != (0, true) {
            return Err("is shorter than 1ms, the shortest time that is not 0".to_owned());
        }
        Ok(of_nanos(nanos))
    }
}

fn describe_range<T: fmt::Display>(range: &RangeInclusive<u64>, of: impl Fn(u64) -> T) -> String {
    format!("must be from {} to {}", of(*range.start()), of(*range.end()))
}

/// The reason why a text is not a valid amount.
#[derive(Debug, PartialEq, Eq)]
enum InvalidAmount {
    Number,
    Unit(String),
    TooLarge,
}

/// Parses a decimal number with a unit after it. Returns a whole number, rounded down, and whether it is exact. `units`
/// has the factor of each unit, and `bare` is the factor without a unit.
fn parse(text: &str, bare: u64, units: &[(&str, u64)]) -> Result<(u64, bool), InvalidAmount> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') || fraction.len() > MAX_DECIMALS {
        return Err(InvalidAmount::Number);
    }
    let factor = match unit {
        "" => bare,
        _ => match units.iter().find(|(name, _)| *name == unit) {
            Some((_, factor)) => *factor,
            None => return Err(InvalidAmount::Unit(unit.to_owned())),
        },
    };
    // Both parts consist of digits, so parsing fails only if they are too long.
    let digits: u128 = format!("{whole}{fraction}").parse().map_err(|_| InvalidAmount::TooLarge)?;
    let scale = 10_u128.pow(fraction.len() as u32);
    let scaled = digits.checked_mul(u128::from(factor)).ok_or(InvalidAmount::TooLarge)?;
    let amount = u64::try_from(scaled / scale).map_err(|_| InvalidAmount::TooLarge)?;
    Ok((amount, scaled.is_multiple_of(scale)))
}

/// Writes an amount in the first unit that divides it, or without a unit if none does.
fn write_in_largest_unit(f: &mut fmt::Formatter<'_>, amount: u64, units: &[(&str, u64)]) -> fmt::Result {
    match units.iter().find(|(_, factor)| amount != 0 && amount.is_multiple_of(*factor)) {
        Some((unit, factor)) => write!(f, "{}{unit}", amount / factor),
        None => write!(f, "{amount}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn size(text: &str) -> Result<u64, String> {
        bytes(1..=MAX_IN_MEMORY)(text).map(|bytes| bytes.0)
    }

    fn time_of(text: &str) -> Result<Duration, String> {
        seconds(0..=MAX_SECONDS)(text).map(|time| time.0)
    }

    #[test]
    fn sizes_have_units_of_1000_and_1024() {
        for (text, expected) in [
            ("1", 1),
            ("65536", 65_536),
            ("1K", 1_000),
            ("2M", 2_000_000),
            ("3G", 3_000_000_000),
            ("1Ki", 1_024),
            ("2Mi", 2_097_152),
            ("3Gi", 3_221_225_472),
            ("1.5M", 1_500_000),
            (".5Ki", 512),
            ("0064", 64),
        ] {
            assert_eq!(size(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn times_have_units_and_default_to_seconds_or_milliseconds() {
        for (text, expected) in [
            ("0", 0),
            ("30", 30_000),
            ("0.25", 250),
            ("250ms", 250),
            ("30s", 30_000),
            ("5m", 300_000),
            ("1.5h", 5_400_000),
            ("7d", 604_800_000),
            ("0.5w", 302_400_000),
            ("0.250000000000000004", 250),
        ] {
            assert_eq!(time_of(text), Ok(Duration::from_millis(expected)), "{text}");
        }
        let in_millis = |text| millis(1..=10_000)(text).map(|time| time.0);
        assert_eq!(in_millis("500"), Ok(Duration::from_millis(500)));
        assert_eq!(in_millis("2s"), Ok(Duration::from_secs(2)));
    }

    #[test]
    fn invalid_amounts_are_rejected_with_what_is_expected() {
        for (text, expected) in [
            ("", "a number of bytes"),
            ("x", "a number of bytes"),
            ("-1", "a number of bytes"),
            ("1.2.3K", "a number of bytes"),
            ("1e3", "\"e3\""),
            ("1 K", "\" K\""),
            ("1k", "\"k\""),
            ("1KB", "\"KB\""),
            ("0.3", "whole number of bytes"),
            ("0", "from 1 to 1024Gi"),
            ("1025Gi", "from 1 to 1024Gi"),
            ("99999999999999999999G", "from 1 to 1024Gi"),
            ("999999999999999999999999999999999999999999999", "from 1 to 1024Gi"),
        ] {
            let error = size(text).unwrap_err();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
        for (text, expected) in [
            ("", "a time"),
            ("s", "a time"),
            ("-1s", "a time"),
            ("nan", "a time"),
            ("1y", "h, d and w"),
            ("1M", "\"M\""),
            ("0.5ms", "1ms"),
            ("0.000000001", "1ms"),
            ("8761h", "from 0 to 365d"),
            ("366d", "from 0 to 365d"),
            ("18446744073709551615", "from 0 to 365d"),
        ] {
            let error = time_of(text).unwrap_err();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
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
        for (bytes, expected) in [
            (0, "0"),
            (1, "1"),
            (1_000, "1K"),
            (1_024, "1Ki"),
            (262_144, "256Ki"),
            (17_179_869_184, "16Gi"),
            (1_001, "1001"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), expected);
        }
        for (millis, expected) in
            [(0, "0"), (250, "250ms"), (1_500, "1500ms"), (300_000, "5m"), (3_600_000, "1h"), (172_800_000, "2d")]
        {
            assert_eq!(Time(Duration::from_millis(millis)).to_string(), expected);
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
