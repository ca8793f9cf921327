//! The pairs of an operation on a command line.

use std::fmt;
use std::str::FromStr;

use anyhow::ensure;
use serde_json::{Map, Value};

/// A `key=value` argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    key: String,
    value: String,
}

impl Pair {
    pub fn as_strs(&self) -> (&str, &str) {
        (&self.key, &self.value)
    }
}

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.key, self.value)
    }
}

impl FromStr for Pair {
    type Err = String;

    fn from_str(argument: &str) -> Result<Self, Self::Err> {
        match argument.split_once('=') {
            Some((key, value)) => Ok(Self { key: key.to_owned(), value: value.to_owned() }),
            None => Err("expected key=value".to_owned()),
        }
    }
}

/// Returns the operation with these pairs, as a JSON object.
///
/// # Errors
/// A field is given twice.
pub fn operation_of(pairs: &[Pair]) -> anyhow::Result<Map<String, Value>> {
    let mut operation = Map::new();
    for (field, value) in pairs.iter().map(Pair::as_strs) {
        ensure!(operation.insert(field.to_owned(), value.into()).is_none(), "the field '{field}' is given twice");
    }
    Ok(operation)
}
