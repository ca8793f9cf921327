//! Durations in the text format of Go's `time.Duration`, such as `3h59m58.938970518s`.

use std::fmt::Write as _;
use std::time::Duration;

use crate::units;

/// Parses a duration. One that is negative, as of a decision that has ended, is zero. Returns `None` if the text is not a
/// duration.
pub fn parse_duration(text: &str) -> Option<Duration> {
    match text.strip_prefix('-') {
        Some(ago) => units::parse_duration(ago).map(|_| Duration::ZERO),
        None => units::parse_duration(text),
    }
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
            ("0s", 0),
            ("3h59m58.938970518s", 14_398_938_970_518),
            ("99h59m58.938970518s", 359_998_938_970_518),
            ("-21.406045ms", 0),
            ("-1h0m5s", 0),
        ] {
            assert_eq!(parse_duration(text), Some(Duration::from_nanos(nanos)), "{text}");
        }
        for text in ["", "-", "1", "-1", "--1s", "+1s"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
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
