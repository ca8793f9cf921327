//! Records: a store keeps one next to a bucket for each reservation and each idempotent request.
//!
//! The answer to an idempotent request is remembered for a while, and so is the answer to a commit, so that a client that got no
//! answer may ask again. An open reservation is remembered until it ends. Where records are kept, and under which names, is
//! the store's business.

use super::ask::Outcome;
use super::decide::set_back_ns;
use super::reservation::groups::longest_ns;
use crate::clock::{NANOS_PER_SECOND, Timestamp};

/// An answer is remembered for at least this long.
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
    /// Credits are set aside until `ends`, by the bucket's own clock, unless the bucket of this generation was forgotten.
    Open {
        /// The request for it.
        reservation: Reservation,
        /// Time of the bucket's own clock, rounded up to a whole step.
        ends: Timestamp,
        /// Generation of the bucket. Another one does not have these credits.
        generation: u64,
    },
    /// The reservation was committed, and this was the answer. It is remembered for [`REMEMBERED_NS`], and until the reservation
    /// would have ended, but for no longer than the reservation was made for.
    Committed {
        /// The request for it.
        reservation: Reservation,
        /// Credits that were left after the commit.
        left: u64,
        /// Credits below 0 after the commit.
        owed: u64,
        /// Nanoseconds from the commit to the reset.
        reset_ns: u64,
    },
    /// An idempotent request had this outcome. It is remembered for [`REMEMBERED_NS`].
    Answer {
        /// Identifies the request: another fingerprint is another request.
        fingerprint: u64,
        /// The request would have been allowed, but another one of its group was denied.
        is_held_back: bool,
        /// The first outcome, which a repeated request gets again.
        outcome: Outcome,
    },
}

/// A client's request to set credits aside. All zero if it is unknown, because the reservation had ended before its commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reservation {
    /// Credits that were set aside.
    pub credits: u64,
    /// Time to live as requested. Its end is rounded up.
    pub ttl_seconds: u32,
}

impl Record {
    /// Returns the record of an answer at `at`. It is kept for [`REMEMBERED_NS`].
    pub fn new_answer(fingerprint: u64, outcome: Outcome, is_held_back: bool, at: Timestamp) -> Self {
        let content = Content::Answer { fingerprint, is_held_back, outcome };
        Self { until: at.plus(REMEMBERED_NS), content }
    }

    /// Returns the record as an ask at `at` finds it, or `None` if it has expired. If the clock was set back, an answer expires
    /// no later than one that is given now.
    pub fn found(self, at: Timestamp) -> Option<Self> {
        let latest = self.longest_ns().map(|longest_ns| at.plus(longest_ns));
        let until = latest.filter(|latest| set_back_ns(self.until, *latest).is_some()).unwrap_or(self.until);
        (at < until).then_some(Self { until, ..self })
    }

    /// Returns the latest time that is certainly before the record was made.
    pub fn made_after(&self) -> Timestamp {
        self.longest_ns().map_or(Timestamp::EPOCH, |longest_ns| self.until.minus(longest_ns))
    }

    /// Returns how long (nanoseconds) such a record is kept at most. `None` if there is no limit: an open reservation may have been
    /// renewed for any time.
    fn longest_ns(&self) -> Option<u64> {
        match self.content {
            Content::Open { .. } => None,
            Content::Committed { reservation, .. } => Some(REMEMBERED_NS.max(longest_ns(reservation.ttl_seconds))),
            Content::Answer { .. } => Some(REMEMBERED_NS),
        }
    }

    /// Whether the record is about a reservation, open or committed.
    pub fn is_reservation(&self) -> bool {
        !matches!(self.content, Content::Answer { .. })
    }
}

/// The effect of a decision on a record.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RecordChange {
    /// The record stays as it is. Also means that there is no record.
    #[default]
    Keep,
    /// The record is created or replaced.
    Set(Record),
    /// The record is removed.
    Clear,
}

impl RecordChange {
    /// Returns this change. If it keeps the record, and an ask at `at` corrected when it expires, returns the correction.
    pub fn or_found(self, record: Option<&Record>, at: Timestamp) -> Self {
        let found = record.and_then(|record| record.found(at));
        match (self, found) {
            (Self::Keep, Some(found)) if record != Some(&found) => Self::Set(found),
            (change, _) => change,
        }
    }
}
