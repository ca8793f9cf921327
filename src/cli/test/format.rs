//! The format of a file with test cases. [`check`](super::check) checks that its values make sense together.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::elapsed::{Elapsed, Start};

/// Version of the format.
pub const VERSION: u64 = 1;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaseFile {
    /// The version. It is checked before the other fields, which depend on it.
    #[serde(rename = "version")]
    _version: u64,
    pub cases: Vec<RawCase>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawCase {
    pub name: String,
    pub start: Option<Start>,
    pub steps: Vec<RawStep>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct RawStep {
    /// Time since the start of the case. A step without it follows the previous step at once.
    pub at: Option<Elapsed>,
    pub intent: Option<StepKeyword>,
    pub operation: Option<Map<String, Value>>,
    pub cost: Option<u64>,
    pub ttl: Option<Elapsed>,
    /// Name of a reservation within the case.
    pub id: Option<String>,
    pub idempotency_key: Option<String>,
    /// A limit of one actor.
    pub limit: Option<RawLimit>,
    pub expect: Option<RawExpectation>,
}

/// The keyword for the request of a step. Displays as in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum StepKeyword {
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
pub struct RawLimit {
    pub rule: String,
    #[serde(default)]
    pub actor: String,
    /// Credits in place of the rule's. Without them, the actor's limit is removed.
    pub credits: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawExpectation {
    pub allowed: Option<bool>,
    pub remaining: Option<u64>,
    pub balance: Option<i64>,
    pub reset: Option<Elapsed>,
    pub rule: Option<String>,
    /// A part of the expected error.
    pub error: Option<String>,
}

impl fmt::Display for StepKeyword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}
