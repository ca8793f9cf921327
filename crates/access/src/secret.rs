//! Secrets of users: hashes of passwords and tokens.

use std::fmt;

use argon2::password_hash::phc::PasswordHash;
use argon2::password_hash::{PasswordHasher, PasswordVerifier};
use argon2::{Algorithm, Argon2, Params, Version};
use ring::digest;
use subtle::ConstantTimeEq;

/// Maximum length of a password, as in Redis (bytes).
pub const MAX_PASSWORD_BYTES: usize = 512;

/// Upper bounds for argon2id: memory in KiB, passes, and lanes. A server computes such hashes for strangers.
const MAX_MEMORY: u32 = 256 * 1024;
const MAX_PASSES: u32 = 16;
const MAX_LANES: u32 = 8;
/// Bytes of the random salt of a new hash.
const SALT_BYTES: usize = 16;

/// Reason why a text cannot be a password: one of the protocols could not carry it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadPassword {
    /// The text has no characters.
    #[error("it is empty")]
    Empty,
    /// The text exceeds [`MAX_PASSWORD_BYTES`].
    #[error("it has more than {MAX_PASSWORD_BYTES} bytes")]
    TooLong,
    /// White space at either end. The HTTP front trims a token.
    #[error("it starts or ends with white space")]
    OuterSpace,
    /// A control character could end a line or a header early.
    #[error("it contains a control character, such as a line break")]
    Control,
}

/// Checks that all protocols can carry the password.
///
/// # Errors
/// [`BadPassword`]: one of them cannot.
pub fn check_password(text: &str) -> Result<(), BadPassword> {
    if text.is_empty() {
        return Err(BadPassword::Empty);
    }
    if text.trim() != text {
        return Err(BadPassword::OuterSpace);
    }
    if text.chars().any(char::is_control) {
        return Err(BadPassword::Control);
    }
    if text.len() > MAX_PASSWORD_BYTES { Err(BadPassword::TooLong) } else { Ok(()) }
}

/// A SHA-256 hash.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest([u8; digest::SHA256_OUTPUT_LEN]);

impl Digest {
    /// Hashes a password or a token.
    pub fn of(password: &[u8]) -> Self {
        let mut bytes = [0; digest::SHA256_OUTPUT_LEN];
        // Both have the length of a SHA-256 hash.
        bytes.copy_from_slice(digest::digest(&digest::SHA256, password).as_ref());
        Self(bytes)
    }

    /// Parses 64 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; digest::SHA256_OUTPUT_LEN];
        if text.len() != 2 * bytes.len() || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        }
        Some(Self(bytes))
    }

    /// Compares in a time that does not depend on the matching part.
    pub fn matches(&self, given: &Self) -> bool {
        self.0.ct_eq(&given.0).into()
    }

    /// Returns the word of the access file.
    pub fn to_word(self) -> String {
        self.0.iter().fold(String::from("#"), |word, byte| word + &format!("{byte:02x}"))
    }
}

/// Omits the hash, which must not get into a log.
impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Digest(***)")
    }
}

/// An argon2id hash.
#[derive(Clone, PartialEq, Eq)]
pub struct SlowHash {
    hash: PasswordHash,
    cost: (u32, u32, u32),
}

impl SlowHash {
    /// Parses a text in the PHC format, `$argon2id$v=19$m=…,t=…,p=…$SALT$HASH`.
    ///
    /// # Errors
    /// The problem, and the advice.
    pub fn parse(text: &str) -> Result<Self, (String, String)> {
        let advice = || "write the hash that `divvy access hash` prints".to_owned();
        let damaged = |reason: String| (format!("this argon2id hash is damaged: {reason}"), advice());
        if !text.starts_with("$argon2") {
            return Err(("a word that begins with $ is not an argon2id hash".to_owned(), advice()));
        }
        let hash = PasswordHash::new(text).map_err(|error| damaged(error.to_string()))?;
        if hash.algorithm.as_str() != "argon2id" {
            return Err((format!("{} is not a kind of hash that divvy knows", hash.algorithm), advice()));
        }
        if hash.version != Some(Version::V0x13.into()) {
            return Err(("this hash is of an earlier version of argon2".to_owned(), advice()));
        }
        let params = Params::try_from(&hash).map_err(|error| damaged(error.to_string()))?;
        if hash.salt.is_none() || hash.hash.is_none() {
            return Err(damaged("it has no salt, or no hash".to_owned()));
        }
        let cost = (params.m_cost(), params.t_cost(), params.p_cost());
        if cost.0 > MAX_MEMORY || cost.1 > MAX_PASSES || cost.2 > MAX_LANES {
            let what = format!("this hash costs m={},t={},p={} to check", cost.0, cost.1, cost.2);
            return Err((what, format!("use at most m={MAX_MEMORY},t={MAX_PASSES},p={MAX_LANES}")));
        }
        Ok(Self { hash, cost })
    }

    /// Hashes a password with a random salt and the crate's costs, which OWASP recommends.
    ///
    /// # Errors
    /// The system provides no random bytes, or argon2 refuses the password.
    pub fn of(password: &str) -> Result<Self, String> {
        Self::with_params(password.as_bytes(), Params::default())
    }

    /// Returns a hash of an unknown password that costs as much as this one to check.
    ///
    /// # Errors
    /// Same as [`SlowHash::of`].
    pub(super) fn decoy(&self) -> Result<Self, String> {
        let mut unknown = [0; SALT_BYTES];
        fill(&mut unknown)?;
        let (memory, passes, lanes) = self.cost;
        let params = Params::new(memory, passes, lanes, None).map_err(|error| error.to_string())?;
        Self::with_params(&unknown, params)
    }

    pub(super) fn with_params(password: &[u8], params: Params) -> Result<Self, String> {
        let mut salt = [0; SALT_BYTES];
        fill(&mut salt)?;
        let cost = (params.m_cost(), params.t_cost(), params.p_cost());
        let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
        let hash = argon2.hash_password_with_salt(password, &salt).map_err(|error| error.to_string())?;
        Ok(Self { hash, cost })
    }

    /// Returns whether this is the password's hash. Takes milliseconds of a processor.
    pub(super) fn matches(&self, password: &[u8]) -> bool {
        Argon2::default().verify_password(password, &self.hash).is_ok()
    }

    /// Returns memory, passes and lanes.
    pub(super) fn cost(&self) -> (u32, u32, u32) {
        self.cost
    }
}

/// Writes the word of the access file.
impl fmt::Display for SlowHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.hash.fmt(f)
    }
}

/// Omits the hash, which must not get into a log.
impl fmt::Debug for SlowHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SlowHash(***)")
    }
}

fn fill(bytes: &mut [u8]) -> Result<(), String> {
    getrandom::getrandom(bytes).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_protocol_can_carry_a_valid_password() {
        for (text, problem) in [
            ("", BadPassword::Empty),
            (" x", BadPassword::OuterSpace),
            ("x\n", BadPassword::OuterSpace),
            ("x\r\nHIT", BadPassword::Control),
            ("x\0", BadPassword::Control),
            (&"x".repeat(513), BadPassword::TooLong),
        ] {
            assert_eq!(check_password(text).err(), Some(problem), "{text:?}");
        }
        for text in ["x", "correct horse", "pässword==\"", &"x".repeat(512)] {
            assert_eq!(check_password(text), Ok(()), "{text:?}");
        }
    }

    #[test]
    fn only_the_password_matches_its_hashes() {
        let digest = Digest::of(b"secret");
        assert_eq!(digest.to_word(), "#2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b");
        assert_eq!(Digest::parse(&digest.to_word().to_uppercase()[1..]), Some(digest));
        let slow = SlowHash::of("secret").unwrap();
        let read = SlowHash::parse(&slow.to_string()).unwrap();
        assert!(read == slow && read.matches(b"secret") && digest.matches(&Digest::of(b"secret")));
        for wrong in [&b""[..], b"secre", b"secret\0", b"secret ", b"Secret"] {
            assert!(!digest.matches(&Digest::of(wrong)) && !slow.matches(wrong), "{}", wrong.escape_ascii());
        }
        let decoy = slow.decoy().unwrap();
        assert!(decoy.cost() == slow.cost() && decoy != slow && !decoy.matches(b"secret"));
    }

    #[test]
    fn invalid_hashes_are_rejected() {
        for text in ["", "zz", &"0".repeat(63), &"0".repeat(65), &"g".repeat(64), &"é".repeat(32)] {
            assert_eq!(Digest::parse(text), None, "{text}");
        }
        let valid = SlowHash::of("secret").unwrap().to_string();
        for (text, reason) in [
            (valid.replace("argon2id", "argon2i"), "argon2i is not"),
            (valid.replace("v=19", "v=16"), "earlier version"),
            (valid.replace("m=19456", "m=999999"), "costs m=999999"),
            (valid[..valid.len() / 2].to_owned(), "damaged"),
            ("$argon2id$".to_owned(), "damaged"),
        ] {
            let (what, _) = SlowHash::parse(&text).unwrap_err();
            assert!(what.contains(reason), "{text}: {what}");
        }
    }

    #[test]
    fn hashes_do_not_print_themselves() {
        let (digest, slow) = (Digest::of(b"x"), SlowHash::of("x").unwrap());
        assert_eq!(format!("{digest:?} {slow:?}"), "Digest(***) SlowHash(***)");
    }
}
