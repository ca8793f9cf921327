//! The texts of errors for clients: what is wrong, and a hint in the front's terms. What a store says loses the server's
//! paths; the log has the full text.

use std::fmt::Display;

use crate::limiter::{ErrorClass, LimiterError, Remedy};
use crate::logging::{Escaped, LogThrottle};

/// What stands for a path.
const PATH: &str = "[path]";

/// A front's words for what its clients can do.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// How to take a lease.
    pub take_lease: Option<&'static str>,
    /// How to list the rules.
    pub list_rules: Option<&'static str>,
}

impl Terms {
    pub const NONE: Self = Self { take_lease: None, list_rules: None };

    fn hint(&self, remedy: Remedy) -> Option<&'static str> {
        match remedy {
            Remedy::LoadRules => Some("start the server with a rules file: divvy serve CONFIG"),
            Remedy::RaiseMaxTtl => Some("--max-reservation-ttl"),
            Remedy::RaiseMaxActorLimits => Some("--max-actor-limits"),
            Remedy::TakeLease => self.take_lease,
            Remedy::ListRules => self.list_rules,
        }
    }
}

/// The text of an error for a client, with a hint in the front's terms.
pub fn text(error: &impl LimiterError, terms: &Terms) -> String {
    let text = match error.class() {
        ErrorClass::StoreFailure => without_paths(error),
        // It repeats what the client sent.
        ErrorClass::RulesMistake
        | ErrorClass::BadRequest
        | ErrorClass::UnsuitableRule
        | ErrorClass::UnnamedLease
        | ErrorClass::NotFound
        | ErrorClass::ReusedName
        | ErrorClass::Full => error.to_string(),
    };
    match error.remedy().and_then(|remedy| terms.hint(remedy)) {
        Some(hint) => format!("{text} ({hint})"),
        None => text,
    }
}

/// The error without paths; when it has some, the log gets all of it.
pub fn without_paths(error: &impl Display) -> String {
    static FAILED: LogThrottle = LogThrottle::new();
    let full = error.to_string();
    let told = replace_paths(&full);
    if told != full {
        FAILED.say(|more| tracing::warn!(error = %Escaped::error(&full), more, "the store failed on a request"));
    }
    told
}

/// As RocksDB and the system write them, a path ends before a colon or with the text; it may have spaces in it.
fn replace_paths(text: &str) -> String {
    let words: Vec<_> = text.split(' ').collect();
    let mut told: Vec<&str> = Vec::with_capacity(words.len());
    let mut rest = words.as_slice();
    while let Some((word, after)) = rest.split_first() {
        if !is_of_path(word) {
            told.push(word);
            rest = after;
            continue;
        }
        let to_colon = rest.iter().position(|word| word.ends_with(':'));
        let to_last = || rest.iter().rposition(|word| is_of_path(word)).unwrap_or(0);
        let end = to_colon.unwrap_or_else(to_last);
        told.push(if to_colon.is_some() { "[path]:" } else { PATH });
        rest = rest.get(end + 1..).unwrap_or_default();
    }
    told.join(" ")
}

/// A slash makes a word one of a path's, unless it is an address.
fn is_of_path(word: &str) -> bool {
    word.contains('/') && !word.contains("://")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::StoreError;

    #[test]
    fn clients_are_told_no_paths() {
        for (error, told) in [
            (
                "cannot read: IO error: No such file or directory: While open a file for random read: \
                 /var/lib/my own divvy/000012.sst: No such file or directory",
                "cannot read: IO error: No such file or directory: While open a file for random read: [path]: No such \
                 file or directory",
            ),
            (
                "Corruption: block checksum mismatch in data/000012.sst offset 5",
                "Corruption: block checksum mismatch in [path] offset 5",
            ),
            (
                "IO error: No space left on device: While appending to file: /d/1.log: No space left on device",
                "IO error: No space left on device: While appending to file: [path]: No space left on device",
            ),
            ("Redis at redis://127.0.0.1:6379 does not answer", "Redis at redis://127.0.0.1:6379 does not answer"),
            ("the store is full: no new counters are created", "the store is full: no new counters are created"),
        ] {
            let error = StoreError::new(error);
            assert_eq!(text(&error, &Terms::NONE), told);
        }
    }

    #[test]
    fn what_a_client_sent_is_repeated_as_it_is() {
        let error = StoreError::InvalidCursor("a/b".to_owned());
        assert_eq!(text(&error, &Terms::NONE), error.to_string());
    }
}
