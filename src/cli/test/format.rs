//! The format of a file with test cases. [`check`](super::check) checks that its values make sense together.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde_json::{Map, Value};

use super::elapsed::{Elapsed, ResetSeconds, Start};
use crate::json::{Object, WholeNumber};

/// Version of the format.
pub const VERSION: u64 = 1;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaseFile {
    /// The version. It is checked before the other fields, which depend on it.
    #[serde(rename = "version")]
    _version: u64,
    pub cases: Vec<Object<RawCase>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawCase {
    pub name: String,
    pub start: Option<Start>,
    pub steps: Vec<Object<RawStep>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct RawStep {
    /// Time since the start of the case. A step without it follows the previous step at once.
    pub at: Option<Elapsed>,
    pub intent: Option<StepKeyword>,
    pub operation: Option<Pairs>,
    pub cost: Option<WholeNumber>,
    pub ttl: Option<Elapsed>,
    /// Name of a reservation within the case.
    pub id: Option<String>,
    pub idempotency_key: Option<String>,
    /// A limit of one actor.
    pub limit: Option<Object<RawLimit>>,
    pub expect: Option<Object<RawExpectation>>,
}

/// The pairs of an operation, each field once.
#[derive(Debug)]
pub struct Pairs(pub Map<String, Value>);

/// The keyword for the request of a step. Displays as in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

/// The keywords, as in the file.
const KEYWORDS: [(StepKeyword, &str); 8] = [
    (StepKeyword::Hit, "hit"),
    (StepKeyword::Peek, "peek"),
    (StepKeyword::Charge, "charge"),
    (StepKeyword::Refund, "refund"),
    (StepKeyword::Reserve, "reserve"),
    (StepKeyword::Commit, "commit"),
    (StepKeyword::Release, "release"),
    (StepKeyword::Renew, "renew"),
];

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawLimit {
    pub rule: String,
    #[serde(default)]
    pub actor: String,
    /// Credits in place of the rule's. Without them, the actor's limit is removed.
    pub credits: Option<WholeNumber>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawExpectation {
    pub allowed: Option<bool>,
    pub remaining: Option<WholeNumber>,
    pub balance: Option<i64>,
    pub reset: Option<ResetSeconds>,
    pub rule: Option<String>,
    /// A part of the expected error.
    pub error: Option<String>,
}

impl fmt::Display for StepKeyword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = KEYWORDS.iter().find(|(keyword, _)| keyword == self).map(|(_, name)| *name);
        f.write_str(name.unwrap_or_default())
    }
}

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(PairsVisitor)
    }
}

struct PairsVisitor;

impl<'de> Visitor<'de> for PairsVisitor {
    type Value = Pairs;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Pairs, M::Error> {
        let mut pairs = Map::new();
        while let Some((field, value)) = map.next_entry::<String, Value>()? {
            if pairs.contains_key(&field) {
                return Err(M::Error::custom(format!("the field {field:?} is given twice")));
            }
            pairs.insert(field, value);
        }
        Ok(Pairs(pairs))
    }
}

// This is not derived, because a derived enum would also accept an object with the keyword, and call any other value
// malformed JSON.
impl<'de> Deserialize<'de> for StepKeyword {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let known = KEYWORDS.iter().find(|(_, name)| *name == text);
        known.map(|(keyword, _)| *keyword).ok_or_else(|| {
            let names: Vec<_> = KEYWORDS.iter().map(|(_, name)| format!("`{name}`")).collect();
            D::Error::custom(format!("unknown value `{text}`, expected one of {}", names.join(", ")))
        })
    }
}
