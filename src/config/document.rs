//! The content of a rules file in either format: rules and settings with their lines, before validation.

use crate::rules;

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
