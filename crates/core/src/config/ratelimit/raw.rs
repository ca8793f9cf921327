//! A domain as its source gives it: a document of YAML, or a resource of xDS. Nothing is validated but types.

use serde_json::{Map, Value};

/// A value and its line, which is 0 if the source has no lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct At<T> {
    /// The line, from 1.
    pub line: usize,
    /// The value.
    pub value: T,
}

/// A domain, and its entries.
#[derive(Debug, Default)]
pub struct RawDomain {
    /// The line where the domain begins.
    pub line: usize,
    /// The name, or an empty text.
    pub domain: At<String>,
    /// Its entries, in the order of the source.
    pub descriptors: Vec<RawEntry>,
    /// Problems that the reader has found in the domain, but not in its entries.
    pub findings: Vec<Finding>,
}

/// An entry, which ratelimit calls a descriptor.
#[derive(Debug, Default)]
pub struct RawEntry {
    /// The line where the entry begins.
    pub line: usize,
    /// The key, or an empty text.
    pub key: At<String>,
    /// The value, or an empty text for any value.
    pub value: At<String>,
    /// The limit of requests that end at this entry.
    pub rate_limit: Option<Box<RawLimit>>,
    /// Nested entries.
    pub descriptors: Vec<RawEntry>,
    /// Whether the limit never denies.
    pub shadow_mode: At<bool>,
    /// Whether the limit denies only together with all other quotas of a request.
    pub quota_mode: At<bool>,
    /// Whether statistics have all values of the request.
    pub detailed_metric: At<bool>,
    /// Whether statistics have the request's value of this key.
    pub value_to_metric: At<bool>,
    /// Whether all values that match share one counter.
    pub share_threshold: At<bool>,
    /// Data that answers repeat.
    pub metadata: Option<At<Map<String, Value>>>,
    /// Problems that the reader has found in the entry.
    pub findings: Vec<Finding>,
}

/// A limit.
#[derive(Debug, Default)]
pub struct RawLimit {
    /// The line where the limit begins.
    pub line: usize,
    /// The name of the unit.
    pub unit: At<String>,
    /// The number of requests.
    pub requests_per_unit: At<Requests>,
    /// Whether there is no limit.
    pub unlimited: At<bool>,
    /// The name, or an empty text.
    pub name: At<String>,
    /// The names of the limits that this one replaces.
    pub replaces: Vec<At<String>>,
}

/// The number of requests of a limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Requests {
    /// Not given.
    #[default]
    Missing,
    /// Not a number of requests. A finding says so.
    Invalid,
    /// A valid number.
    Number(u32),
}

/// A problem of an entry or a domain.
#[derive(Debug)]
pub struct Finding {
    /// The line of the problem.
    pub line: usize,
    /// Whether ratelimit refuses the file.
    pub is_error: bool,
    /// The problem.
    pub what: String,
    /// The advice for correcting it.
    pub fix: String,
}
