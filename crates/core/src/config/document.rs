//! A rules file before validation: its format, its text, and its content in either format, which is rules and settings with
//! their lines.

use std::io::ErrorKind;
use std::path::Path;

use super::problem::Problems;
use crate::units::Approximate;
use crate::{files, rules};

/// The header of the default rule.
pub const DEFAULT: &str = "default";

/// The rules of a file, in order of precedence.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Document {
    pub rules: Vec<RawRule>,
}

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
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
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
    let bytes = match files::read(path, MAX_FILE_BYTES) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::FileTooLarge => {
            let what = format!("the file is larger than {}", Approximate(MAX_FILE_BYTES));
            problems.file_error(what, "use fewer rules, with patterns instead of single values");
            return None;
        }
        Err(error) => {
            problems.unread();
            problems.file_error(format!("cannot read the file: {error}"), "check its path and its permissions");
            return None;
        }
    };
    match String::from_utf8(bytes) {
        Ok(text) => Some(text),
        Err(error) => {
            let before = error.as_bytes().get(..error.utf8_error().valid_up_to()).unwrap_or_default();
            let line = memchr::memchr_iter(b'\n', before).count() + 1;
            problems.error(line, "the file is not UTF-8", "save it as UTF-8");
            None
        }
    }
}
