//! Rate limit headers in three dialects, and `Retry-After`.
//!
//! The first dialect is draft-ietf-httpapi-ratelimit-headers, revision 11: structured fields (RFC 9651). The other
//! dialects have been used for years by gateways and APIs. Each has three numbers, with the reset in seconds from now.

use std::str::FromStr;

use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue, RETRY_AFTER};

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const CURRENT: HeaderName = HeaderName::from_static("ratelimit");
const TRIPLE: [HeaderName; 3] = [
    HeaderName::from_static("ratelimit-limit"),
    HeaderName::from_static("ratelimit-remaining"),
    HeaderName::from_static("ratelimit-reset"),
];
const X: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-remaining"),
    HeaderName::from_static("x-ratelimit-reset"),
];
/// Largest integer of a structured field (RFC 9651, section 3.3.1).
const MAX_INTEGER: u64 = 999_999_999_999_999;

/// Quota unit of a concurrency limit, as in the draft.
pub const CONCURRENT_REQUESTS: &str = "concurrent-requests";

/// The dialects in responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimitHeaders {
    /// `RateLimit` and `RateLimit-Policy`.
    pub draft: bool,
    /// `RateLimit-Limit`, `-Remaining` and `-Reset`, as in revision 6 of the draft.
    pub triple: bool,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`.
    pub x: bool,
}

impl RateLimitHeaders {
    /// No headers but `Retry-After`.
    pub const NONE: Self = Self { draft: false, triple: false, x: false };
}

impl FromStr for RateLimitHeaders {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut headers = Self::NONE;
        if text == "none" {
            return Ok(headers);
        }
        for dialect in text.split(',') {
            match dialect {
                "draft" => headers.draft = true,
                "triple" => headers.triple = true,
                "x" => headers.x = true,
                _ => {
                    return Err(format!(
                        "{dialect:?} is unknown: expected draft, triple, or x, separated by commas, or `none` alone"
                    ));
                }
            }
        }
        Ok(headers)
    }
}

/// The state of one limit for a client.
#[derive(Debug)]
pub struct LimitStatus<'a> {
    /// The rule's name: printable ASCII without quotes and backslashes.
    pub policy: &'a str,
    /// Maximum number of credits.
    pub limit: u64,
    /// Time for a full refill at the limit's rate, in seconds, rounded up. `None` if the limit has no rate.
    pub window_seconds: Option<u64>,
    /// Unit of `limit`, unless it counts requests.
    pub unit: Option<&'static str>,
    /// Credits left.
    pub remaining: u64,
    /// Seconds until there are more credits.
    pub reset: u64,
    /// Seconds until the same request would be allowed. `None` if it is allowed, or never will be.
    pub retry_after: Option<u64>,
}

impl RateLimitHeaders {
    /// Adds the headers. The draft's headers list all `limits`. The others contain only the limit that is `answering`.
    /// `text` is a buffer.
    pub fn write<'a>(
        self,
        answering: &LimitStatus,
        limits: impl Iterator<Item = LimitStatus<'a>> + Clone,
        headers: &mut HeaderMap,
        text: &mut Vec<u8>,
    ) {
        if self.draft {
            insert_list(headers, POLICY, limits.clone(), LimitStatus::write_policy, text);
            insert_list(headers, CURRENT, limits, LimitStatus::write_service_limit, text);
        }
        for (wanted, names) in [(self.triple, TRIPLE), (self.x, X)] {
            if wanted {
                let numbers = [answering.limit, answering.remaining, answering.reset];
                headers.extend(names.into_iter().zip(numbers.map(HeaderValue::from)));
            }
        }
        if let Some(seconds) = answering.retry_after {
            headers.insert(RETRY_AFTER, seconds.into());
        }
    }
}

impl LimitStatus<'_> {
    fn write_policy(&self, out: &mut Vec<u8>) {
        self.write_name(out);
        out.extend_from_slice(b";q=");
        write_number(self.limit.min(MAX_INTEGER), out);
        if let Some(unit) = self.unit {
            out.extend_from_slice(b";qu=\"");
            out.extend_from_slice(unit.as_bytes());
            out.push(b'"');
        }
        if let Some(seconds) = self.window_seconds {
            out.extend_from_slice(b";w=");
            write_number(seconds.clamp(1, MAX_INTEGER), out);
        }
    }

    /// The time in `t` must not be later than `Retry-After`, so it is capped for buckets that refill gradually.
    fn write_service_limit(&self, out: &mut Vec<u8>) {
        self.write_name(out);
        out.extend_from_slice(b";r=");
        write_number(self.remaining.min(MAX_INTEGER), out);
        let until = self.retry_after.map_or(self.reset, |retry| retry.min(self.reset));
        if until > 0 {
            out.extend_from_slice(b";t=");
            write_number(until.min(MAX_INTEGER), out);
        }
    }

    fn write_name(&self, out: &mut Vec<u8>) {
        out.push(b'"');
        out.extend_from_slice(self.policy.as_bytes());
        out.push(b'"');
    }
}

fn insert_list<'a>(
    headers: &mut HeaderMap,
    name: HeaderName,
    limits: impl Iterator<Item = LimitStatus<'a>>,
    write: fn(&LimitStatus<'a>, &mut Vec<u8>),
    text: &mut Vec<u8>,
) {
    text.clear();
    for limit in limits {
        if !text.is_empty() {
            text.extend_from_slice(b", ");
        }
        write(&limit, text);
    }
    if let Ok(value) = HeaderValue::from_bytes(text) {
        headers.insert(name, value);
    }
}

/// Appends a number in decimal, faster than `Display`.
pub fn write_number(number: impl itoa::Integer, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    const STANDING: LimitStatus = LimitStatus {
        policy: "by-ip",
        limit: 100,
        window_seconds: Some(60),
        unit: None,
        remaining: 50,
        reset: 30,
        retry_after: None,
    };

    fn written(dialects: &str, status: &LimitStatus<'static>) -> Vec<String> {
        written_of(dialects, std::slice::from_ref(status))
    }

    /// Returns the headers. The first limit answers.
    fn written_of(dialects: &str, limits: &[LimitStatus<'static>]) -> Vec<String> {
        let mut headers = HeaderMap::new();
        let status = |status: &LimitStatus<'static>| LimitStatus { ..*status };
        let dialects = dialects.parse::<RateLimitHeaders>().unwrap();
        dialects.write(&limits[0], limits.iter().map(status), &mut headers, &mut Vec::new());
        headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect()
    }

    #[test]
    fn each_dialect_has_its_own_headers() {
        assert_eq!(
            written("draft", &STANDING),
            ["ratelimit-policy: \"by-ip\";q=100;w=60", "ratelimit: \"by-ip\";r=50;t=30"]
        );
        assert_eq!(
            written("triple", &STANDING),
            ["ratelimit-limit: 100", "ratelimit-remaining: 50", "ratelimit-reset: 30"]
        );
        assert_eq!(
            written("x", &STANDING),
            ["x-ratelimit-limit: 100", "x-ratelimit-remaining: 50", "x-ratelimit-reset: 30"]
        );
        assert_eq!(written("x,draft,triple", &STANDING).len(), 8);
        assert!(written("none", &STANDING).is_empty());
    }

    #[test]
    fn denial_has_retry_after_and_no_window_outlasts_it() {
        let trickling = LimitStatus { remaining: 0, reset: 30, retry_after: Some(3), ..STANDING };
        assert_eq!(written("draft", &trickling)[1..], ["ratelimit: \"by-ip\";r=0;t=3", "retry-after: 3"]);
        let expensive = LimitStatus { remaining: 1, reset: 3, retry_after: Some(30), ..STANDING };
        assert_eq!(written("draft", &expensive)[1..], ["ratelimit: \"by-ip\";r=1;t=3", "retry-after: 30"]);
    }

    #[test]
    fn draft_lists_all_limits_and_other_dialects_the_one_that_answers() {
        let daily = LimitStatus { policy: "daily", limit: 5_000, window_seconds: Some(86_400), ..STANDING };
        let limits = [daily, STANDING];
        assert_eq!(
            written_of("draft", &limits),
            [
                "ratelimit-policy: \"daily\";q=5000;w=86400, \"by-ip\";q=100;w=60",
                "ratelimit: \"daily\";r=50;t=30, \"by-ip\";r=50;t=30"
            ]
        );
        assert_eq!(written_of("x", &limits)[0], "x-ratelimit-limit: 5000");
    }

    #[test]
    fn rule_without_a_counter_has_no_window() {
        let always = LimitStatus { remaining: 100, reset: 0, window_seconds: None, ..STANDING };
        assert_eq!(written("draft", &always), ["ratelimit-policy: \"by-ip\";q=100", "ratelimit: \"by-ip\";r=100"]);
    }

    #[test]
    fn concurrency_limit_has_a_unit_and_no_window() {
        let leases = LimitStatus { window_seconds: None, unit: Some(CONCURRENT_REQUESTS), ..STANDING };
        assert_eq!(
            written("draft", &leases),
            ["ratelimit-policy: \"by-ip\";q=100;qu=\"concurrent-requests\"", "ratelimit: \"by-ip\";r=50;t=30"]
        );
    }

    #[test]
    fn integers_stay_within_what_structured_fields_hold() {
        let huge = LimitStatus { limit: u64::MAX, remaining: u64::MAX, reset: u64::MAX, ..STANDING };
        assert_eq!(written("draft", &huge)[0], "ratelimit-policy: \"by-ip\";q=999999999999999;w=60");
        assert_eq!(written("draft", &huge)[1], "ratelimit: \"by-ip\";r=999999999999999;t=999999999999999");
    }

    #[test]
    fn other_dialects_are_unknown() {
        for text in ["", "Draft", "draft, x", "draft,none", "draft,,x"] {
            assert!(text.parse::<RateLimitHeaders>().is_err(), "{text:?}");
        }
    }
}
