//! The last error reply of each kind on each front: who got it, and why. Operators find out from it who sends what.
//!
//! A sample of them is logged, too: about one a second.

use std::fmt::{self, Display};
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;

use crate::net::front::Protocol;
use divvy_core::clock::{Clock, Timestamp};
use divvy_telemetry::logging::{Escaped, LogThrottle};
use divvy_telemetry::metrics::{ErrorKind, Metrics};

/// Maximum length of a reason that is kept (bytes).
const MAX_REASON: usize = 200;

/// The errors of this process.
static LOG: LazyLock<ErrorLog> = LazyLock::new(ErrorLog::new);

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

struct ErrorLog {
    clock: Clock,
    samples: Vec<Sample>,
}

/// The last error of one kind on one front.
struct Sample {
    front: &'static str,
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
    note(front, kind, client, reason);
}

/// Notes an error as the last one of its kind. Does not count it.
pub fn note(front: Protocol, kind: ErrorKind, client: impl FnOnce() -> ErrorClient, reason: impl Display) {
    LOG.note(front, kind, client, reason);
}

/// Returns the last error of each kind on each front.
pub fn last() -> Vec<LastError> {
    LOG.last()
}

impl ErrorLog {
    fn new() -> Self {
        let sample = |front, kind| Sample { front, kind, throttle: LogThrottle::at_rate(1), last: Mutex::default() };
        let samples = Protocol::ALL
            .map(Protocol::front)
            .into_iter()
            .flat_map(|front| ErrorKind::ALL.map(|kind| sample(front, kind)));
        Self { clock: Clock::system(), samples: samples.collect() }
    }

    fn note(&self, front: Protocol, kind: ErrorKind, client: impl FnOnce() -> ErrorClient, reason: impl Display) {
        let front = front.front();
        let Some(sample) = self.samples.iter().find(|sample| sample.front == front && sample.kind == kind) else {
            return;
        };
        let at = self.clock.now();
        let (mut reason, client) = (reason.to_string(), client());
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

    fn last(&self) -> Vec<LastError> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_error_of_each_kind_and_front_is_kept() {
        let log = ErrorLog::new();
        let client = || ErrorClient { peer: Some(([192, 0, 2, 7], 5).into()), user: Some("ann".into()) };
        log.note(Protocol::Http, ErrorKind::Unknown, client, "first");
        log.note(Protocol::Resp, ErrorKind::Unknown, ErrorClient::default, "x".repeat(1_000));
        log.note(Protocol::Http, ErrorKind::Unauthenticated, client, "no password");
        let last = log.last();
        let shown: Vec<_> =
            last.iter().map(|last| format!("{} {} {}", last.front, last.kind.name(), last.client)).collect();
        assert_eq!(shown, ["resp unknown - -", "http unauthenticated 192.0.2.7:5 ann", "http unknown 192.0.2.7:5 ann"]);
        assert_eq!((last[0].reason.len(), last[2].reason.as_str()), (MAX_REASON, "first"));
    }

    #[test]
    fn last_error_of_a_flood_is_kept() {
        let log = ErrorLog::new();
        for number in 0..10_000 {
            log.note(Protocol::Line, ErrorKind::Unknown, ErrorClient::default, number);
        }
        assert_eq!(log.last()[0].reason, "9999");
    }
}
