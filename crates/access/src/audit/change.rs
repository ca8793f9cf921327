//! The changes that operators make: what they ask for, the state before and after, and the client, file or signal that a
//! change comes from.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value};

use divvy_telemetry::metrics::named_values;

/// Maximum length of a text that a client chose (bytes).
const MAX_TEXT: usize = 256;

/// Maximum number of names in a state.
const MAX_NAMES: usize = 64;

named_values! {
    /// The kind of a change.
    Action {
        /// Sets the limit of an actor.
        LimitSet = "limit.set",
        /// Removes the limit of an actor.
        LimitDelete = "limit.delete",
        /// Blocks an actor.
        BlockSet = "block.set",
        /// Removes the block of an actor.
        BlockDelete = "block.delete",
        /// Sets and removes blocks of many actors.
        BlocksEdit = "blocks.edit",
        /// Allows an actor.
        AllowSet = "allow.set",
        /// Removes the allow of an actor.
        AllowDelete = "allow.delete",
        /// Forgets a page of a rule's counters.
        CountersForget = "counters.forget",
        /// Forgets the counters of an operation.
        CountersReset = "counters.reset",
        /// Backs up the store.
        Backup = "backup",
        /// Asks for a reload of all files, whose own lines follow.
        Reload = "reload",
        /// Puts a new version of the rules file in force.
        RulesReload = "rules.reload",
        /// Puts a new version of the access file in force.
        AccessReload = "access.reload",
        /// Puts a new version of the token key file in force.
        TokensReload = "tokens.reload",
        /// Puts new TLS files in use.
        TlsReload = "tls.reload",
    }
}

/// The fields of a request or a state in the log, in the order in which they were added. Those without a value are left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
struct Fields(Map<String, Value>);

impl Fields {
    fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        let value = value.into();
        if !value.is_null() {
            self.0.insert(name.to_owned(), value);
        }
        self
    }

    /// Adds what applies to an actor.
    fn with_terms(self, credits: Option<u64>, expires_in: Option<u64>, reason: Option<&str>) -> Self {
        self.with("credits", credits).with("expiresIn", expires_in).with("reason", reason.map(truncate))
    }
}

/// A change as it was asked for. Texts are truncated.
#[derive(Debug, Clone, Serialize)]
#[serde(transparent)]
pub struct Change {
    #[serde(skip)]
    action: Action,
    request: Fields,
}

impl Change {
    /// Creates a change of this kind, without details.
    pub fn new(action: Action) -> Self {
        Self { action, request: Fields::default() }
    }

    fn with(self, name: &str, value: impl Into<Value>) -> Self {
        Self { request: self.request.with(name, value), ..self }
    }

    /// Returns the kind.
    pub fn action(&self) -> Action {
        self.action
    }

    /// Adds the name of the rule.
    pub fn with_rule(self, rule: &str) -> Self {
        self.with("rule", truncate(rule))
    }

    /// Adds the pairs of an operation.
    pub fn with_operation<T: AsRef<str>>(self, pairs: impl Iterator<Item = T>) -> Self {
        let mut text = String::new();
        for pair in pairs {
            if !text.is_empty() {
                text.push(' ');
            }
            text.push_str(pair.as_ref());
            if text.len() > MAX_TEXT {
                break;
            }
        }
        self.with("operation", truncate(&text))
    }

    /// Adds the actor.
    pub fn with_actor(self, actor: &str) -> Self {
        self.with("actor", truncate(actor))
    }

    /// Adds what was asked for an actor: credits of its own, the seconds that this lasts, and the reason.
    pub fn with_terms(self, credits: Option<u64>, expires_in: Option<u64>, reason: Option<&str>) -> Self {
        Self { request: self.request.with_terms(credits, expires_in, reason), ..self }
    }

    /// Adds the program for which the change is made.
    pub fn with_owner(self, owner: &str) -> Self {
        self.with("owner", truncate(owner))
    }

    /// Adds the numbers of blocks to set and to remove.
    pub fn with_numbers(self, set: usize, remove: usize) -> Self {
        self.with("set", set).with("remove", remove)
    }

    /// Adds the name of a backup.
    pub fn with_name(self, name: &str) -> Self {
        self.with("name", truncate(name))
    }

    /// Adds the path of a file.
    pub fn with_file(self, path: &Path) -> Self {
        self.with("file", truncate(&path.to_string_lossy()))
    }
}

/// The state before or after a change. An empty state exists, but this server does not know it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct State(Fields);

impl State {
    fn with(self, name: &str, value: impl Into<Value>) -> Self {
        Self(self.0.with(name, value))
    }

    /// Describes what applies to an actor: credits of its own, the seconds until it ends, if it does, and the reason.
    pub fn exception(credits: Option<u64>, expires_in: Option<u64>, reason: Option<&str>) -> Self {
        Self(Fields::default().with_terms(credits, expires_in, reason))
    }

    /// Describes many blocks by the numbers of those that were set and removed.
    pub fn edited(set: u64, removed: u64) -> Self {
        Self::default().with("set", set).with("removed", removed)
    }

    /// Describes counters by their number.
    pub fn counters(count: u64) -> Self {
        Self::default().with("counters", count)
    }

    /// Describes rules by their number and their hash.
    pub fn rules(count: usize, hash: String) -> Self {
        Self::default().with("rules", count).with("hash", hash)
    }

    /// Describes users by their number.
    pub fn users(count: usize) -> Self {
        Self::default().with("users", count)
    }

    /// Describes keys of tokens by their number.
    pub fn keys(count: usize) -> Self {
        Self::default().with("keys", count)
    }

    /// Adds the names of users or keys that are new, gone or different. At most [`MAX_NAMES`] are kept.
    pub fn with_changed<'a>(self, names: impl Iterator<Item = &'a str>) -> Self {
        self.with("changed", names.take(MAX_NAMES).map(truncate).collect::<Vec<_>>())
    }

    /// Describes a backup by its path.
    pub fn path(path: &Path) -> Self {
        Self::default().with("path", path.to_string_lossy().into_owned())
    }
}

/// Returns at most [`MAX_TEXT`] bytes of a text, with a mark if there are more.
fn truncate(text: &str) -> String {
    match text.get(..text.floor_char_boundary(MAX_TEXT)) {
        Some(start) if start.len() < text.len() => format!("{start}..."),
        _ => text.to_owned(),
    }
}

/// Stands for a user or an address that does not exist.
const NONE: &str = "-";

/// The user, the front and the address that a change comes from.
#[derive(Debug, Clone)]
pub struct Caller {
    user: Option<Arc<str>>,
    front: &'static str,
    address: Option<SocketAddr>,
    is_stranger: bool,
}

impl Caller {
    /// Creates the caller of a front. `user` is `None` for a client that has not authenticated.
    pub fn client(front: &'static str, address: Option<SocketAddr>, user: Option<Arc<str>>) -> Self {
        let is_stranger = user.is_none() && address.is_some();
        Self { user, front, address, is_stranger }
    }

    /// Returns the caller of a client who has a name, but is as unknown to the operator as one who has not authenticated.
    pub fn as_stranger(self) -> Self {
        Self { is_stranger: true, ..self }
    }

    /// Creates the caller for a file that has changed.
    pub const fn file() -> Self {
        Self { user: None, front: "file", address: None, is_stranger: false }
    }

    /// Creates the caller for a signal to the process.
    pub const fn signal() -> Self {
        Self { user: None, front: "signal", address: None, is_stranger: false }
    }

    /// Returns whether this is a client that has not authenticated, or a customer with a token.
    pub fn is_stranger(&self) -> bool {
        self.is_stranger
    }

    /// Returns whether this is a client, and not a file or a signal.
    pub fn is_client(&self) -> bool {
        self.address.is_some() || self.user.is_some()
    }

    /// Returns the user's name, or `-`.
    pub fn user(&self) -> &str {
        self.user.as_deref().unwrap_or(NONE)
    }

    /// Returns the front's name.
    pub fn front(&self) -> &'static str {
        self.front
    }

    /// Returns the address as text, or `-`.
    pub fn address(&self) -> String {
        self.address.map_or_else(|| NONE.to_owned(), |address| address.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_truncated_with_a_mark() {
        let change = Change::new(Action::LimitSet).with_rule(&"ü".repeat(200)).with_actor(&"x".repeat(256));
        assert_eq!(change.request.0["rule"], format!("{}...", "ü".repeat(128)));
        assert_eq!(change.request.0["actor"], "x".repeat(256));
        let change = Change::new(Action::CountersReset).with_operation(std::iter::repeat("key=value"));
        assert_eq!(change.request.0["operation"].as_str().unwrap().len(), 256 + 3);
    }
}
