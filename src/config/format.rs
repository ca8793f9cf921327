//! How a rules file is written.

use std::path::Path;

/// How a rules file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Ini,
    Json,
}

impl Format {
    /// The format that a file's extension names; `None` when it names none.
    pub fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "ini" => Some(Self::Ini),
            "json" => Some(Self::Json),
            _ => None,
        }
    }
}
