//! The changes that operators make, what they ask for, and the state before and after.

use std::path::Path;

use serde::Serialize;

/// Maximum length of a text that a client chose (bytes).
const MAX_TEXT: usize = 256;

/// Maximum number of names in a state.
const MAX_NAMES: usize = 64;

/// The kind of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Sets the limit of an actor.
    LimitSet,
    /// Removes the limit of an actor.
    LimitDelete,
    /// Blocks an actor.
    BlockSet,
    /// Removes the block of an actor.
    BlockDelete,
    /// Allows an actor.
    AllowSet,
    /// Removes the allow of an actor.
    AllowDelete,
    /// Forgets a page of a rule's counters.
    CountersForget,
    /// Forgets the counters of an operation.
    CountersReset,
    /// Backs up the store.
    Backup,
    /// Puts a new version of the rules file in force.
    RulesReload,
    /// Puts a new version of the access file in force.
    AccessReload,
    /// Puts a new version of the token key file in force.
    TokensReload,
    /// Puts new TLS files in use.
    TlsReload,
}

impl Action {
    /// Returns the word for it in the log.
    pub fn name(self) -> &'static str {
        match self {
            Self::LimitSet => "limit.set",
            Self::LimitDelete => "limit.delete",
            Self::BlockSet => "block.set",
            Self::BlockDelete => "block.delete",
            Self::AllowSet => "allow.set",
            Self::AllowDelete => "allow.delete",
            Self::CountersForget => "counters.forget",
            Self::CountersReset => "counters.reset",
            Self::Backup => "backup",
            Self::RulesReload => "rules.reload",
            Self::AccessReload => "access.reload",
            Self::TokensReload => "tokens.reload",
            Self::TlsReload => "tls.reload",
        }
    }
}

/// A change as it was asked for. Texts are truncated.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    #[serde(skip)]
    action: Action,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    operation: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    actor: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    credits: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_in: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
}

impl Change {
    /// Creates a change of this kind, without details.
    pub fn new(action: Action) -> Self {
        let (rule, operation, actor, reason, name, file) = (None, None, None, None, None, None);
        Self { action, rule, operation, actor, credits: None, expires_in: None, reason, name, file }
    }

    /// Returns the kind.
    pub fn action(&self) -> Action {
        self.action
    }

    /// Adds the name of the rule.
    pub fn with_rule(self, rule: &str) -> Self {
        Self { rule: Some(truncate(rule)), ..self }
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
        Self { operation: Some(truncate(&text)), ..self }
    }

    /// Adds the actor.
    pub fn with_actor(self, actor: &str) -> Self {
        Self { actor: Some(truncate(actor)), ..self }
    }

    /// Adds what was asked for an actor: credits of its own, the seconds that this lasts, and the reason.
    pub fn with_terms(self, credits: Option<u64>, expires_in: Option<u64>, reason: Option<&str>) -> Self {
        Self { credits, expires_in, reason: reason.map(truncate), ..self }
    }

    /// Adds the name of a backup.
    pub fn with_name(self, name: &str) -> Self {
        Self { name: Some(truncate(name)), ..self }
    }

    /// Adds the path of a file.
    pub fn with_file(self, path: &Path) -> Self {
        Self { file: Some(truncate(&path.to_string_lossy())), ..self }
    }
}

/// The state before or after a change. An empty state exists, but this server does not know it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    #[serde(skip_serializing_if = "Option::is_none")]
    credits: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_in: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    counters: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rules: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    users: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    keys: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    changed: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hash: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
}

impl State {
    /// Describes what applies to an actor: credits of its own, the seconds until it ends, if it does, and the reason.
    pub fn exception(credits: Option<u64>, expires_in: Option<u64>, reason: Option<&str>) -> Self {
        Self { credits, expires_in, reason: reason.map(truncate), ..Self::default() }
    }

    /// Describes counters by their number.
    pub fn counters(count: u64) -> Self {
        Self { counters: Some(count), ..Self::default() }
    }

    /// Describes rules by their number and their hash.
    pub fn rules(count: usize, hash: String) -> Self {
        Self { rules: Some(count), hash: Some(hash), ..Self::default() }
    }

    /// Describes users by their number.
    pub fn users(count: usize) -> Self {
        Self { users: Some(count), ..Self::default() }
    }

    /// Describes keys of tokens by their number.
    pub fn keys(count: usize) -> Self {
        Self { keys: Some(count), ..Self::default() }
    }

    /// Adds the names of users or keys that are new, gone or different. At most [`MAX_NAMES`] are kept.
    pub fn with_changed<'a>(self, names: impl Iterator<Item = &'a str>) -> Self {
        Self { changed: Some(names.take(MAX_NAMES).map(truncate).collect()), ..self }
    }

    /// Describes a backup by its path.
    pub fn path(path: &Path) -> Self {
        Self { path: Some(path.to_string_lossy().into_owned()), ..Self::default() }
    }
}

/// Returns at most [`MAX_TEXT`] bytes of a text, with a mark if there are more.
fn truncate(text: &str) -> String {
    match text.get(..text.floor_char_boundary(MAX_TEXT)) {
        Some(start) if start.len() < text.len() => format!("{start}..."),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_truncated_with_a_mark() {
        let change = Change::new(Action::LimitSet).with_rule(&"ü".repeat(200)).with_actor(&"x".repeat(256));
        assert_eq!(change.rule.unwrap(), format!("{}...", "ü".repeat(128)));
        assert_eq!(change.actor.unwrap(), "x".repeat(256));
        let change = Change::new(Action::CountersReset).with_operation(std::iter::repeat("key=value"));
        assert_eq!(change.operation.unwrap().len(), 256 + 3);
    }
}
