//! A rules file before validation: its format, its text, and its content in either format, which is rules and settings with
//! their lines. Numbers are read exactly, without floating point.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::string::FromUtf8Error;
use std::time::Duration;

use super::Problems;
use crate::regular_file;
use crate::rules::{self, Seconds};
use crate::units::{self, Approximate, NOT_A_TIME};

/// The header of the default rule.
pub const DEFAULT: &str = "default";

/// A rule of a file. Rules are in order of precedence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawRule {
    pub line: usize,
    /// Keys and values as written, including repeated keys. `None` if they could not be read; the reader has reported
    /// why.
    pub operation: Option<Vec<(String, String)>>,
    /// The rule's name in messages.
    pub header: String,
    /// In the order of the file, including repeated and unknown ones.
    pub settings: Vec<RawSetting>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawSetting {
    pub line: usize,
    pub key: String,
    pub value: RawValue,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RawValue {
    /// A bare `null`, which counts as a missing setting.
    Null,
    Text(String),
    /// A number's JSON text.
    Number(String),
    /// JSON that no setting accepts: `true`, `false`, an array or an object.
    Other(String),
}

impl RawRule {
    /// Returns whether the rule has the setting, even without a value.
    pub fn has(&self, key: &str) -> bool {
        self.settings.iter().any(|setting| setting.key == key && setting.value != RawValue::Null)
    }

    /// Returns the line of a setting, or the line of the rule if it has no such setting.
    pub fn setting_line(&self, key: &str) -> usize {
        self.settings.iter().find(|setting| setting.key == key).map_or(self.line, |setting| setting.line)
    }

    pub fn new(line: usize, operation: Vec<(String, String)>) -> Self {
        let header = rules::header(operation.iter().map(|(key, value)| (key.as_str(), value.as_str())));
        Self { line, operation: Some(operation), header, settings: Vec::new() }
    }

    /// Returns a rule whose operation could not be read. `header` is its text in the file.
    pub fn unreadable(line: usize, header: &str) -> Self {
        Self { line, operation: None, header: header.to_owned(), settings: Vec::new() }
    }
}

impl RawValue {
    pub fn as_text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    pub fn as_written(&self) -> &str {
        match self {
            Self::Null => "null",
            Self::Text(text) | Self::Number(text) | Self::Other(text) => text,
        }
    }
}

/// The format of a rules file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// One section per rule, as in Button's Divvy.
    Ini,
    /// An object with the rules as `overrides`, and the last one as `default`. Can express every rule.
    Json,
}

impl Format {
    /// Returns the format for a file's extension; `None` if the extension is unknown.
    pub fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "ini" => Some(Self::Ini),
            "json" => Some(Self::Json),
            _ => None,
        }
    }
}

/// Maximum size of a rules file: enough for several hundred thousand rules, without a risk to memory.
pub const MAX_FILE_BYTES: u64 = 64 << 20;

/// Reads the file at `path`. If it cannot be read, adds the reason to `problems` and returns `None`.
pub fn read_text(path: &Path, problems: &mut Problems) -> Option<String> {
    let report_unread = |error: &io::Error| {
        if error.kind() == ErrorKind::FileTooLarge {
            let what = format!("the file is larger than {}", Approximate(MAX_FILE_BYTES));
            problems.file_error(what, "use fewer rules, with patterns instead of single values");
        } else {
            problems.unread();
            problems.file_error(format!("cannot read the file: {error}"), "check its path and its permissions");
        }
    };
    let bytes = regular_file::read(path, MAX_FILE_BYTES).inspect_err(report_unread).ok()?;
    let report_bytes = |error: &FromUtf8Error| {
        let before = error.as_bytes().get(..error.utf8_error().valid_up_to()).unwrap_or_default();
        let line = memchr::memchr_iter(b'\n', before).count() + 1;
        problems.error(line, "the file is not UTF-8", "save it as UTF-8");
    };
    String::from_utf8(bytes).inspect_err(report_bytes).ok()
}

/// Enough decimals for nanoseconds.
const MAX_DECIMALS: usize = 9;

/// The problem with a value that is not a valid number for its setting: the end of a sentence, after the setting's name.
pub(super) type InvalidNumber = &'static str;

const NOT_A_NUMBER: InvalidNumber = "is not a number";
const NOT_WHOLE: InvalidNumber = "is not a whole number";

/// Parses a whole number. If it does not fit 64 bits, it becomes the largest that does, which is out of every setting's
/// range.
pub(super) fn whole(value: &RawValue) -> Result<u64, InvalidNumber> {
    let (whole, decimals) = read_decimal(value)?;
    if decimals.is_empty() { Ok(whole) } else { Err(NOT_WHOLE) }
}

/// Parses a time in seconds, with at most nine decimals.
pub(super) fn seconds(value: &RawValue) -> Result<Seconds, InvalidNumber> {
    let (whole, decimals) = read_decimal(value)?;
    if decimals.len() > MAX_DECIMALS {
        return Err("has more than 9 decimals");
    }
    let nanos = format!("{decimals:0<MAX_DECIMALS$}").parse().map_err(|_| NOT_A_NUMBER)?;
    Ok(Seconds(Duration::new(whole, nanos)))
}

/// Parses a time with a unit: `90s`, `1h30m`, `7d`. There is no unit for months, because their lengths differ.
pub(super) fn period(value: &RawValue) -> Result<Seconds, InvalidNumber> {
    value.as_text().and_then(units::parse_duration).map(Seconds).ok_or(NOT_A_TIME)
}

/// Parses a whole number of seconds, with or without a unit: `900` or `15m`.
pub(super) fn whole_seconds(value: &RawValue) -> Result<u64, InvalidNumber> {
    whole(value).or_else(|error| period(value).ok().and_then(Seconds::as_whole).ok_or(error))
}

/// Reads digits, optionally followed by a point and more digits. Returns the number before the point, or the largest one if it does
/// not fit 64 bits, and the digits after the point without trailing zeros.
fn read_decimal(value: &RawValue) -> Result<(u64, &str), InvalidNumber> {
    let (RawValue::Text(text) | RawValue::Number(text)) = value else { return Err(NOT_A_NUMBER) };
    let positive = text.strip_prefix('-');
    let text = positive.unwrap_or(text);
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    match is_digits(whole) && is_digits(decimals) {
        false => Err(NOT_A_NUMBER),
        true if positive.is_some() => Err("is negative"),
        true => Ok((whole.parse().unwrap_or(u64::MAX), decimals.trim_end_matches('0'))),
    }
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(text: &str) -> RawValue {
        RawValue::Text(text.to_owned())
    }

    fn json(text: &str) -> RawValue {
        RawValue::Number(text.to_owned())
    }

    fn time(seconds: u64, nanos: u32) -> Result<Seconds, InvalidNumber> {
        Ok(Seconds(Duration::new(seconds, nanos)))
    }

    #[test]
    fn whole_numbers_have_no_fraction() {
        assert_eq!(whole(&text("007")), Ok(7));
        assert_eq!(whole(&text("7.0")), Ok(7));
        assert_eq!(whole(&text("99999999999999999999")), Ok(u64::MAX));
        assert_eq!(whole(&text("1.0000000001")), Err(NOT_WHOLE));
        for wrong in ["", " 1", "+1", "1.", ".5", "1e3", "1_000", "0x10", "ten", "-", "-x", "١"] {
            assert_eq!(whole(&text(wrong)), Err(NOT_A_NUMBER), "{wrong}");
            assert_eq!(whole(&json(wrong)), Err(NOT_A_NUMBER), "{wrong}");
        }
        assert_eq!(whole(&text("-60")), Err("is negative"));
        assert_eq!(whole(&RawValue::Other("true".into())), Err(NOT_A_NUMBER));
    }

    #[test]
    fn seconds_have_up_to_nine_decimals() {
        assert_eq!(seconds(&text("0.25")), time(0, 250_000_000));
        assert_eq!(seconds(&text("60")), time(60, 0));
        assert_eq!(seconds(&text("3155760000.000000001")), time(3_155_760_000, 1));
        assert_eq!(seconds(&text("0.2500000000")), time(0, 250_000_000));
        assert_eq!(seconds(&text("0.0000000001")), Err("has more than 9 decimals"));
        assert_eq!(seconds(&text("-0.5")), Err("is negative"));
        assert_eq!(seconds(&text("1,5")), Err(NOT_A_NUMBER));
    }

    #[test]
    fn period_has_a_unit() {
        for (written, length) in [("90s", 90), ("1h30m", 5_400), ("1.5h", 5_400), ("2w", 1_209_600), ("0s", 0)] {
            assert_eq!(period(&text(written)), time(length, 0), "{written}");
        }
        assert_eq!(period(&text("99999999999999999999w")), Ok(Seconds(Duration::MAX)));
        for wrong in ["", "5", "m", "5 m", "-5m", "+5m", "5M", "1month", "1y", "٥m"] {
            assert_eq!(period(&text(wrong)), Err(NOT_A_TIME), "{wrong}");
        }
        assert_eq!(period(&json("60")), Err(NOT_A_TIME));
    }

    #[test]
    fn whole_seconds_may_have_a_unit() {
        assert_eq!(["900", "15m", "1.5m"].map(|written| whole_seconds(&text(written))), [Ok(900), Ok(900), Ok(90)]);
        let wrong = ["1.5", "1.5s", "-1"].map(|written| whole_seconds(&text(written)));
        assert_eq!(wrong, [Err(NOT_WHOLE), Err(NOT_A_NUMBER), Err("is negative")]);
    }

    proptest! {
        #[test]
        fn seconds_read_as_they_display(seconds_before: u64, nanos in 0..1_000_000_000u32) {
            let written = Seconds(Duration::new(seconds_before, nanos));
            prop_assert_eq!(seconds(&text(&written.to_string())), Ok(written));
            prop_assert_eq!(seconds(&json(&written.to_string())), Ok(written));
        }
    }
}
