//! Errors that clients get. Their texts have the problem and a hint in the front's terms. The server's paths are removed from errors of
//! a store, and appear only in the log.
//!
//! The last error reply of each kind on each front is kept: who got it, and why. Operators find out from it who sends what. A sample
//! of them is logged, too: about one a second.

use std::fmt::{self, Display};
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;

use crate::net::protocol::Protocol;
use divvy_core::clock::{Clock, Timestamp};
use divvy_limiter::{ErrorClass, LimiterError, Remedy};
use divvy_telemetry::logging::{Escaped, LogThrottle};
use divvy_telemetry::metrics::{ErrorKind, Metrics};

/// Maximum length of a reason that is kept (bytes).
const MAX_REASON: usize = 200;

/// The errors of this process.
pub static ERROR_LOG: LazyLock<ErrorLog> = LazyLock::new(ErrorLog::new);

/// The client that got an error.
#[derive(Debug, Clone, Default)]
pub struct ErrorClient {
    /// Its address.
    pub peer: Option<SocketAddr>,
    /// Its user.
    pub user: Option<Arc<str>>,
}

/// An error that a client got.
#[derive(Debug, Clone)]
pub struct LastError {
    /// The front.
    pub front: &'static str,
    /// The kind.
    pub kind: ErrorKind,
    /// Time of the reply.
    pub at: Timestamp,
    /// The client.
    pub client: ErrorClient,
    /// The reason, perhaps truncated.
    pub reason: String,
}

/// The last error of each kind on each front.
pub struct ErrorLog {
    clock: Clock,
    samples: Vec<Sample>,
}

/// The last error of one kind on one front.
struct Sample {
    front: Protocol,
    kind: ErrorKind,
    throttle: LogThrottle,
    last: Mutex<Option<LastError>>,
}

/// Counts an error, and notes it as the last one of its kind.
pub fn count(
    metrics: &Metrics,
    front: Protocol,
    kind: ErrorKind,
    client: impl FnOnce() -> ErrorClient,
    reason: impl Display,
) {
    metrics.errors.count(kind);
    ERROR_LOG.note(front, kind, client, reason);
}

impl ErrorLog {
    fn new() -> Self {
        let sample = |front, kind| Sample { front, kind, throttle: LogThrottle::at_rate(1), last: Mutex::default() };
        let samples = Protocol::ALL.into_iter().flat_map(|front| ErrorKind::ALL.map(|kind| sample(front, kind)));
        Self { clock: Clock::system(), samples: samples.collect() }
    }

    /// Notes an error as the last one of its kind. Does not count it.
    pub fn note(&self, front: Protocol, kind: ErrorKind, client: impl FnOnce() -> ErrorClient, reason: impl Display) {
        let is_of = |sample: &&Sample| (sample.front, sample.kind) == (front, kind);
        let Some(sample) = self.samples.iter().find(is_of) else { return };
        let (at, front, client) = (self.clock.now(), front.name(), client());
        let mut reason = reason.to_string();
        reason.truncate(reason.floor_char_boundary(MAX_REASON));
        sample.throttle.say_at(at, |more| {
            let (peer, user) = (client.peer.map(tracing::field::display), client.user.as_deref());
            let (code, shown) = (kind.name(), Escaped::error(&reason));
            tracing::info!(front, peer, user, code, reason = %shown, more, "a request got an error");
        });
        // If the lock is taken, another thread notes an error of the same moment.
        if let Some(mut last) = sample.last.try_lock() {
            *last = Some(LastError { front, kind, at, client, reason });
        }
    }

    /// Returns the last error of each kind on each front.
    pub fn last(&self) -> Vec<LastError> {
        self.samples.iter().filter_map(|sample| sample.last.lock().clone()).collect()
    }
}

impl Display for ErrorClient {
    /// Writes the address and the user, `-` for what is not known.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.peer {
            Some(peer) => write!(f, "{peer}")?,
            None => f.write_str("-")?,
        }
        write!(f, " {}", Escaped::new(self.user.as_deref().unwrap_or("-").as_bytes()))
    }
}

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
    // In other errors, any slashes come from the client.
    let is_of_store = error.class() == ErrorClass::StoreFailure;
    let text = if is_of_store { hide_paths(error) } else { error.to_string() };
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
    fn last_error_of_each_kind_and_front_is_kept() {
        let log = ErrorLog::new();
        let client = || ErrorClient { peer: Some(([192, 0, 2, 7], 5).into()), user: Some("ann".into()) };
        // The log leaves most of them out.
        (0..10_000).for_each(|number| log.note(Protocol::Http, ErrorKind::Unknown, client, number));
        log.note(Protocol::Resp, ErrorKind::Unknown, ErrorClient::default, "x".repeat(1_000));
        log.note(Protocol::Http, ErrorKind::Unauthenticated, client, "no password");
        let last = log.last();
        let shown: Vec<_> =
            last.iter().map(|last| format!("{} {} {}", last.front, last.kind.name(), last.client)).collect();
        assert_eq!(shown, ["resp unknown - -", "http unauthenticated 192.0.2.7:5 ann", "http unknown 192.0.2.7:5 ann"]);
        assert_eq!((last[0].reason.len(), last[2].reason.as_str()), (MAX_REASON, "9999"));
    }

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
