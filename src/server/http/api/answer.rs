//! What the limiter said, as clients read it: a JSON body, and headers.

use std::borrow::Cow;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::json::Json;
use super::problem::Problem;
use super::ratelimit::{RateLimitHeaders, Standing};
use crate::clock::ceil_seconds;
use crate::limiter::Requests;
use crate::rules::{Quota, Rule};

/// The answer to a hit or a peek.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer<'a> {
    pub allowed: bool,
    /// The most credits that there can be left.
    pub limit: u64,
    /// Credits left now.
    pub remaining: u64,
    /// Seconds, rounded up, until more credits, as the rule's algorithm defines it.
    pub reset: u64,
    /// Seconds, rounded up, until the same request would be allowed; none when it is, or never will be.
    pub retry_after: Option<u64>,
    /// The rule that answered: its [`name`].
    pub rule: Cow<'a, str>,
    #[serde(skip)]
    window_seconds: Option<u64>,
}

impl<'a> Answer<'a> {
    /// The answer to request `index`.
    ///
    /// # Errors
    /// It has none.
    pub fn of(requests: &'a Requests, index: usize) -> Result<Self, Problem> {
        let verdict = requests.verdict(index)?;
        let (place, rule) = requests.rule(index).ok_or_else(|| Problem::bad_request("no rule answers"))?;
        Ok(Self {
            allowed: verdict.allowed,
            limit: rule.quota.capacity(),
            remaining: verdict.credit,
            reset: ceil_seconds(verdict.reset_ns),
            retry_after: verdict.retry_ns.map(ceil_seconds),
            rule: name(place, rule),
            window_seconds: window_seconds(rule),
        })
    }

    /// As a response with this status.
    pub fn respond(&self, status: StatusCode, headers: RateLimitHeaders) -> Response {
        let mut response = (status, Json(self)).into_response();
        headers.write(&self.standing(), response.headers_mut());
        response
    }

    pub fn standing(&self) -> Standing<'_> {
        Standing {
            policy: &self.rule,
            limit: self.limit,
            window_seconds: self.window_seconds,
            remaining: self.remaining,
            reset: self.reset,
            retry_after: self.retry_after,
        }
    }
}

/// What a rule is called in bodies and headers: its label; without one, what any client may know, its place
/// among the rules.
pub fn name(place: usize, rule: &Rule) -> Cow<'_, str> {
    match &rule.label {
        Some(label) => Cow::Borrowed(label),
        None if rule.is_default() => Cow::Borrowed("default"),
        None => Cow::Owned(format!("rule-{}", place + 1)),
    }
}

/// The time in which the rule grants as many credits as its bucket holds, rounded up.
fn window_seconds(rule: &Rule) -> Option<u64> {
    let Quota::Limited(limit) = rule.quota else { return None };
    let (credits, time_ns) = limit.rate();
    let window_ns = (u128::from(time_ns) * u128::from(limit.capacity())).div_ceil(u128::from(credits.max(1)));
    Some(ceil_seconds(u64::try_from(window_ns).unwrap_or(u64::MAX)))
}
