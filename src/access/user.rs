//! A user: its credentials, its rights and its scope.

use std::fmt;
use std::sync::Arc;

use super::category::{Categories, Category};
use super::scope_text::ScopeText;
use super::secret::{Digest, SlowHash};

/// Name of the user that a password without a name belongs to.
pub const DEFAULT_USER: &str = "default";

/// Categories that users with a scope never have.
pub const UNSCOPED: [Category; 4] = [Category::Metrics, Category::Info, Category::Backup, Category::Admin];

/// A user of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
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
        Self {
            name: name.into(),
            is_on: false,
            digests: Vec::new(),
            slow_hashes: Vec::new(),
            certificates: Vec::new(),
            granted: Categories::NONE,
            scope: ScopeText::default(),
        }
    }

    /// Returns the user of `--requirepass`, who may do everything.
    pub fn with_password(password: &str) -> Self {
        Self { digests: vec![Digest::of(password.as_bytes())], ..Self::unrestricted() }
    }

    /// Returns the user `default` of a server that asks for no password.
    pub fn unrestricted() -> Self {
        Self { is_on: true, granted: Categories::ALL, scope: ScopeText::everything(), ..Self::new(DEFAULT_USER) }
    }

    /// Returns whether the user may use only a part of the rules.
    pub fn is_scoped(&self) -> bool {
        !self.scope.covers_everything
    }

    /// Returns the categories of requests that the user may send. Metrics, `INFO`, backups and the list of users concern all
    /// rules, so users with a scope never have them.
    pub fn rights(&self) -> Categories {
        let granted = self.granted.with(Category::Connection);
        match self.is_scoped() {
            false => granted,
            true => UNSCOPED.into_iter().fold(granted, Categories::without),
        }
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
