//! Options of ratelimit that are no part of its configuration files: it takes them from its environment.

use crate::rules::descriptor::DEFAULT_NEAR_LIMIT_RATIO;

/// The options of a server for all domains.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Whether descriptors of a domain may be in several documents: `MERGE_DOMAIN_CONFIG`.
    pub merges_domains: bool,
    /// The beginning of all counters' names: `CACHE_KEY_PREFIX`.
    pub key_prefix: String,
    /// The share of a limit beyond which statistics count hits as near the limit, from 0 to 1: `NEAR_LIMIT_RATIO`.
    pub near_limit_ratio: f32,
    /// Whether no request is denied: `SHADOW_MODE`.
    pub shadow_mode: bool,
    /// Whether every limit is a quota, so that a request is denied only if all its limits are exceeded: `QUOTA_MODE`.
    pub quota_mode: bool,
    /// Whether answers repeat the request as dynamic metadata: `RESPONSE_DYNAMIC_METADATA`.
    pub dynamic_metadata: bool,
    /// The headers of answers, if `LIMIT_RESPONSE_HEADERS_ENABLED`.
    pub headers: Option<HeaderNames>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            merges_domains: false,
            key_prefix: String::new(),
            near_limit_ratio: DEFAULT_NEAR_LIMIT_RATIO,
            shadow_mode: false,
            quota_mode: false,
            dynamic_metadata: false,
            headers: None,
        }
    }
}

/// The names of the headers that describe the limit of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderNames {
    /// The number of requests in a window: `LIMIT_LIMIT_HEADER`.
    pub limit: String,
    /// The number that remains: `LIMIT_REMAINING_HEADER`.
    pub remaining: String,
    /// The seconds until the window ends: `LIMIT_RESET_HEADER`.
    pub reset: String,
}

impl Default for HeaderNames {
    fn default() -> Self {
        let [limit, remaining, reset] = ["RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"].map(String::from);
        Self { limit, remaining, reset }
    }
}
