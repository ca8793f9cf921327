//! Durations in the text format of Go's `time.Duration`, such as `3h59m58.938970518s`.

use std::fmt::Write as _;
use std::time::Duration;

/// Maximum length of a duration's text (bytes). Go never writes half as many.
const MAX_LENGTH: usize = 64;
/// Digits of a second's fraction that count.
const FRACTION_DIGITS: usize = 9;
/// Units and their nanoseconds. The micro sign and the Greek letter look the same, and Go accepts both.
const UNITS: [(&str, u128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Parses a duration. One that is negative, as of a decision that has ended, is zero. Returns `None` if the text is not a
/// duration.
pub fn parse_duration(text: &str) -> Option<Duration> {
    if text.len() > MAX_LENGTH {
        return None;
    }
    let (is_negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest.is_empty() {
        return None;
    }
    let mut nanos: u128 = 0;
    // Only zero needs no unit.
    while !rest.is_empty() && rest != "0" {
        let (count, after) = split_number(rest)?;
        let unit_length = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at_checked(unit_length)?;
        let (_, unit) = UNITS.iter().find(|(name, _)| *name == unit)?;
        nanos = nanos.checked_add(count.in_units_of(*unit)?)?;
        rest = after;
    }
    if is_negative {
        return Some(Duration::ZERO);
    }
    let second = 1_000_000_000;
    let seconds = u64::try_from(nanos / second).unwrap_or(u64::MAX);
    Some(Duration::new(seconds, u32::try_from(nanos % second).unwrap_or_default()))
}

/// A decimal number.
struct Count {
    whole: u128,
    /// The digits after the point, as a number.
    fraction: u128,
    fraction_digits: u32,
}

impl Count {
    /// Returns the nanoseconds of this many units; `None` if there are too many.
    fn in_units_of(&self, unit: u128) -> Option<u128> {
        let fraction = self.fraction.checked_mul(unit)? / 10_u128.checked_pow(self.fraction_digits)?;
        self.whole.checked_mul(unit)?.checked_add(fraction)
    }
}

/// Splits the text after the number that it begins with.
fn split_number(text: &str) -> Option<(Count, &str)> {
    let (whole, rest) = split_digits(text)?;
    let (fraction, rest) = match rest.strip_prefix('.') {
        Some(rest) => split_digits(rest)?,
        None => ("", rest),
    };
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let fraction = fraction.get(..fraction.len().min(FRACTION_DIGITS))?;
    let number = |digits: &str| if digits.is_empty() { Some(0) } else { digits.parse().ok() };
    let count = Count {
        whole: number(whole)?,
        fraction: number(fraction)?,
        fraction_digits: u32::try_from(fraction.len()).ok()?,
    };
    Some((count, rest))
}

fn split_digits(text: &str) -> Option<(&str, &str)> {
    text.split_at_checked(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

/// Returns the text of a duration in whole seconds.
pub fn write_duration(seconds: u64) -> String {
    let (hours, minutes, rest) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    let mut text = String::new();
    // Writing to a string never fails.
    let _ = match (hours, minutes) {
        (0, 0) => write!(text, "{rest}s"),
        (0, _) => write!(text, "{minutes}m{rest}s"),
        _ => write!(text, "{hours}h{minutes}m{rest}s"),
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_of_go_are_parsed() {
        for (text, nanos) in [
            ("0", 0),
            ("0s", 0),
            ("+5s", 5_000_000_000),
            ("1h", 3_600_000_000_000),
            ("3h59m58.938970518s", 14_398_938_970_518),
            ("99h59m58.938970518s", 359_998_938_970_518),
            ("1m0s", 60_000_000_000),
            ("1.5h", 5_400_000_000_000),
            (".5s", 500_000_000),
            ("5.s", 5_000_000_000),
            ("21.406045ms", 21_406_045),
            ("12us", 12_000),
            ("12\u{b5}s", 12_000),
            ("12\u{3bc}s34ns", 12_034),
            ("0.1234567899999s", 123_456_789),
            ("1s1h", 3_601_000_000_000),
            ("-21.406045ms", 0),
            ("-1h0m5s", 0),
        ] {
            assert_eq!(parse_duration(text), Some(Duration::from_nanos(nanos)), "{text}");
        }
    }

    #[test]
    fn other_texts_are_no_durations() {
        for text in [
            "", "-", "+", "1", "-1", "h", ".s", "1 s", " 1s", "1s ", "1d", "1hs", "1..5s", "1,5s", "--1s", "1S",
            "0x1s", "1e3s", "NaN", "\u{661}s", "\u{b5}s",
        ] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
        assert_eq!(parse_duration(&format!("{}s", "9".repeat(64))), None);
        assert_eq!(parse_duration(&format!("{}h", "9".repeat(39))), None);
    }

    #[test]
    fn longest_duration_is_kept_in_bounds() {
        assert_eq!(parse_duration("99999999999999999999s"), Some(Duration::new(u64::MAX, 0)));
        assert_eq!(parse_duration("2562047h47m16.854775807s").unwrap().as_nanos(), i64::MAX as u128);
    }

    #[test]
    fn written_durations_are_those_of_go() {
        for (seconds, text) in
            [(0, "0s"), (59, "59s"), (60, "1m0s"), (3_599, "59m59s"), (3_600, "1h0m0s"), (604_800, "168h0m0s")]
        {
            assert_eq!(write_duration(seconds), text);
            assert_eq!(parse_duration(text), Some(Duration::from_secs(seconds)));
        }
    }
}
