//! A user: its credentials, its rights by categories of requests, and its scope.

use std::fmt;
use std::sync::Arc;

use super::secret::{Digest, SlowHash};
use divvy_core::rules::Scope;

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

/// A category of requests. Each command, each route over HTTP and each RPC has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Category {
    /// Requests of applications: hits, peeks, reservations, charges, refunds, and the gateways' checks.
    Hit,
    /// Reading of rules and counters, and explanations.
    Read,
    /// The status of one actor. Users who may read have this category, too, and tokens for one actor have no other.
    Status,
    /// Changes of limits of single actors.
    Limits,
    /// Blocks and allows of single actors.
    Block,
    /// Forgetting of counters.
    Forget,
    /// Backups.
    Backup,
    /// The metrics.
    Metrics,
    /// Facts about the server and its clients.
    Info,
    /// Facts about the users.
    Admin,
    /// Requests about the connection and the protocol. Every user has this category.
    Connection,
}

impl Category {
    /// All categories, in the order of lists.
    pub const ALL: [Self; 11] = [
        Self::Hit,
        Self::Read,
        Self::Status,
        Self::Limits,
        Self::Block,
        Self::Forget,
        Self::Backup,
        Self::Metrics,
        Self::Info,
        Self::Admin,
        Self::Connection,
    ];

    /// Returns the name in the access file, without `@`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Read => "read",
            Self::Status => "status",
            Self::Limits => "limits",
            Self::Block => "block",
            Self::Forget => "forget",
            Self::Backup => "backup",
            Self::Metrics => "metrics",
            Self::Info => "info",
            Self::Admin => "admin",
            Self::Connection => "connection",
        }
    }

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

impl fmt::Display for Category {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
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
}
