//! Records: a store keeps one next to a bucket for each reservation and each idempotent request.
//!
//! The answer to an idempotent request or to a commit is remembered for a while, so that a client that got no answer
//! may send it again. An open reservation is remembered until it ends. The store decides where records are kept, and
//! under which names.
//!
//! The first outcome of an idempotent request is remembered even if it was a denial. A repeated request gets that outcome, and
//! takes nothing. If one request of a group is denied, the others are held back, and take nothing. If the whole group
//! is sent again, each request gets its first outcome.

use super::decide::{Outcome, Resolution, Run, set_back_ns};
use super::groups::longest_ns;
use crate::clock::{NANOS_PER_SECOND, Timestamp};

/// Minimum time that an answer is remembered.
pub const REMEMBERED_NS: u64 = 60 * NANOS_PER_SECOND;

/// The memory of a reservation, or of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// The record may be forgotten at this time of the server's clock.
    pub until: Timestamp,
    /// The reservation or the answer.
    pub content: Content,
}

/// The kinds of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Credits are set aside until `ends`. They no longer are if the bucket of this generation was forgotten.
    Open {
        /// The client's request for the reservation.
        reservation: Reservation,
        /// End by the bucket's own clock, rounded up to a whole step.
        ends: Timestamp,
        /// Generation of the bucket. In another generation, these credits are not set aside.
        generation: u64,
        /// Capacity of the limit under which they were set aside. An actor's own limit may have ended since.
        capacity: u64,
    },
    /// The reservation was committed, with this answer. The answer is remembered until the reservation would have
    /// ended, but for at most its TTL, and for at least [`REMEMBERED_NS`].
    Committed {
        /// The client's request for the reservation.
        reservation: Reservation,
        /// Credits that were left after the commit.
        left: u64,
        /// Credits below 0 after the commit.
        owed: u64,
        /// Nanoseconds from the commit to the reset.
        reset_ns: u64,
    },
    /// An idempotent request had this outcome, which is remembered for [`REMEMBERED_NS`].
    Answer {
        /// Identifies the request. A different request has a different fingerprint.
        fingerprint: u64,
        /// Whether the request would have been allowed, but was held back because another request of its group was
        /// denied.
        is_held_back: bool,
        /// The first outcome. A repeated request gets it again.
        outcome: Outcome,
    },
}

/// A client's request to set credits aside. All numbers are 0 if it is unknown, because the reservation had ended
/// before its commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reservation {
    /// Credits that were set aside.
    pub credits: u64,
    /// TTL as requested. The end is rounded up.
    pub ttl_seconds: u32,
    /// The run of its name.
    pub run: Option<Run>,
}

impl Record {
    /// Returns the record of an answer that is given at `at`. It is kept for [`REMEMBERED_NS`].
    pub fn new_answer(fingerprint: u64, outcome: Outcome, is_held_back: bool, at: Timestamp) -> Self {
        let content = Content::Answer { fingerprint, is_held_back, outcome };
        Self { until: at.plus(REMEMBERED_NS), content }
    }

    /// Returns the record at time `at`, or `None` if it has expired. If the clock was set back, an answer expires no
    /// later than one that is given now.
    pub fn found(self, at: Timestamp) -> Option<Self> {
        let latest = self.longest_ns().map(|longest_ns| at.plus(longest_ns));
        let until = latest.filter(|latest| set_back_ns(self.until, *latest).is_some()).unwrap_or(self.until);
        (at < until).then_some(Self { until, ..self })
    }

    /// Returns the latest time that is certainly earlier than the record.
    pub fn made_after(&self) -> Timestamp {
        self.longest_ns().map_or(Timestamp::EPOCH, |longest_ns| self.until.minus(longest_ns))
    }

    /// Returns the maximum time that such a record is kept (nanoseconds). `None` if there is no maximum: an open
    /// reservation may have been renewed for any time.
    fn longest_ns(&self) -> Option<u64> {
        match self.content {
            Content::Open { .. } => None,
            Content::Committed { reservation, .. } => Some(REMEMBERED_NS.max(longest_ns(reservation.ttl_seconds))),
            Content::Answer { .. } => Some(REMEMBERED_NS),
        }
    }

    /// Returns the reservation that the record is about, open or committed.
    pub(super) fn reservation(&self) -> Option<Reservation> {
        match self.content {
            Content::Open { reservation, .. } | Content::Committed { reservation, .. } => Some(reservation),
            Content::Answer { .. } => None,
        }
    }

    /// Returns whether the record is about a reservation, open or committed.
    pub fn is_reservation(&self) -> bool {
        self.reservation().is_some()
    }
}

/// The effect of a decision on a record.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RecordChange {
    /// The record stays as it is, or there is still no record.
    #[default]
    Keep,
    /// The record is created or replaced.
    Set(Record),
    /// The record is removed.
    Clear,
}

impl RecordChange {
    /// Returns this change. If it keeps the record, but an ask at `at` corrected the expiry, returns the correction
    /// instead.
    pub fn or_found(self, record: Option<&Record>, at: Timestamp) -> Self {
        let found = record.and_then(|record| record.found(at));
        match (self, found) {
            (Self::Keep, Some(found)) if record != Some(&found) => Self::Set(found),
            (change, _) => change,
        }
    }
}

/// The earlier answer to a request, if there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replay {
    /// The request is new.
    None,
    /// The request had this outcome.
    Answered(Outcome),
    /// The request had this outcome, but took nothing. It is decided again once its group no longer contains the
    /// request that was denied.
    HeldBack(Outcome),
    /// The name belongs to another request.
    Conflict,
}

impl Replay {
    /// Looks up the request with this fingerprint in `record`, at time `at`.
    pub fn find(record: Option<&Record>, fingerprint: u64, at: Timestamp) -> Self {
        let Some(Content::Answer { fingerprint: first, is_held_back, outcome }) =
            record.and_then(|record| record.found(at)).map(|record| record.content)
        else {
            return Self::None;
        };
        let outcome = Outcome { resolution: Resolution::Repeated, ..outcome };
        match (first == fingerprint, is_held_back) {
            (false, _) => Self::Conflict,
            (true, true) => Self::HeldBack(outcome),
            (true, false) => Self::Answered(outcome),
        }
    }
}
