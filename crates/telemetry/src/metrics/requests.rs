//! Requests by front and kind.

use std::sync::{Arc, OnceLock};

use prometheus::{IntCounter, IntCounterVec};

use super::registry::Registry;

/// The kind of a request, the same for all fronts. The set is closed, so nothing that a client sends becomes a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestKind {
    /// Takes credits.
    Hit,
    /// Asks for the state without taking anything.
    Peek,
    /// Counts credits that were used already.
    Charge,
    /// Gives credits back.
    Refund,
    /// Sets credits aside.
    Reserve,
    /// Counts the used credits of a reservation.
    Commit,
    /// Ends a reservation.
    Release,
    /// Extends a reservation.
    Renew,
    /// Forgets counters of an operation.
    Reset,
    /// Asks which rules an operation matches.
    Explain,
    /// Lists the rules in force.
    Rules,
    /// Lists counters, or forgets listed ones.
    Counters,
    /// Ranks the actors of a rule.
    Top,
    /// Shows the counters of one actor.
    Status,
    /// Reads or changes limits of single actors.
    Limits,
    /// Reads or changes blocks and allows of single actors.
    Blocks,
    /// A request of a CrowdSec bouncer.
    Bouncer,
    /// A command with its own limit: `RL.*`, `CL.THROTTLE`.
    Bucket,
    /// A command about the connection: `PING`, `HELLO`, …
    Connection,
    /// A request about the server: `INFO`, `/healthz`, `/metrics`, …
    Server,
    /// An unknown or malformed request.
    Invalid,
}

impl RequestKind {
    /// All kinds. Counters are looked up by position, so the order is the order of declaration.
    pub const ALL: [Self; 21] = [
        Self::Hit,
        Self::Peek,
        Self::Charge,
        Self::Refund,
        Self::Reserve,
        Self::Commit,
        Self::Release,
        Self::Renew,
        Self::Reset,
        Self::Explain,
        Self::Rules,
        Self::Counters,
        Self::Top,
        Self::Status,
        Self::Limits,
        Self::Blocks,
        Self::Bouncer,
        Self::Bucket,
        Self::Connection,
        Self::Server,
        Self::Invalid,
    ];

    fn label(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Peek => "peek",
            Self::Charge => "charge",
            Self::Refund => "refund",
            Self::Reserve => "reserve",
            Self::Commit => "commit",
            Self::Release => "release",
            Self::Renew => "renew",
            Self::Reset => "reset",
            Self::Explain => "explain",
            Self::Rules => "rules",
            Self::Counters => "counters",
            Self::Top => "top",
            Self::Status => "status",
            Self::Limits => "limits",
            Self::Blocks => "blocks",
            Self::Bouncer => "bouncer",
            Self::Bucket => "bucket",
            Self::Connection => "connection",
            Self::Server => "server",
            Self::Invalid => "invalid",
        }
    }
}

const KINDS: usize = RequestKind::ALL.len();

/// The requests of all fronts.
pub struct Requests {
    by_front: IntCounterVec,
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
pub struct RequestTally([u64; KINDS]);

impl Requests {
    pub(super) fn new(registry: &Registry) -> Self {
        let help = "Requests, by front and kind.";
        Self { by_front: registry.counters("divvy_requests_total", help, &["front", "command"]) }
    }

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
    pub fn take(&self, tally: &mut RequestTally) {
        for (kind, seen) in RequestKind::ALL.into_iter().zip(&mut tally.0) {
            if *seen > 0 {
                self.add(kind, std::mem::take(seen));
            }
        }
    }

    /// Returns the number of this front's requests.
    pub fn total(&self) -> u64 {
        self.by_kind.iter().filter_map(OnceLock::get).map(IntCounter::get).sum()
    }

    #[expect(clippy::indexing_slicing, reason = "there is a place for every kind")]
    fn add(&self, kind: RequestKind, requests: u64) {
        let make = || self.by_front.with_label_values(&[self.front, kind.label()]);
        self.by_kind[kind as usize].get_or_init(make).inc_by(requests);
    }
}

impl RequestTally {
    /// Adds one request. It appears in the metrics after [`FrontRequests::take`].
    #[expect(clippy::indexing_slicing, reason = "there is a place for every kind")]
    pub fn count(&mut self, kind: RequestKind) {
        self.0[kind as usize] += 1;
    }
}
