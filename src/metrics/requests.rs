//! Requests: how many of which kind, on each front.

use std::sync::{Arc, OnceLock};

use prometheus::{IntCounter, IntCounterVec};

use super::registry::Registry;

/// What a request asks for, whatever its front calls it. A closed set: what clients send never becomes a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestKind {
    Hit,
    Peek,
    /// Count what was used already.
    Charge,
    /// Give back.
    Refund,
    /// Set credit aside.
    Reserve,
    /// Count what was used of a reservation.
    Commit,
    /// Free what is reserved.
    Release,
    /// Keep what is reserved.
    Renew,
    /// Forget counters.
    Reset,
    Explain,
    Rules,
    /// List counters, or forget listed ones.
    Counters,
    /// Limits of single actors.
    Limits,
    /// A limit in the command: `RL.*`, `CL.THROTTLE`.
    Bucket,
    /// About the connection: `PING`, `HELLO`, …
    Connection,
    /// About the server: `INFO`, `/healthz`, `/metrics`, …
    Server,
    /// No request at all, or one that the front does not know.
    Invalid,
}

impl RequestKind {
    pub const ALL: [Self; 17] = [
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
        Self::Limits,
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
            Self::Limits => "limits",
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
    /// Made when the first request of their kind comes: a front has not every kind.
    by_kind: Arc<[OnceLock<IntCounter>; KINDS]>,
}

/// Requests that a session has seen and not yet handed over. Plain numbers: nothing is shared per request.
#[derive(Debug, Default)]
pub struct RequestTally([u64; KINDS]);

impl Requests {
    pub(super) fn new(registry: &Registry) -> Self {
        let help = "Requests, by front and kind.";
        Self { by_front: registry.counters("divvy_requests_total", help, &["front", "command"]) }
    }

    /// `front` is a word of this crate. To be asked for once a front: each answer looks its counters up anew.
    pub fn front(&self, front: &'static str) -> FrontRequests {
        FrontRequests { front, by_front: self.by_front.clone(), by_kind: Arc::default() }
    }
}

impl FrontRequests {
    /// Counts one request.
    pub fn count(&self, kind: RequestKind) {
        self.add(kind, 1);
    }

    /// Counts what a session has seen since it did this last.
    pub fn take(&self, tally: &mut RequestTally) {
        for (kind, seen) in RequestKind::ALL.into_iter().zip(&mut tally.0) {
            if *seen > 0 {
                self.add(kind, std::mem::take(seen));
            }
        }
    }

    /// All requests of this front.
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
    #[expect(clippy::indexing_slicing, reason = "there is a place for every kind")]
    pub fn count(&mut self, kind: RequestKind) {
        self.0[kind as usize] += 1;
    }
}
