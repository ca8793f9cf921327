//! The limiter's answers for clients: a JSON body, rate limit headers in three dialects, and `Retry-After`.
//!
//! The first dialect is draft-ietf-httpapi-ratelimit-headers, revision 11: structured fields (RFC 9651). The other
//! dialects have been used for years by gateways and APIs. Each has three numbers, with the reset in seconds from now.

use std::str::FromStr;

use bytes::Bytes;
use hyper::HeaderMap;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use serde::Serialize;

use crate::http::response::JSON;
use crate::http::transport::http1::response::write_header;
use divvy_core::clock::ceil_seconds;
use divvy_limiter::{Limit, Outcome, Refusal, Report, Standing, Verdict};

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const CURRENT: HeaderName = HeaderName::from_static("ratelimit");
/// The rules whose limits are exceeded, by name, separated by commas.
pub const EXCEEDED: HeaderName = HeaderName::from_static("divvy-exceeded");
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

/// The answer to a hit or a peek.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer<'a> {
    /// Whether the credits were granted, or would be for a peek.
    pub allowed: bool,
    /// Maximum number of credits.
    pub limit: u64,
    /// Credits left now.
    pub remaining: u64,
    /// Credits left, negative if more were used than there were.
    balance: i64,
    /// Seconds, rounded up, until there are more credits, as the rule's algorithm defines it.
    pub reset: u64,
    /// Seconds, rounded up, until the same request would be allowed; `None` if it is allowed, or never will be.
    pub retry_after: Option<u64>,
    /// The rule that answered: its [`Rule::name`](divvy_core::rules::Rule::name).
    pub rule: &'a str,
    /// Names of all rules of a stack that deny.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    violated_policies: Vec<&'a str>,
    /// Names of the rules whose limit is exceeded, or the part of it that `annotateAt` gives.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exceeded: Vec<&'a str>,
    /// Why the request is denied, if the actor is blocked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked: Option<Blocked<'a>>,
    #[serde(skip)]
    window_seconds: Option<u64>,
    #[serde(skip)]
    unit: Option<&'static str>,
    /// Whether no limit applies. Then there are no rate limit headers.
    #[serde(skip)]
    is_unlimited: bool,
    /// The answers of all limits of a stack. Empty if only one limit answers.
    #[serde(skip)]
    limits: Vec<Answer<'a>>,
}

/// The block of an actor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Blocked<'a> {
    /// The operator's reason.
    pub reason: Option<&'a str>,
}

impl<'a> Answer<'a> {
    /// Returns the answer to request `index`.
    ///
    /// # Errors
    /// The request was refused.
    pub fn for_request(report: Report<'a>, index: usize) -> Result<Self, Refusal> {
        let answering = report.standing(index)?;
        let mut answer = Self::by(&answering);
        if !report.is_stack(index) {
            return Ok(answer);
        }
        for standing in report.standings(index)? {
            if !standing.verdict.allowed && !report.is_settlement(index) {
                answer.violated_policies.push(standing.name);
            }
            if standing.limit.is_some() || standing.place == answering.place {
                answer.limits.push(Self::by(&standing));
            }
        }
        Ok(answer)
    }

    /// Same as [`Answer::for_request`], with a note of the rules that are exceeded.
    ///
    /// # Errors
    /// The request was refused.
    pub fn with_note(report: Report<'a>, index: usize) -> Result<Self, Refusal> {
        let mut answer = Self::for_request(report, index)?;
        answer.exceeded = report.exceeded(index);
        Ok(answer)
    }

    /// Returns the answer under a request's own limit with this name.
    pub fn by_own_limit(name: &'a str, limit: u64, window_ns: u64, outcome: Outcome) -> Self {
        Self { window_seconds: Some(ceil_seconds(window_ns)), ..Self::new(name, limit, outcome.into()) }
    }

    /// Returns the answer of one rule.
    fn by(&Standing { verdict, name, limit, capacity, block, .. }: &Standing<'a>) -> Self {
        Self {
            window_seconds: limit.and_then(window_seconds),
            // The others are of requests.
            unit: limit.and_then(|limit| matches!(limit, Limit::Concurrency(_)).then_some(CONCURRENT_REQUESTS)),
            is_unlimited: limit.is_none() && verdict.allowed,
            blocked: block.map(|block| Blocked { reason: block.reason.as_deref() }),
            ..Self::new(name, capacity, verdict)
        }
    }

    fn new(rule: &'a str, limit: u64, verdict: Verdict) -> Self {
        Self {
            allowed: verdict.allowed,
            limit,
            remaining: verdict.credit,
            balance: verdict.balance(),
            reset: ceil_seconds(verdict.reset_ns),
            retry_after: verdict.retry_ns.map(ceil_seconds),
            rule,
            violated_policies: Vec::new(),
            exceeded: Vec::new(),
            blocked: None,
            window_seconds: None,
            unit: None,
            is_unlimited: false,
            limits: Vec::new(),
        }
    }

    /// Adds the headers of a response with this answer, and returns the body, which is what serde would write, and a newline.
    /// `text` is a buffer.
    pub fn write(&self, dialects: RateLimitHeaders, headers: &mut HeaderMap, text: &mut Vec<u8>) -> Bytes {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
        self.write_headers(dialects, headers, text);
        text.clear();
        self.write_json(text);
        Bytes::copy_from_slice(text)
    }

    /// Appends the body, and a newline.
    pub fn write_json(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(if self.allowed {
            b"{\"allowed\":true,\"limit\":"
        } else {
            b"{\"allowed\":false,\"limit\":"
        });
        write_number(self.limit, out);
        out.extend_from_slice(b",\"remaining\":");
        write_number(self.remaining, out);
        out.extend_from_slice(b",\"balance\":");
        write_number(self.balance, out);
        out.extend_from_slice(b",\"reset\":");
        write_number(self.reset, out);
        out.extend_from_slice(b",\"retryAfter\":");
        match self.retry_after {
            Some(seconds) => write_number(seconds, out),
            None => out.extend_from_slice(b"null"),
        }
        out.extend_from_slice(b",\"rule\":");
        // Writing a string to memory never fails.
        let _ = serde_json::to_writer(&mut *out, self.rule);
        if !self.violated_policies.is_empty() {
            out.extend_from_slice(b",\"violatedPolicies\":");
            let _ = serde_json::to_writer(&mut *out, &self.violated_policies);
        }
        if !self.exceeded.is_empty() {
            out.extend_from_slice(b",\"exceeded\":");
            let _ = serde_json::to_writer(&mut *out, &self.exceeded);
        }
        if let Some(blocked) = &self.blocked {
            out.extend_from_slice(b",\"blocked\":");
            let _ = serde_json::to_writer(&mut *out, blocked);
        }
        out.extend_from_slice(b"}\n");
    }

    /// Adds the rate limit headers, unless no limit applies. The draft's headers list all limits, and the others contain only the
    /// one that answers. `text` is a buffer. Limits that are exceeded have a header in any case.
    pub fn write_headers(&self, dialects: RateLimitHeaders, headers: &mut impl Headers, text: &mut Vec<u8>) {
        if !self.exceeded.is_empty() {
            headers.add(EXCEEDED, self.exceeded.join(", ").as_bytes());
        }
        if self.is_unlimited {
            return;
        }
        if dialects.draft {
            let limits = if self.limits.is_empty() { std::slice::from_ref(self) } else { &self.limits };
            insert_list(headers, POLICY, limits, Self::write_policy, text);
            insert_list(headers, CURRENT, limits, Self::write_service_limit, text);
        }
        for (wanted, names) in [(dialects.triple, TRIPLE), (dialects.x, X)] {
            if wanted {
                for (name, number) in names.into_iter().zip([self.limit, self.remaining, self.reset]) {
                    insert_number(headers, name, number, text);
                }
            }
        }
        if let Some(seconds) = self.retry_after {
            insert_number(headers, RETRY_AFTER, seconds, text);
        }
    }
}

/// Returns the seconds, rounded up, that the limit takes to grant as many credits as its bucket holds.
fn window_seconds(limit: &Limit) -> Option<u64> {
    let (credits, time_ns) = limit.rate()?;
    let window_ns = (u128::from(time_ns) * u128::from(limit.capacity())).div_ceil(u128::from(credits.max(1)));
    Some(ceil_seconds(u64::try_from(window_ns).unwrap_or(u64::MAX)))
}

impl Answer<'_> {
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
        out.extend_from_slice(self.rule.as_bytes());
        out.push(b'"');
    }
}

/// The head of a response.
pub trait Headers {
    /// Adds a header. Omits it if a header may not have this value.
    fn add(&mut self, name: HeaderName, value: &[u8]);
}

impl Headers for HeaderMap {
    fn add(&mut self, name: HeaderName, value: &[u8]) {
        if let Ok(value) = HeaderValue::from_bytes(value) {
            self.insert(name, value);
        }
    }
}

/// The head of a response over HTTP/1.1, as it is sent.
impl Headers for Vec<u8> {
    fn add(&mut self, name: HeaderName, value: &[u8]) {
        // Without an early end, so that the compiler checks many bytes at once.
        if value.iter().fold(true, |valid, byte| valid & matches!(byte, b' '..=b'~' | b'\t' | 128..)) {
            write_header(name.as_str(), value, self);
        }
    }
}

fn insert_number(headers: &mut impl Headers, name: HeaderName, number: u64, text: &mut Vec<u8>) {
    text.clear();
    write_number(number, text);
    headers.add(name, text);
}

fn insert_list<'a>(
    headers: &mut impl Headers,
    name: HeaderName,
    limits: &[Answer<'a>],
    write: fn(&Answer<'a>, &mut Vec<u8>),
    text: &mut Vec<u8>,
) {
    text.clear();
    for limit in limits {
        if !text.is_empty() {
            text.extend_from_slice(b", ");
        }
        write(limit, text);
    }
    headers.add(name, text);
}

/// Appends a number in decimal, faster than `Display`.
pub fn write_number(number: impl itoa::Integer, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::response::json_line;

    #[test]
    fn answer_is_written_like_serde_writes_it() {
        for (allowed, number, retry_after, rule) in [
            (true, 0, None, "default"),
            (false, u64::MAX, Some(0), "by-ip"),
            (true, 10, Some(u64::MAX), "\u{1}\"\\/ü\u{2028}"),
        ] {
            let (limit, remaining, balance, reset) = (number, number / 3, (number / 3) as i64, number / 7);
            let blocked = (!allowed).then_some(Blocked { reason: retry_after.map(|_| "a \"b\"") });
            let violated_policies = if allowed { Vec::new() } else { vec![rule, "b"] };
            let given = Answer { allowed, limit, remaining, balance, reset, retry_after, ..standing() };
            let answer = Answer { rule, violated_policies, blocked, ..given };
            let mut written = Vec::new();
            answer.write_json(&mut written);
            assert_eq!(written, json_line(&answer).unwrap());
        }
    }

    /// Returns the answer of a limit.
    fn standing() -> Answer<'static> {
        let verdict = Verdict { allowed: true, credit: 50, owed: 0, reset_ns: 30_000_000_000, retry_ns: None };
        Answer { window_seconds: Some(60), ..Answer::new("by-ip", 100, verdict) }
    }

    /// Returns the headers.
    fn written(dialects: &str, answer: &Answer) -> Vec<String> {
        let mut headers = HeaderMap::new();
        answer.write_headers(dialects.parse().unwrap(), &mut headers, &mut Vec::new());
        headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect()
    }

    #[test]
    fn each_dialect_has_its_own_headers() {
        for (dialect, headers) in [
            ("draft", &["ratelimit-policy: \"by-ip\";q=100;w=60", "ratelimit: \"by-ip\";r=50;t=30"][..]),
            ("triple", &["ratelimit-limit: 100", "ratelimit-remaining: 50", "ratelimit-reset: 30"]),
            ("x", &["x-ratelimit-limit: 100", "x-ratelimit-remaining: 50", "x-ratelimit-reset: 30"]),
            ("none", &[]),
        ] {
            assert_eq!(written(dialect, &standing()), headers);
        }
        assert_eq!(written("x,draft,triple", &standing()).len(), 8);
    }

    #[test]
    fn draft_describes_each_kind_of_limit() {
        let daily = || Answer { rule: "daily", limit: 5_000, window_seconds: Some(86_400), ..standing() };
        let stack = Answer { limits: vec![daily(), standing()], ..daily() };
        assert_eq!(written("x", &stack)[0], "x-ratelimit-limit: 5000", "the one that answers");
        let always = Answer { remaining: 100, reset: 0, window_seconds: None, ..standing() };
        let leases = Answer { window_seconds: None, unit: Some(CONCURRENT_REQUESTS), ..standing() };
        // No window outlasts `Retry-After`.
        let trickling = Answer { remaining: 0, reset: 30, retry_after: Some(3), ..standing() };
        let expensive = Answer { remaining: 1, reset: 3, retry_after: Some(30), ..standing() };
        // Structured fields hold no larger integers.
        let huge = Answer { limit: u64::MAX, remaining: u64::MAX, reset: u64::MAX, ..standing() };
        for (answer, policy, current) in [
            (stack, "\"daily\";q=5000;w=86400, \"by-ip\";q=100;w=60", "\"daily\";r=50;t=30, \"by-ip\";r=50;t=30"),
            (always, "\"by-ip\";q=100", "\"by-ip\";r=100"),
            (leases, "\"by-ip\";q=100;qu=\"concurrent-requests\"", "\"by-ip\";r=50;t=30"),
            (trickling, "\"by-ip\";q=100;w=60", "\"by-ip\";r=0;t=3"),
            (expensive, "\"by-ip\";q=100;w=60", "\"by-ip\";r=1;t=3"),
            (huge, "\"by-ip\";q=999999999999999;w=60", "\"by-ip\";r=999999999999999;t=999999999999999"),
        ] {
            let mut expected = vec![format!("ratelimit-policy: {policy}"), format!("ratelimit: {current}")];
            expected.extend(answer.retry_after.map(|seconds| format!("retry-after: {seconds}")));
            assert_eq!(written("draft", &answer), expected);
        }
    }

    #[test]
    fn other_dialects_are_unknown() {
        for text in ["", "Draft", "draft, x", "draft,none", "draft,,x"] {
            assert!(text.parse::<RateLimitHeaders>().is_err(), "{text:?}");
        }
    }
}
