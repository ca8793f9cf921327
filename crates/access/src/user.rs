//! A user: its credentials, which are hashes of passwords and tokens, its rights by categories of requests, and its scope.

use std::fmt;
use std::sync::Arc;

use argon2::password_hash::phc::PasswordHash;
use argon2::password_hash::{PasswordHasher, PasswordVerifier};
use argon2::{Algorithm, Argon2, Params, Version};
use ring::digest;
use subtle::ConstantTimeEq;

use divvy_core::named_values;
use divvy_core::rules::Scope;

/// Name of the user that a password without a name belongs to.
pub const DEFAULT_USER: &str = "default";

/// Categories that users with a scope never have.
const UNSCOPED: [Category; 4] = [Category::Metrics, Category::Info, Category::Backup, Category::Admin];

/// A user of the server.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct User {
    /// The name.
    pub name: Arc<str>,
    /// Whether the user may log in.
    pub is_on: bool,
    /// SHA-256 hashes of passwords and tokens.
    pub digests: Vec<Digest>,
    /// argon2id hashes of passwords.
    pub slow_hashes: Vec<SlowHash>,
    /// Names in client certificates.
    pub certificates: Vec<Arc<str>>,
    /// Categories that the file grants. [`User::rights`] returns those in force.
    pub granted: Categories,
    /// Rules and actors that the user may use.
    pub scope: ScopeText,
}

impl User {
    /// Returns a user that is off, and has no credentials and no rights.
    pub fn new(name: &str) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Returns the user of `--requirepass`, who may do everything.
    pub fn with_password(password: &str) -> Self {
        Self { digests: vec![Digest::of(password.as_bytes())], ..Self::unrestricted() }
    }

    /// Returns the user `default` of a server that asks for no password.
    pub fn unrestricted() -> Self {
        Self { is_on: true, granted: Categories::ALL, scope: ScopeText::everything(), ..Self::new(DEFAULT_USER) }
    }

    /// Returns the categories of requests that the user may send. Metrics, `INFO`, backups and the list of users concern all
    /// rules, so users with a scope never have them.
    pub fn rights(&self) -> Categories {
        let granted = self.granted.with(Category::Connection);
        if self.scope.covers_everything { granted } else { UNSCOPED.into_iter().fold(granted, Categories::without) }
    }
}

/// Writes a line of the access file, without the hashes.
impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "user {} {}", self.name, if self.is_on { "on" } else { "off" })?;
        self.digests.iter().try_for_each(|_| f.write_str(" (sha256)"))?;
        self.slow_hashes.iter().try_for_each(|_| f.write_str(" (argon2id)"))?;
        self.certificates.iter().try_for_each(|name| write!(f, " cert:{name}"))?;
        write!(f, " {}", Grants(self.granted))?;
        let scope = self.scope.to_string();
        if scope.is_empty() { Ok(()) } else { write!(f, " {scope}") }
    }
}

/// Categories as words of the access file.
pub struct Grants(pub Categories);

impl fmt::Display for Grants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.with(Category::Connection) == Categories::ALL {
            return f.write_str("+@all");
        }
        f.write_str("-@all")?;
        let (may_read, has_status) = (self.0.contains(Category::Read), self.0.contains(Category::Status));
        let implied = if may_read { Category::Read.with_included().without(Category::Read) } else { Categories::NONE };
        let named = self.0.without(Category::Connection).without_all(implied);
        named.iter().try_for_each(|category| write!(f, " +@{category}"))?;
        if may_read && !has_status { write!(f, " -@{}", Category::Status) } else { Ok(()) }
    }
}

/// The rules and actors that a user may use. Patterns and fields are texts of the access file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ScopeText {
    /// `~*`: everything, including buckets with the client's own limit. There is no other part then.
    pub covers_everything: bool,
    /// Patterns of `~label:PATTERN`. A rule is in scope if its label matches one of them. Rules without a label and
    /// `[default]` are in scope only with the pattern `*`.
    pub labels: Vec<String>,
    /// Fields and values of `~actor:FIELD=VALUE&…`: the only actor in scope. Never empty.
    pub actor: Option<Vec<(String, String)>>,
}

impl ScopeText {
    /// Returns the scope that covers everything.
    pub fn everything() -> Self {
        Self { covers_everything: true, ..Self::default() }
    }

    /// Compiles the scope.
    pub fn compile(&self) -> Scope {
        if self.covers_everything {
            return Scope::EVERYTHING;
        }
        let actor = self.actor.iter().flatten().map(|(field, value)| (field.as_str(), value.as_str()));
        Scope::new(self.labels.iter().map(String::as_str), actor)
    }

    /// Returns the fields of the actor in the form of the access file, `FIELD=VALUE&…`.
    pub fn actor_text(&self) -> Option<String> {
        let fields = self.actor.as_ref()?;
        Some(url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish())
    }

    /// Returns whether the scope covers nothing.
    pub fn is_empty(&self) -> bool {
        !self.covers_everything && self.labels.is_empty()
    }
}

/// Writes the words of the access file.
impl fmt::Display for ScopeText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = Vec::new();
        if self.covers_everything {
            words.push("~*".to_owned());
        }
        words.extend(self.labels.iter().map(|label| format!("~label:{label}")));
        words.extend(self.actor_text().map(|actor| format!("~actor:{actor}")));
        f.write_str(&words.join(" "))
    }
}

named_values! {
    /// A category of requests. Each command, each route over HTTP and each RPC has one. Lists have them in this order, by their
    /// names in the access file, without `@`.
    Category {
        /// Requests of applications: hits, peeks, reservations, charges, refunds, and the gateways' checks.
        Hit = "hit",
        /// Reading of rules and counters, and explanations.
        Read = "read",
        /// The status of one actor. Users who may read have this category, too, and tokens for one actor have no other.
        Status = "status",
        /// Changes of limits of single actors.
        Limits = "limits",
        /// Blocks and allows of single actors.
        Block = "block",
        /// Forgetting of counters.
        Forget = "forget",
        /// Backups.
        Backup = "backup",
        /// The metrics.
        Metrics = "metrics",
        /// Facts about the server and its clients.
        Info = "info",
        /// Facts about the users.
        Admin = "admin",
        /// Requests about the connection and the protocol. Every user has this category.
        Connection = "connection",
    }
}

impl Category {
    /// Finds the category with this name, in any case.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|category| category.name().eq_ignore_ascii_case(name))
    }

    /// Returns the categories that a word of the access file stands for if it names this one.
    pub const fn with_included(self) -> Categories {
        match self {
            Self::Read => Categories::NONE.with(Self::Read).with(Self::Status),
            other => Categories::NONE.with(other),
        }
    }

    const fn bit(self) -> u16 {
        1 << self as u16
    }
}

/// A set of categories.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Categories(u16);

impl Categories {
    /// No category.
    pub const NONE: Self = Self(0);
    /// Every category.
    pub const ALL: Self = Self((1 << Category::ALL.len()) - 1);

    /// Returns the set with this category.
    #[must_use]
    pub const fn with(self, category: Category) -> Self {
        Self(self.0 | category.bit())
    }

    /// Returns the set without this category.
    #[must_use]
    pub const fn without(self, category: Category) -> Self {
        Self(self.0 & !category.bit())
    }

    /// Returns the set with all of these categories.
    #[must_use]
    pub const fn with_all(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// Returns the set without any of these categories.
    #[must_use]
    pub const fn without_all(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }

    /// Returns whether the category is in the set.
    #[inline]
    pub const fn contains(self, category: Category) -> bool {
        self.0 & category.bit() != 0
    }

    /// Returns whether the set is empty.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the categories of the set, in the order of [`Category::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Category> {
        Category::ALL.into_iter().filter(move |category| self.contains(*category))
    }
}

/// Maximum length of a password, as in Redis (bytes).
pub const MAX_PASSWORD_BYTES: usize = 512;

/// Upper bounds for argon2id: memory in KiB, passes, and lanes. A server computes such hashes for strangers.
const MAX_MEMORY: u32 = 256 * 1024;
const MAX_PASSES: u32 = 16;
const MAX_LANES: u32 = 8;
/// Bytes of the random salt of a new hash.
const SALT_BYTES: usize = 16;

/// A text cannot be a password: one of the protocols could not carry it. A control character could end a line or a header early,
/// and the HTTP front trims white space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "it is empty or longer than {MAX_PASSWORD_BYTES} bytes, begins or ends with white space, or contains a control character"
)]
pub struct BadPassword;

/// Checks that all protocols can carry the password.
///
/// # Errors
/// [`BadPassword`]: one of them cannot.
pub fn check_password(text: &str) -> Result<(), BadPassword> {
    let has_length = (1..=MAX_PASSWORD_BYTES).contains(&text.len());
    let is_plain = text.trim() == text && !text.chars().any(char::is_control);
    if has_length && is_plain { Ok(()) } else { Err(BadPassword) }
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
    /// Memory, passes and lanes.
    pub(super) cost: (u32, u32, u32),
}

impl SlowHash {
    /// Parses a text in the PHC format, `$argon2id$v=19$m=…,t=…,p=…$SALT$HASH`.
    ///
    /// # Errors
    /// The problem, and the advice.
    pub fn parse(text: &str) -> Result<Self, (String, String)> {
        let read = || {
            let hash = PasswordHash::new(text).ok()?;
            let params = Params::try_from(&hash).ok()?;
            let is_whole = hash.salt.is_some() && hash.hash.is_some();
            let is_known = hash.algorithm.as_str() == "argon2id" && hash.version == Some(Version::V0x13.into());
            (is_whole && is_known).then_some((hash, params))
        };
        let (hash, params) = read().ok_or_else(|| {
            let what = "a word that begins with $ is not an argon2id hash of version 19, or is damaged";
            (what.to_owned(), "write the hash that `divvy access hash` prints; in a shell, in single quotes".to_owned())
        })?;
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
        fill_randomly(&mut unknown)?;
        let (memory, passes, lanes) = self.cost;
        let params = Params::new(memory, passes, lanes, None).map_err(|error| error.to_string())?;
        Self::with_params(&unknown, params)
    }

    pub(super) fn with_params(password: &[u8], params: Params) -> Result<Self, String> {
        let mut salt = [0; SALT_BYTES];
        fill_randomly(&mut salt)?;
        let cost = (params.m_cost(), params.t_cost(), params.p_cost());
        let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
        let hash = argon2.hash_password_with_salt(password, &salt).map_err(|error| error.to_string())?;
        Ok(Self { hash, cost })
    }

    /// Returns whether this is the password's hash. Takes milliseconds of a processor.
    pub(super) fn matches(&self, password: &[u8]) -> bool {
        Argon2::default().verify_password(password, &self.hash).is_ok()
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

/// Fills a buffer with random bytes of the system.
pub(super) fn fill_randomly(bytes: &mut [u8]) -> Result<(), String> {
    getrandom::getrandom(bytes).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_contains_what_was_added_and_not_removed() {
        for one in Category::ALL {
            assert_eq!(Category::parse(&one.name().to_uppercase()), Some(one));
            for other in Category::ALL {
                assert_eq!(Categories::NONE.with(one).contains(other), one == other);
                assert_eq!(Categories::ALL.without(one).contains(other), one != other);
            }
        }
        assert!(Categories::NONE.is_empty() && Categories::ALL.iter().eq(Category::ALL));
        assert_eq!(Category::parse("hits"), None);
    }

    #[test]
    fn every_protocol_can_carry_a_valid_password() {
        for text in ["", " x", "x\n", "x\r\nHIT", "x\0", &"x".repeat(513)] {
            assert_eq!(check_password(text), Err(BadPassword), "{text:?}");
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
        assert!(decoy.cost == slow.cost && decoy != slow && !decoy.matches(b"secret"));
    }

    #[test]
    fn invalid_hashes_are_rejected() {
        for text in ["", "zz", &"0".repeat(63), &"0".repeat(65), &"g".repeat(64), &"é".repeat(32)] {
            assert_eq!(Digest::parse(text), None, "{text}");
        }
        let valid = SlowHash::of("secret").unwrap().to_string();
        for (text, reason) in [
            (valid.replace("argon2id", "argon2i"), "is not an argon2id hash"),
            (valid.replace("v=19", "v=16"), "of version 19"),
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
