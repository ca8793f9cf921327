//! The fields of a file with test cases, as written. [`check`](super::check) decides whether they make sense together.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::elapsed::{Elapsed, Start};

/// The version of the format.
pub const VERSION: u64 = 1;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaseFile {
    /// Checked before the other fields, which depend on it.
    #[serde(rename = "version")]
    _version: u64,
    pub cases: Vec<WrittenCase>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrittenCase {
    pub name: String,
    pub start: Option<Start>,
    pub steps: Vec<WrittenStep>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct WrittenStep {
    /// Since the start of the case. Without it, the step follows at once.
    pub at: Option<Elapsed>,
    pub intent: Option<Word>,
    pub operation: Option<Map<String, Value>>,
    pub cost: Option<u64>,
    pub ttl: Option<Elapsed>,
    /// The name of a reservation within the case.
    pub id: Option<String>,
    pub idempotency_key: Option<String>,
    /// Gives one actor a limit of its own.
    pub limit: Option<WrittenLimit>,
    pub expect: Option<WrittenExpectation>,
}

/// The word for what a step does. Displays as in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Word {
    Hit,
    Peek,
    Charge,
    Refund,
    Reserve,
    Commit,
    Release,
    Renew,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrittenLimit {
    pub rule: String,
    #[serde(default)]
    pub actor: String,
    /// Without it, the actor's limit is removed.
    pub credits: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrittenExpectation {
    pub allowed: Option<bool>,
    pub remaining: Option<u64>,
    pub balance: Option<i64>,
    pub reset: Option<Elapsed>,
    pub rule: Option<String>,
    /// A part of the error's text.
    pub error: Option<String>,
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}
