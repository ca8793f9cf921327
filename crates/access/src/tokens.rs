//! Tokens for one actor: a product's customers read their own status with them.
//!
//! A token is a PASETO of the kind `v4.local`: encrypted and authenticated with a key of the key file. It says which actor
//! it is for, and until when. So the server keeps nothing about tokens, and any program with a key can make them.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use pasetors::Local;
use pasetors::keys::{Generate, SymmetricKey};
use pasetors::paserk::{FormatAsPaserk, Id};
use pasetors::token::UntrustedToken;
use pasetors::version4::{LocalToken, V4};
use serde::{Deserialize, Serialize};

use super::access_file;
use super::user::ScopeText;
use divvy_core::clock::{NANOS_PER_SECOND, Timestamp};
use divvy_core::config::{Problems, Report};

/// Maximum time until a token expires. A token cannot be revoked without its key.
pub const MAX_TOKEN_TTL: Duration = Duration::from_hours(7 * 24);

/// Maximum difference between the clocks of the server and of the machine that made a token.
const MAX_SKEW: Duration = Duration::from_secs(60);

/// The grant of a token: the status of one actor, for a time. Its fields are the claims, with the names that PASETO reserves. A claim
/// that this version does not know may restrict the token, so it makes the token invalid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenGrant {
    #[serde(rename = "iat", default, skip_serializing_if = "Option::is_none")]
    issued: Option<ClaimTime>,
    #[serde(rename = "nbf", default, skip_serializing_if = "Option::is_none")]
    valid_from: Option<ClaimTime>,
    #[serde(rename = "exp")]
    expires: ClaimTime,
    /// Fields and values of the actor. Never empty.
    actor: BTreeMap<String, String>,
    /// Patterns of labels. A rule is visible if its label matches one of them.
    #[serde(rename = "rules", default = "every_rule")]
    labels: Vec<String>,
}

/// A time in a claim, as RFC 3339 writes it, which is a profile of ISO 8601.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
struct ClaimTime(Timestamp);

impl From<ClaimTime> for String {
    fn from(ClaimTime(time): ClaimTime) -> Self {
        // Every timestamp is before the year 2555, which the library knows.
        jiff::Timestamp::from_nanosecond(time.as_nanos().into()).map(|time| time.to_string()).unwrap_or_default()
    }
}

impl TryFrom<String> for ClaimTime {
    type Error = &'static str;

    /// Reads a time. A time before 1970 or after 2554 becomes the closest one that divvy's clock can show.
    fn try_from(text: String) -> Result<Self, Self::Error> {
        let time: jiff::Timestamp = text.parse().map_err(|_| "a time is not ISO 8601, with date, time and offset")?;
        let nanos = time.as_nanosecond().clamp(0, u64::MAX.into());
        Ok(Self(Timestamp::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))))
    }
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
        let grant =
            Self { actor, labels, issued: Some(ClaimTime(now)), valid_from: None, expires: ClaimTime(after(now, ttl)) };
        grant.check(now)?;
        Ok(grant)
    }

    /// Checks that the token is valid at this time. Without a field, every actor would be in scope.
    fn check(&self, now: Timestamp) -> Result<(), TokenError> {
        if self.actor.is_empty() || self.actor.contains_key("") {
            return Err(TokenError::Content("a field of the actor is missing, or has no name".to_owned()));
        }
        if self.labels.iter().any(String::is_empty) {
            return Err(TokenError::Content("a pattern of labels is empty".to_owned()));
        }
        let (latest_start, expires) = (after(now, MAX_SKEW), self.expires.0);
        if self.issued.max(self.valid_from).is_some_and(|start| start.0 > latest_start) {
            return Err(TokenError::NotYetValid);
        }
        if expires > after(latest_start, MAX_TOKEN_TTL) {
            return Err(TokenError::ExpiresTooLate);
        }
        if after(expires, MAX_SKEW) <= now { Err(TokenError::Expired) } else { Ok(()) }
    }

    /// Returns the scope.
    pub(super) fn into_scope(self) -> ScopeText {
        ScopeText { covers_everything: false, labels: self.labels, actor: Some(self.actor.into_iter().collect()) }
    }
}

fn after(time: Timestamp, duration: Duration) -> Timestamp {
    time.plus(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}

/// Maximum number of keys in a file. One is in use, and one is about to be, or was.
const MAX_KEYS: usize = 16;

/// Maximum size of a key file (bytes).
const MAX_FILE_BYTES: u64 = 64 << 10;

/// Advice for a line that is not a key.
const ADVICE: &str = "write a line that `divvy token key` prints";

/// The keys of a file. The first one makes tokens, and tokens of all of them are valid.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenKeys {
    keys: Vec<TokenKey>,
}

/// A key. The debug format of the secret hides it.
#[derive(Debug, Clone, PartialEq)]
struct TokenKey {
    /// The id in PASERK's format, `k4.lid.…`. It is a hash of the secret.
    id: String,
    secret: SymmetricKey<V4>,
}

/// The footer of a token: readable, but authenticated.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Footer {
    kid: String,
}

impl TokenKeys {
    /// Reads and parses the key file at `path`.
    ///
    /// # Errors
    /// The file cannot be read, or every mistake in it.
    pub fn load(path: &Path) -> Result<Self, Report> {
        Self::parse(&access_file::read(path, MAX_FILE_BYTES)?, &path.display().to_string())
    }

    /// Parses the text of a key file: one key a line, in PASERK's format.
    ///
    /// # Errors
    /// Every mistake in the text. The report contains no part of a key.
    pub fn parse(text: &str, file: &str) -> Result<Self, Report> {
        let mut problems = Problems::new(file);
        let mut keys: Vec<TokenKey> = Vec::new();
        for (number, line) in access_file::numbered_lines(text) {
            match SymmetricKey::try_from(line).ok().and_then(TokenKey::new) {
                None => problems.error(number, "this is not a key in PASERK's format, k4.local.…", ADVICE),
                Some(key) if keys.contains(&key) || keys.len() >= MAX_KEYS => {
                    let what = format!("this key is on an earlier line, or there are more than {MAX_KEYS} keys");
                    problems.error(number, what, "remove it, or keys whose tokens have expired");
                }
                Some(key) => keys.push(key),
            }
        }
        if access_file::numbered_lines(text).next().is_none() {
            problems.file_error("there is no key in this file", ADVICE);
        }
        if problems.has_errors() {
            return Err(problems.into());
        }
        Ok(Self { keys })
    }

    /// Returns lines for a key file with a new key: a comment with its id, and the key.
    ///
    /// # Errors
    /// The system provides no random bytes.
    pub fn generate() -> Result<String, TokenError> {
        let secret = SymmetricKey::generate().map_err(|_| TokenError::Encryption)?;
        let mut text = String::new();
        secret.fmt(&mut text).map_err(|_| TokenError::Encryption)?;
        let key = TokenKey::new(secret).ok_or(TokenError::Encryption)?;
        Ok(format!("# {}\n{text}\n", key.id))
    }

    /// Returns the ids of the keys, `k4.lid.…`, which are no secrets.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.keys.iter().map(|key| &*key.id)
    }

    /// Returns whether a bearer token is meant for these keys. Nothing else about it is checked.
    pub fn is_token(text: &[u8]) -> bool {
        text.starts_with(LocalToken::HEADER.as_bytes())
    }

    /// Makes a token with the first key.
    ///
    /// # Errors
    /// The token is too long, or the system provides no random bytes.
    pub fn seal(&self, grant: &TokenGrant) -> Result<String, TokenError> {
        let key = self.keys.first().ok_or(TokenError::UnknownKey)?;
        let footer = serde_json::to_vec(&Footer { kid: key.id.clone() }).map_err(|_| TokenError::NoKeyId)?;
        let claims = serde_json::to_vec(grant).map_err(|error| TokenError::Content(error.to_string()))?;
        let token = LocalToken::encrypt(&key.secret, &claims, Some(&footer), None);
        let token = token.map_err(|_| TokenError::Encryption)?;
        if token.len() > MAX_TOKEN_BYTES { Err(TokenError::TooLong) } else { Ok(token) }
    }

    /// Opens a token that is valid at this time.
    ///
    /// # Errors
    /// [`TokenError`]
    pub fn open(&self, token: &[u8], now: Timestamp) -> Result<TokenGrant, TokenError> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(TokenError::TooLong);
        }
        let text = str::from_utf8(token).map_err(|_| TokenError::Malformed)?;
        let sealed = UntrustedToken::<Local, V4>::try_from(text).map_err(|_| TokenError::Malformed)?;
        let footer: Footer = serde_json::from_slice(sealed.untrusted_footer()).map_err(|_| TokenError::NoKeyId)?;
        let key = self.keys.iter().find(|key| key.id == footer.kid).ok_or(TokenError::UnknownKey)?;
        let opened = LocalToken::decrypt(&key.secret, &sealed, None, None).map_err(|_| TokenError::Altered)?;
        let grant: TokenGrant =
            serde_json::from_str(opened.payload()).map_err(|error| TokenError::Content(error.to_string()))?;
        grant.check(now)?;
        Ok(grant)
    }
}

impl TokenKey {
    fn new(secret: SymmetricKey<V4>) -> Option<Self> {
        let mut id = String::new();
        Id::from(&secret).fmt(&mut id).ok()?;
        Some(Self { id, secret })
    }
}

/// Maximum length of a token, enough for an actor of two thousand bytes (bytes).
pub const MAX_TOKEN_BYTES: usize = 4096;

/// Reason why a token is refused. It is for the log: clients get the same answer for all of them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The token exceeds [`MAX_TOKEN_BYTES`].
    #[error("it is longer than {MAX_TOKEN_BYTES} bytes")]
    TooLong,
    /// The text is not a token of this version and purpose.
    #[error("it is not a v4.local token")]
    Malformed,
    /// The footer does not name a key.
    #[error("its footer is not {{\"kid\":\"k4.lid.…\"}}")]
    NoKeyId,
    /// The key file has no key with the id in the footer.
    #[error("its key is not in the key file")]
    UnknownKey,
    /// The token was changed, or made with another key.
    #[error("it was altered, or made with another key")]
    Altered,
    /// The content does not say what a token must say.
    #[error("its content is not valid: {0}")]
    Content(String),
    /// The token is not valid anymore.
    #[error("it has expired")]
    Expired,
    /// The token is not valid yet.
    #[error("it is not valid yet")]
    NotYetValid,
    /// The token would be valid for longer than is allowed.
    #[error("it expires too late")]
    ExpiresTooLate,
    /// No key could encrypt the token: the system provides no random bytes.
    #[error("it cannot be encrypted")]
    Encryption,
}

#[cfg(test)]
mod tests;
