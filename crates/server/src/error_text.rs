//! Error texts for clients: the problem, and a hint in the front's terms. The server's paths are removed from errors of
//! a store, and appear only in the log.

use std::fmt::Display;

use divvy_limiter::{ErrorClass, LimiterError, Remedy};
use divvy_telemetry::logging::{Escaped, LogThrottle};

/// Replacement for a path.
const PATH: &str = "[path]";

/// The words of a front for remedies.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// Hint on how to take a lease.
    pub take_lease: Option<&'static str>,
    /// Hint on how to list the rules.
    pub list_rules: Option<&'static str>,
}

impl Terms {
    pub const NONE: Self = Self { take_lease: None, list_rules: None };

    fn hint(&self, remedy: Remedy) -> Option<&'static str> {
        match remedy {
            Remedy::LoadRules => Some("start the server with a rules file: divvy serve CONFIG"),
            Remedy::RaiseMaxTtl => Some("--max-reservation-ttl"),
            Remedy::RaiseMaxActorLimits => Some("--max-actor-limits"),
            Remedy::RaiseMaxBlocks => Some("--max-blocks"),
            Remedy::TakeLease => self.take_lease,
            Remedy::ListRules => self.list_rules,
        }
    }
}

/// Describes an error for a client, with a hint in the front's terms. The server's paths are removed from errors of the store.
pub fn describe(error: &impl LimiterError, terms: &Terms) -> String {
    let text = match error.class() {
        ErrorClass::StoreFailure => hide_paths(error),
        // In these errors, any slashes come from the client.
        ErrorClass::RulesMistake
        | ErrorClass::BadRequest
        | ErrorClass::UnsuitableRule
        | ErrorClass::UnnamedLease
        | ErrorClass::Forbidden
        | ErrorClass::NotFound
        | ErrorClass::ReusedName
        | ErrorClass::Full => error.to_string(),
    };
    match error.remedy().and_then(|remedy| terms.hint(remedy)) {
        Some(hint) => format!("{text} ({hint})"),
        None => text,
    }
}

/// Describes an error without paths. If it contains any, logs the full text.
pub fn hide_paths(error: &impl Display) -> String {
    static FAILED: LogThrottle = LogThrottle::new();
    let full = error.to_string();
    let text = replace_paths(&full);
    if text != full {
        FAILED.say(|more| tracing::warn!(error = %Escaped::error(&full), more, "the store failed on a request"));
    }
    text
}

/// Replaces paths. In messages of RocksDB and of the system, a path ends before a colon or with the text, and may contain
/// spaces.
fn replace_paths(text: &str) -> String {
    let words: Vec<_> = text.split(' ').collect();
    let mut replaced: Vec<&str> = Vec::with_capacity(words.len());
    let mut rest = words.as_slice();
    while let Some((word, after)) = rest.split_first() {
        if !is_part_of_path(word) {
            replaced.push(word);
            rest = after;
            continue;
        }
        let to_colon = rest.iter().position(|word| word.ends_with(':'));
        let to_last = || rest.iter().rposition(|word| is_part_of_path(word)).unwrap_or(0);
        let end = to_colon.unwrap_or_else(to_last);
        replaced.push(if to_colon.is_some() { "[path]:" } else { PATH });
        rest = rest.get(end + 1..).unwrap_or_default();
    }
    replaced.join(" ")
}

/// Returns whether a word is part of a path: it contains a slash, and is not a URL.
fn is_part_of_path(word: &str) -> bool {
    word.contains('/') && !word.contains("://")
}

#[cfg(test)]
mod tests {
    use super::*;
    use divvy_limiter::StoreError;

    #[test]
    fn errors_for_clients_contain_no_paths() {
        for (error, text) in [
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
            assert_eq!(describe(&error, &Terms::NONE), text);
        }
    }

    #[test]
    fn text_of_a_client_is_repeated_unchanged() {
        let error = StoreError::InvalidCursor("a/b".to_owned());
        assert_eq!(describe(&error, &Terms::NONE), error.to_string());
    }
}
