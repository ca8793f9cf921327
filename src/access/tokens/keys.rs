//! The key file, and the tokens that its keys make and open.

use std::path::Path;

use pasetors::Local;
use pasetors::keys::{Generate, SymmetricKey};
use pasetors::paserk::{FormatAsPaserk, Id};
use pasetors::token::UntrustedToken;
use pasetors::version4::{LocalToken, V4};
use serde::{Deserialize, Serialize};

use super::error::{MAX_TOKEN_BYTES, TokenError};
use super::grant::TokenGrant;
use crate::access::problem::{Problems, Report};
use crate::clock::Timestamp;
use crate::files;

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
        let name = path.display().to_string();
        let bytes = files::read(path, MAX_FILE_BYTES).map_err(|error| Report::unreadable(&name, error))?;
        let text = String::from_utf8(bytes).map_err(|_| Report::unreadable(&name, "it is not UTF-8"))?;
        Self::parse(&text, &name)
    }

    /// Parses the text of a key file: one key a line, in PASERK's format.
    ///
    /// # Errors
    /// Every mistake in the text. The report contains no part of a key.
    pub fn parse(text: &str, file: &str) -> Result<Self, Report> {
        let mut problems = Problems::new(file);
        let mut keys: Vec<(usize, TokenKey)> = Vec::new();
        let mut has_lines = false;
        for (index, line) in text.strip_prefix('\u{feff}').unwrap_or(text).lines().enumerate() {
            let (number, line) = (index + 1, line.trim());
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            has_lines = true;
            match SymmetricKey::try_from(line).map(TokenKey::new) {
                Err(_) => problems.error(number, describe_mistake(line), ADVICE),
                Ok(None) => problems.error(number, "this key has no id", ADVICE),
                Ok(Some(key)) => match keys.iter().find(|(_, earlier)| *earlier == key) {
                    Some((first, _)) => {
                        problems.error(number, format!("this key is on line {first} already"), "remove one of the two");
                    }
                    None if keys.len() >= MAX_KEYS => {
                        let what = format!("there are more than {MAX_KEYS} keys");
                        problems.error(number, what, "remove those whose tokens have expired");
                    }
                    None => keys.push((number, key)),
                },
            }
        }
        if !has_lines {
            problems.file_error("there is no key in this file", ADVICE);
        }
        let report = problems.into_report();
        if !report.errors.is_empty() {
            return Err(report);
        }
        Ok(Self { keys: keys.into_iter().map(|(_, key)| key).collect() })
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
        let token = LocalToken::encrypt(&key.secret, grant.to_claims()?.as_bytes(), Some(&footer), None)
            .map_err(|_| TokenError::Encryption)?;
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
        let grant = TokenGrant::from_claims(opened.payload())?;
        grant.check_times(now)?;
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

/// Describes a line that is not a key, without its text.
fn describe_mistake(line: &str) -> &'static str {
    if line.split_whitespace().nth(1).is_some() {
        "there is more than one word on this line"
    } else if line.starts_with("k4.local.") {
        "this key is damaged: 43 characters of base64url follow k4.local."
    } else if line.starts_with("k4.lid.") {
        "this is the id of a key, and not the key"
    } else if line.starts_with('k') && line.contains('.') {
        "this key is for another version or purpose than k4.local"
    } else {
        "this is not a key in PASERK's format, k4.local.…"
    }
}

#[cfg(test)]
mod tests;
