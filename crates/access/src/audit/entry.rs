//! The changes that operators make, and their lines in the audit log: what they ask for, the state before and after, and the
//! client, file or signal that a change comes from. A line is ASCII only: text from clients cannot control a terminal that
//! shows the file.

use std::net::SocketAddr;
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value, json};

use divvy_core::clock::Timestamp;
use divvy_core::named_values;

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

/// A change as it was asked for.
#[derive(Debug, Clone)]
pub struct Change {
    action: Action,
    /// The fields of the request, in the order of their additions.
    request: State,
}

impl Change {
    /// Creates a change of this kind, without details.
    pub fn new(action: Action) -> Self {
        Self { action, request: State::default() }
    }

    /// Adds a field of the request, unless it has no value. A long text is truncated.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        let value = match value.into() {
            Value::String(text) => truncate(&text).into(),
            value => value,
        };
        self.request = self.request.with(name, value);
        self
    }

    /// Adds the pairs of an operation.
    #[must_use]
    pub fn with_operation<T: AsRef<str>>(self, pairs: impl Iterator<Item = T>) -> Self {
        let pairs: Vec<_> = pairs.take(MAX_NAMES).map(|pair| truncate(pair.as_ref())).collect();
        self.with("operation", pairs.join(" "))
    }
}

/// The state before or after a change. An empty state exists, but this server does not know it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct State(Map<String, Value>);

impl State {
    /// Creates a state with one field.
    pub fn of(name: &str, value: impl Into<Value>) -> Self {
        Self::default().with(name, value)
    }

    /// Adds a field, unless it has no value.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        let value = value.into();
        if !value.is_null() {
            self.0.insert(name.to_owned(), value);
        }
        self
    }

    /// Describes what applies to an actor: credits of its own, the seconds until it ends, if it does, the reason, and the program
    /// that owns it.
    pub fn exception(credits: Option<u64>, expires_in: Option<u64>, reason: Option<&str>, owner: Option<&str>) -> Self {
        let terms = Self::of("credits", credits).with("expiresIn", expires_in);
        terms.with("reason", reason.map(truncate)).with("owner", owner)
    }

    /// Adds the names of users or keys that are new, gone or different. At most [`MAX_NAMES`] are kept.
    #[must_use]
    pub fn with_changed<'a>(self, names: impl Iterator<Item = &'a str>) -> Self {
        self.with("changed", names.take(MAX_NAMES).map(truncate).collect::<Vec<_>>())
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
    /// Whether this is a client that has not authenticated, or a customer with a token.
    pub(super) is_stranger: bool,
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

    /// Creates the caller for a cause of changes that is no front: `file` for a file that has changed, `signal` for a signal
    /// to the process, or `xds` for a management server.
    pub const fn other(cause: &'static str) -> Self {
        Self { user: None, front: cause, address: None, is_stranger: false }
    }

    /// Returns whether this is a client, and not a file or a signal.
    pub(super) fn is_client(&self) -> bool {
        self.address.is_some() || self.user.is_some()
    }

    /// Returns the user's name, or `-`.
    pub(super) fn user(&self) -> &str {
        self.user.as_deref().unwrap_or(NONE)
    }
}

/// Maximum length of an error's text (bytes).
const MAX_ERROR: usize = 512;

named_values! {
    /// How far a change has come.
    Status {
        /// The change is about to be made.
        Attempted = "attempted",
        /// The change was made.
        Done = "done",
        /// Nothing was changed.
        Refused = "refused",
        /// The change failed, and parts of it may have been made.
        Failed = "failed",
    }
}

/// A change, and how far it has come.
#[derive(Debug)]
pub struct Entry<'a> {
    /// Number of the change since the start of the server. The attempt and the outcome of a change share it.
    pub number: u64,
    pub status: Status,
    pub caller: &'a Caller,
    pub change: &'a Change,
    /// State before the change, if there was one.
    pub before: Option<State>,
    /// State after the change, if there is one.
    pub after: Option<State>,
    /// Why the change was refused or failed.
    pub error: Option<&'a str>,
    /// Number of entries like this that were left out before it.
    pub omitted: Option<u64>,
}

impl Entry<'_> {
    /// Returns the entry as a JSON object.
    pub fn line(&self, now: Timestamp) -> String {
        let mut line = json!({
            "time": format_time(now),
            "change": self.number,
            "status": self.status.name(),
            "user": self.caller.user(),
            "front": self.caller.front,
            "address": self.caller.address.map_or_else(|| NONE.to_owned(), |address| address.to_string()),
            "what": self.change.action.name(),
            "request": self.change.request,
            "before": self.before,
            "after": self.after,
        });
        if let Some(line) = line.as_object_mut() {
            let error = self.error.map(|error| ("error".to_owned(), truncate_error(error).into()));
            let omitted = self.omitted.map(|omitted| ("omitted".to_owned(), omitted.into()));
            line.extend(error.into_iter().chain(omitted));
        }
        to_ascii(&line)
    }
}

/// Returns as much of an error as a line has.
pub fn truncate_error(error: &str) -> &str {
    error.get(..error.floor_char_boundary(MAX_ERROR)).unwrap_or_default()
}

/// Returns the time in UTC, as in RFC 3339, with milliseconds.
fn format_time(time: Timestamp) -> String {
    let nanos = i128::from(time.as_nanos());
    // Every timestamp is before the year 2555, which the library knows.
    jiff::Timestamp::from_nanosecond(nanos).map(|time| format!("{time:.3}")).unwrap_or_default()
}

/// Returns a value as JSON in one line of printable ASCII. All values in an entry can be written as such.
fn to_ascii(value: &impl Serialize) -> String {
    let json = serde_json::to_string(value).unwrap_or_default();
    let mut ascii = String::with_capacity(json.len());
    for character in json.chars() {
        if matches!(character, ' '..='~') {
            ascii.push(character);
        } else {
            // It is within a string.
            character.encode_utf16(&mut [0; 2]).iter().for_each(|unit| ascii.push_str(&format!("\\u{unit:04x}")));
        }
    }
    ascii
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn long_texts_are_truncated_with_a_mark() {
        let change = Change::new(Action::LimitSet).with("rule", "ü".repeat(200)).with("actor", "x".repeat(256));
        assert_eq!(change.request.0["rule"], format!("{}...", "ü".repeat(128)));
        assert_eq!(change.request.0["actor"], "x".repeat(256));
        let change = Change::new(Action::CountersReset).with_operation(std::iter::repeat("key=value"));
        assert_eq!(change.request.0["operation"].as_str().unwrap().len(), 256 + 3);
    }

    #[test]
    fn line_has_every_field_in_one_line() {
        let caller = Caller::client("resp", Some(([127, 0, 0, 1], 5).into()), Some("ann\n".into()));
        let change = Change::new(Action::LimitSet).with("rule", "by-user").with("actor", "a\"");
        let change = change.with("credits", 9).with("expiresIn", 60).with("reason", None::<&str>);
        let mut entry = Entry {
            number: 7,
            status: Status::Done,
            caller: &caller,
            change: &change,
            before: None,
            after: Some(State::exception(Some(9), Some(60), None, None)),
            error: None,
            omitted: None,
        };
        let line = |entry: &Entry<'_>| entry.line(Timestamp::from_nanos(1_500_000_000));
        assert_eq!(
            line(&entry),
            concat!(
                r#"{"time":"1970-01-01T00:00:01.500Z","change":7,"status":"done","user":"ann\n","front":"resp","#,
                r#""address":"127.0.0.1:5","what":"limit.set","request":{"rule":"by-user","actor":"a\"","credits":9,"#,
                r#""expiresIn":60},"before":null,"after":{"credits":9,"expiresIn":60}}"#
            )
        );
        let error = "x".repeat(MAX_ERROR + 1);
        entry.error = Some(&error);
        entry.omitted = Some(3);
        let end = format!(r#","error":"{}","omitted":3}}"#, "x".repeat(MAX_ERROR));
        assert!(line(&entry).ends_with(&end), "{}", line(&entry));
    }

    #[test]
    fn control_sequences_and_other_scripts_are_escaped() {
        let hostile = "a\"\\\n\u{1b}[2J\u{7f}\u{9b}\u{202e}ü🍪";
        assert_eq!(to_ascii(&hostile), r#""a\"\\\n\u001b[2J\u007f\u009b\u202e\u00fc\ud83c\udf6a""#);
    }

    proptest! {
        #[test]
        fn any_text_becomes_ascii_that_reads_as_the_same_text(text in any::<String>()) {
            let written = to_ascii(&text);
            prop_assert!(written.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{}", written);
            prop_assert_eq!(serde_json::from_str::<String>(&written).unwrap(), text);
        }
    }
}
