//! The content of a token: the actor, the rules, and the times between which it is valid.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::error::TokenError;
use crate::access::scope_text::ScopeText;
use crate::clock::{NANOS_PER_SECOND, Timestamp};

/// Maximum time until a token expires. A token cannot be revoked without its key.
pub const MAX_TOKEN_TTL: Duration = Duration::from_hours(7 * 24);
/// Maximum difference between the clocks of the server and of the machine that made a token.
const MAX_SKEW: Duration = Duration::from_secs(60);

/// The grant of a token: the status of one actor, for a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenGrant {
    /// Fields and values of the actor. Never empty.
    actor: BTreeMap<String, String>,
    /// Patterns of labels. A rule is visible if its label matches one of them.
    labels: Vec<String>,
    issued: Option<Timestamp>,
    valid_from: Option<Timestamp>,
    expires: Timestamp,
}

/// The claims, with the names that PASETO reserves. A claim that this version does not know may restrict the token, so
/// it makes the token invalid.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Claims {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    iat: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nbf: Option<String>,
    exp: String,
    actor: BTreeMap<String, String>,
    #[serde(default = "every_rule")]
    rules: Vec<String>,
}

fn every_rule() -> Vec<String> {
    vec!["*".to_owned()]
}

impl TokenGrant {
    /// Creates a grant for the time `ttl` from `now`. Without `labels`, it covers all rules.
    ///
    /// # Errors
    /// The actor or a label is not valid, or `ttl` exceeds [`MAX_TOKEN_TTL`].
    pub fn new(
        actor: BTreeMap<String, String>,
        labels: Vec<String>,
        now: Timestamp,
        ttl: Duration,
    ) -> Result<Self, TokenError> {
        // Whole seconds, as other programs write them.
        let now = now.minus(now.as_nanos() % NANOS_PER_SECOND);
        let labels = if labels.is_empty() { every_rule() } else { labels };
        let grant = Self { actor, labels, issued: Some(now), valid_from: None, expires: after(now, ttl) };
        grant.check()?;
        grant.check_times(now)?;
        Ok(grant)
    }

    /// Writes the claims as JSON.
    ///
    /// # Errors
    /// A time is too late for a calendar.
    pub(super) fn to_claims(&self) -> Result<String, TokenError> {
        let claims = Claims {
            iat: self.issued.map(write_time).transpose()?,
            nbf: self.valid_from.map(write_time).transpose()?,
            exp: write_time(self.expires)?,
            actor: self.actor.clone(),
            rules: self.labels.clone(),
        };
        serde_json::to_string(&claims).map_err(|error| TokenError::Content(error.to_string()))
    }

    /// Reads the claims of a token whose seal was checked.
    ///
    /// # Errors
    /// A claim is missing, unknown or not valid.
    pub(super) fn from_claims(text: &str) -> Result<Self, TokenError> {
        let claims: Claims = serde_json::from_str(text).map_err(|error| TokenError::Content(error.to_string()))?;
        let grant = Self {
            actor: claims.actor,
            labels: claims.rules,
            issued: claims.iat.as_deref().map(read_time).transpose()?,
            valid_from: claims.nbf.as_deref().map(read_time).transpose()?,
            expires: read_time(&claims.exp)?,
        };
        grant.check()?;
        Ok(grant)
    }

    /// Checks the actor and the labels. Without a field, every actor would be in scope.
    fn check(&self) -> Result<(), TokenError> {
        if self.actor.is_empty() || self.actor.contains_key("") {
            return Err(TokenError::Content("a field of the actor is missing, or has no name".to_owned()));
        }
        if self.labels.iter().any(String::is_empty) {
            return Err(TokenError::Content("a pattern of labels is empty".to_owned()));
        }
        Ok(())
    }

    /// Checks that the token is valid at this time.
    ///
    /// # Errors
    /// It is not.
    pub(super) fn check_times(&self, now: Timestamp) -> Result<(), TokenError> {
        let latest_start = after(now, MAX_SKEW);
        if self.issued.max(self.valid_from).is_some_and(|start| start > latest_start) {
            return Err(TokenError::NotYetValid);
        }
        if self.expires > after(latest_start, MAX_TOKEN_TTL) {
            return Err(TokenError::ExpiresTooLate);
        }
        if after(self.expires, MAX_SKEW) <= now { Err(TokenError::Expired) } else { Ok(()) }
    }

    /// Returns the scope.
    pub(in crate::access) fn into_scope(self) -> ScopeText {
        ScopeText { covers_everything: false, labels: self.labels, actor: Some(self.actor.into_iter().collect()) }
    }
}

fn after(time: Timestamp, duration: Duration) -> Timestamp {
    time.plus(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}

/// Writes a time as RFC 3339 does, which is a profile of ISO 8601.
fn write_time(time: Timestamp) -> Result<String, TokenError> {
    let time = jiff::Timestamp::from_nanosecond(i128::from(time.as_nanos()));
    Ok(time.map_err(|error| TokenError::Content(error.to_string()))?.to_string())
}

/// Reads a time. A time before 1970 or after 2554 becomes the closest one that divvy's clock can show.
fn read_time(text: &str) -> Result<Timestamp, TokenError> {
    let time: jiff::Timestamp = text
        .parse()
        .map_err(|_| TokenError::Content("a time is not ISO 8601, with date, time and offset".to_owned()))?;
    let nanos = time.as_nanosecond().clamp(0, i128::from(u64::MAX));
    Ok(Timestamp::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
}
