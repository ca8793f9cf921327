//! Formats of rules files.

use std::path::Path;

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
