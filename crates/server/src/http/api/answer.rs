//! The limiter's answers for clients: a JSON body, and headers.

use std::borrow::Cow;

use bytes::Bytes;
use hyper::HeaderMap;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use serde::Serialize;

use super::ratelimit::{CONCURRENT_REQUESTS, LimitStatus, RateLimitHeaders, write_number};
use crate::http::response::JSON;
use divvy_core::clock::ceil_seconds;
use divvy_limiter::{Limit, Outcome, Refusal, Report, Standing, Verdict};

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
    pub rule: Cow<'a, str>,
    /// Names of all rules of a stack that deny.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    violated_policies: Vec<Cow<'a, str>>,
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
                answer.violated_policies.push(standing.rule.name(standing.place));
            }
            if standing.limit.is_some() || standing.place == answering.place {
                answer.limits.push(Self::by(&standing));
            }
        }
        Ok(answer)
    }

    /// Returns the answer under a request's own limit with this name.
    pub fn by_own_limit(name: &'a str, limit: u64, window_ns: u64, outcome: Outcome) -> Self {
        Self { window_seconds: Some(ceil_seconds(window_ns)), ..Self::new(name.into(), limit, outcome.into()) }
    }

    /// Returns the answer of one rule.
    fn by(&Standing { verdict, rule, place, limit, capacity, block }: &Standing<'a>) -> Self {
        Self {
            window_seconds: limit.and_then(window_seconds),
            unit: limit.and_then(unit),
            is_unlimited: limit.is_none() && verdict.allowed,
            blocked: block.map(|block| Blocked { reason: block.reason.as_deref() }),
            ..Self::new(rule.name(place), capacity, verdict)
        }
    }

    fn new(rule: Cow<'a, str>, limit: u64, verdict: Verdict) -> Self {
        Self {
            allowed: verdict.allowed,
            limit,
            remaining: verdict.credit,
            balance: verdict.balance(),
            reset: ceil_seconds(verdict.reset_ns),
            retry_after: verdict.retry_ns.map(ceil_seconds),
            rule,
            violated_policies: Vec::new(),
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
        let _ = serde_json::to_writer(&mut *out, &self.rule);
        if !self.violated_policies.is_empty() {
            out.extend_from_slice(b",\"violatedPolicies\":");
            let _ = serde_json::to_writer(&mut *out, &self.violated_policies);
        }
        if let Some(blocked) = &self.blocked {
            out.extend_from_slice(b",\"blocked\":");
            let _ = serde_json::to_writer(&mut *out, blocked);
        }
        out.extend_from_slice(b"}\n");
    }

    /// Adds the rate limit headers, unless no limit applies. `text` is a buffer.
    pub fn write_headers(&self, dialects: RateLimitHeaders, headers: &mut HeaderMap, text: &mut Vec<u8>) {
        if self.is_unlimited {
            return;
        }
        let limits = if self.limits.is_empty() { std::slice::from_ref(self) } else { &self.limits };
        dialects.write(&self.status(), limits.iter().map(Self::status), headers, text);
    }

    fn status(&self) -> LimitStatus<'_> {
        LimitStatus {
            policy: &self.rule,
            limit: self.limit,
            window_seconds: self.window_seconds,
            unit: self.unit,
            remaining: self.remaining,
            reset: self.reset,
            retry_after: self.retry_after,
        }
    }
}

/// Returns the seconds, rounded up, that the limit takes to grant as many credits as its bucket holds.
fn window_seconds(limit: &Limit) -> Option<u64> {
    let (credits, time_ns) = limit.rate()?;
    let window_ns = (u128::from(time_ns) * u128::from(limit.capacity())).div_ceil(u128::from(credits.max(1)));
    Some(ceil_seconds(u64::try_from(window_ns).unwrap_or(u64::MAX)))
}

/// Returns the unit of the limit's credits, unless they are requests.
fn unit(limit: &Limit) -> Option<&'static str> {
    matches!(limit, Limit::Concurrency(_)).then_some(CONCURRENT_REQUESTS)
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
            let (limit, remaining, reset) = (number, number / 3, number / 7);
            let rule = Cow::Borrowed(rule);
            let blocked = (!allowed).then_some(Blocked { reason: retry_after.map(|_| "a \"b\"") });
            let violated_policies = if allowed { Vec::new() } else { vec![rule.clone(), "b".into()] };
            let answer = Answer {
                allowed,
                limit,
                remaining,
                balance: remaining as i64,
                reset,
                retry_after,
                rule,
                violated_policies,
                blocked,
                window_seconds: None,
                unit: None,
                is_unlimited: false,
                limits: Vec::new(),
            };
            let mut written = Vec::new();
            answer.write_json(&mut written);
            assert_eq!(written, json_line(&answer).unwrap());
        }
    }
}
