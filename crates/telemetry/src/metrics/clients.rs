//! The work of clients: their requests by front and kind, and the batches of these, their connections, and all that is refused: error
//! replies, bounds that were exceeded, failed logins, the files of TLS and of users, and the audit log.
//!
//! The name of the metric of errors and all codes but one are the original Divvy's. If a flag sets a bound, both have the
//! same name.

use std::sync::{Arc, OnceLock};

use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec};

use super::registry::{Counts, Histogram, Registry, handles, named_values};
use divvy_core::clock::NANOS_PER_SECOND;

named_values! {
    /// The kind of a request, the same for all fronts. The set is closed, so nothing that a client sends becomes a label.
    RequestKind {
        /// Takes credits.
        Hit = "hit",
        /// Asks for the state without taking anything.
        Peek = "peek",
        /// Counts credits that were used already.
        Charge = "charge",
        /// Gives credits back.
        Refund = "refund",
        /// Sets credits aside.
        Reserve = "reserve",
        /// Counts the used credits of a reservation.
        Commit = "commit",
        /// Ends a reservation.
        Release = "release",
        /// Extends a reservation.
        Renew = "renew",
        /// Takes a share of a counter.
        Share = "share",
        /// Gives back unused credits of a share.
        Return = "return",
        /// Forgets counters of an operation.
        Reset = "reset",
        /// Asks which rules an operation matches.
        Explain = "explain",
        /// Lists the rules in force.
        Rules = "rules",
        /// Lists counters, or forgets listed ones.
        Counters = "counters",
        /// Ranks the actors of a rule.
        Top = "top",
        /// Shows the counters of one actor.
        Status = "status",
        /// Reads or changes limits of single actors.
        Limits = "limits",
        /// Reads or changes blocks and allows of single actors.
        Blocks = "blocks",
        /// A command with its own limit: `RL.*`, `CL.THROTTLE`, `INCREX`.
        Bucket = "bucket",
        /// A command about the connection: `PING`, `HELLO`, …
        Connection = "connection",
        /// A request about the server: `INFO`, `/healthz`, `/metrics`, …
        Server = "server",
        /// An unknown or malformed request.
        Invalid = "invalid",
    }
}

const KINDS: usize = RequestKind::ALL.len();

handles! {
    /// The requests of all fronts.
    Requests(registry) {
        by_front: IntCounterVec =
            registry.counters("divvy_requests_total", "Requests, by front and kind.", &["front", "command"]),
    }
}

/// The requests of one front. Clones count the same.
#[derive(Clone)]
pub struct FrontRequests {
    front: &'static str,
    by_front: IntCounterVec,
    /// Created at the first request of each kind, because no front has all kinds.
    by_kind: Arc<[OnceLock<IntCounter>; KINDS]>,
}

/// Requests that a session has not yet added to the metrics. These are plain numbers, so a request touches nothing shared.
#[derive(Debug, Default)]
pub struct RequestTally {
    by_kind: [u64; KINDS],
    /// A bit for each kind whose number is not 0.
    seen: u32,
}

impl Requests {
    /// Returns the handles of a front, whose name must be a constant of this crate. Call it once per front.
    pub fn front(&self, front: &'static str) -> FrontRequests {
        FrontRequests { front, by_front: self.by_front.clone(), by_kind: Arc::default() }
    }
}

impl FrontRequests {
    /// Counts one request.
    pub fn count(&self, kind: RequestKind) {
        self.add(kind, 1);
    }

    /// Adds a session's tally, and resets it.
    #[expect(clippy::indexing_slicing, reason = "there is a place for every kind")]
    pub fn take(&self, tally: &mut RequestTally) {
        while let Some(kind) = RequestKind::ALL.get(tally.seen.trailing_zeros() as usize) {
            self.add(*kind, std::mem::take(&mut tally.by_kind[*kind as usize]));
            tally.seen &= tally.seen - 1;
        }
    }

    /// Returns the number of this front's requests.
    pub fn total(&self) -> u64 {
        self.by_kind.iter().filter_map(OnceLock::get).map(IntCounter::get).sum()
    }

    #[expect(clippy::indexing_slicing, reason = "there is a place for every kind")]
    fn add(&self, kind: RequestKind, requests: u64) {
        let make = || self.by_front.with_label_values(&[self.front, kind.name()]);
        self.by_kind[kind as usize].get_or_init(make).inc_by(requests);
    }
}

impl RequestTally {
    /// Adds one request. It appears in the metrics after [`FrontRequests::take`].
    #[expect(clippy::indexing_slicing, reason = "there is a place for every kind")]
    pub fn count(&mut self, kind: RequestKind) {
        self.by_kind[kind as usize] += 1;
        self.seen |= 1 << kind as u32;
    }
}

/// Upper bounds. A front puts at most 512 requests into a batch, but a transaction may be larger.
const SIZES: [u64; 11] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];

/// Upper bounds in microseconds, for a hot table, a disk, a network and a timeout.
const DURATIONS: [u64; 12] = [5, 10, 25, 50, 100, 250, 500, 1_000, 5_000, 25_000, 100_000, 500_000];

handles! {
    /// Sizes of batches, and the store's part in their time.
    Batches(registry) {
        /// Requests in a batch.
        pub requests: Histogram =
            registry.histogram("divvy_batch_requests", "Requests answered together in one batch.", 1, &SIZES),
        /// The store's time for a batch.
        pub store_duration: Histogram = registry.histogram(
            "divvy_store_duration_seconds",
            "Time the store took to apply a batch.",
            NANOS_PER_SECOND,
            &DURATIONS.map(|micros| 1_000 * micros),
        ),
        /// Actions that the store answered with an error.
        pub store_errors: IntCounter =
            registry.counter("divvy_store_errors_total", "Actions on counters that were answered with the store's error."),
    }
}

named_values! {
    /// The kind of an error reply.
    ErrorKind {
        /// The command does not exist, in any protocol that has commands.
        UnknownCommand = "unknown-command",
        /// The password is missing or wrong. Counted on the line protocol, HTTP and gRPC. The original has no passwords.
        Unauthenticated = "unauthenticated",
        /// Everything else.
        Unknown = "unknown",
    }
}

handles! {
    /// How often each limit was exceeded, and the use of the buffer memory that all connections share.
    Bounds(registry) {
        /// How often each bound was exceeded, by a connection or a request.
        pub reached: Counts<Bound> = registry.counts(
            "divvy_limits_reached_total",
            "Connections and requests that reached a limit, by its name.",
            "limit",
            Bound::ALL,
        ),
        /// Buffer memory in use, at most `--max-buffer-memory` (bytes).
        pub buffer_memory: IntGauge =
            registry.gauge("divvy_buffer_memory_bytes", "Bytes of --max-buffer-memory in use."),
    }
}

named_values! {
    /// A bound on what clients may do.
    Bound {
        /// `--max-connections`
        Connections = "max-connections",
        /// `--max-connections-per-address`
        ConnectionsPerAddress = "max-connections-per-address",
        /// `--idle-timeout`
        IdleTimeout = "idle-timeout",
        /// The time to log in.
        AuthTimeout = "auth-timeout",
        /// The time for a TLS handshake.
        HandshakeTimeout = "tls-handshake-timeout",
        /// `--request-timeout`
        RequestTimeout = "request-timeout",
        /// `--write-timeout`
        WriteTimeout = "write-timeout",
        /// `--max-buffer-memory`
        BufferMemory = "max-buffer-memory",
        /// The length of a line.
        Line = "max-line",
        /// The pairs of an operation.
        Pairs = "max-pairs",
        /// The arguments of a RESP request.
        Arguments = "max-arguments",
        /// The length of an argument.
        Argument = "max-argument",
        /// The length of a RESP request.
        Request = "max-request",
        /// `--max-body`
        Body = "max-body",
        /// The hits in a request to `/v1/hits`.
        Hits = "max-hits",
    }
}

handles! {
    /// The connections of all fronts.
    Connections(registry) {
        /// The gauge keeps the name that Button's Divvy gave it.
        open: IntGauge = registry.gauge("divvy_tcp_connections_total", "Open TCP connections of all fronts."),
        open_by_front: IntGaugeVec = registry.gauges("divvy_connections", "Open connections.", &["front"]),
        accepted: IntCounterVec =
            registry.counters("divvy_connections_accepted_total", "Connections accepted.", &["front"]),
        refused: IntCounterVec = registry.counters(
            "divvy_connections_refused_total",
            "Connections refused because there were too many, in total or from one address.",
            &["front"],
        ),
    }
}

/// The connections of one front.
#[derive(Clone)]
pub struct FrontConnections {
    open: IntGauge,
    open_here: IntGauge,
    accepted: IntCounter,
    /// Connections beyond the maximum, in total or from one address.
    pub refused: IntCounter,
}

/// An open connection in the counts, until it is dropped.
pub struct OpenConnection(FrontConnections);

impl Connections {
    /// Returns the number of open connections of all fronts.
    pub fn open(&self) -> u64 {
        u64::try_from(self.open.get()).unwrap_or_default()
    }

    /// Returns the handles of a front, whose name must be a constant of this crate.
    pub fn front(&self, front: &'static str) -> FrontConnections {
        FrontConnections {
            open: self.open.clone(),
            open_here: self.open_by_front.with_label_values(&[front]),
            accepted: self.accepted.with_label_values(&[front]),
            refused: self.refused.with_label_values(&[front]),
        }
    }
}

impl FrontConnections {
    /// Counts an accepted connection, which is open until the return value is dropped.
    pub fn opened(&self) -> OpenConnection {
        self.accepted.inc();
        self.open.inc();
        self.open_here.inc();
        OpenConnection(self.clone())
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.open.dec();
        self.0.open_here.dec();
    }
}

handles! {
    /// Wrong passwords, invalid tokens, forbidden requests, and the files of TLS and of users.
    Access(registry) {
        /// In the order of the fields of [`FrontAccess`].
        by_front: [IntCounterVec; 4] = [
            ("divvy_wrong_passwords_total", "Wrong passwords."),
            ("divvy_logins_refused_total", "Logins that were not verified, because too many others waited for this."),
            (
                "divvy_invalid_tokens_total",
                "Tokens for one actor that were altered, expired, or made with an unknown key.",
            ),
            ("divvy_forbidden_requests_total", "Requests refused because the user lacks their category."),
        ]
        .map(|(name, help)| registry.counters(name, help, &["front"])),
        /// Number of argon2id hashes that were computed for logins.
        pub password_hashes: IntCounter = registry.counter(
            "divvy_password_hashes_total",
            "argon2id hashes computed for logins. Each takes milliseconds of a processor.",
        ),
        /// Number of failed reloads of the access file and of the token key file.
        pub access_reloads_failed: IntCounter = registry.counter(
            "divvy_access_reloads_failed_total",
            "Reloads of the access file or the token key file that failed; the previous users or keys stayed in force.",
        ),
        /// Number of failed handshakes, on all fronts.
        pub tls_handshakes_failed: IntCounter =
            registry.counter("divvy_tls_handshakes_failed_total", "TLS handshakes that failed."),
        /// Number of failed reloads of the TLS files.
        pub tls_reloads_failed: IntCounter = registry.counter(
            "divvy_tls_reloads_failed_total",
            "Reloads of the TLS files that failed; the old files stayed in use.",
        ),
    }
}

/// The clients that one front refused.
#[derive(Debug)]
pub struct FrontAccess {
    /// Wrong passwords.
    pub wrong_passwords: IntCounter,
    /// Logins that were not verified.
    pub logins_refused: IntCounter,
    /// Invalid tokens.
    pub invalid_tokens: IntCounter,
    /// Requests of users who lack the category.
    pub forbidden: IntCounter,
}

impl Access {
    /// Returns the counters of a front, whose name must be a constant of this crate.
    pub fn front(&self, front: &'static str) -> FrontAccess {
        let [wrong_passwords, logins_refused, invalid_tokens, forbidden] =
            self.by_front.each_ref().map(|counters| counters.with_label_values(&[front]));
        FrontAccess { wrong_passwords, logins_refused, invalid_tokens, forbidden }
    }
}

handles! {
    /// Lines that could not be written, and whether that is so now.
    Audit(registry) {
        /// Number of lines that are not in the file.
        pub lines_lost: IntCounter =
            registry.counter("divvy_audit_lines_lost_total", "Lines that could not be written to the audit log."),
        /// 1 if the log could not be written the last time.
        pub failing: IntGauge =
            registry.gauge("divvy_audit_log_failing", "1 if the audit log could not be written the last time."),
    }
}
