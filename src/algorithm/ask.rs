//! Asks of a bucket, and their outcomes.

use crate::clock::Timestamp;

/// A caller's request to a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// Would `cost` credits be granted? Takes nothing.
    Look {
        /// Credits that must be left.
        cost: u64,
    },
    /// Report the bucket as it is. Takes nothing, and is always granted. `before` in the outcome is the number of credits that
    /// are reserved.
    Show,
    /// Take `cost` credits, all or none. A cost of 0 is always granted.
    Take {
        /// Credits to take.
        cost: u64,
    },
    /// Take `cost` credits, all of them, when there is at least one: what is left may be below 0 afterwards.
    Overdraw {
        /// Credits to take.
        cost: u64,
    },
    /// Count `cost` credits that were used already, even if none are left. `allowed` says whether at least one was left before.
    Charge {
        /// Credits that were used.
        cost: u64,
    },
    /// Give back `cost` credits, or as many as were taken; always allowed. A bucket that was never asked stays so.
    Refund {
        /// Credits to give back.
        cost: u64,
    },
    /// Take up to `cost` credits, as many as there are; granted when there was at least one.
    ///
    /// `strict` is for token buckets (the others ignore it): a take that leaves no token, a denied one included,
    /// starts the refill interval again, so that a caller who never pauses stays limited.
    Drain {
        /// Maximum number of credits to take.
        cost: u64,
        /// Whether a take that leaves no token restarts the refill interval.
        strict: bool,
    },
    /// Like [`Ask::Drain`], for an event at a time that the client brings. Any time is allowed, and times may run backwards: a
    /// token bucket never takes that for a clock that was set back.
    Replay {
        /// Maximum number of credits to take.
        cost: u64,
        /// Same as for [`Ask::Drain`].
        strict: bool,
    },
}

impl Ask {
    /// Returns the credits that must be left for this ask to be granted.
    pub(crate) fn wanted(self) -> u64 {
        match self {
            Ask::Look { cost } | Ask::Take { cost } => cost,
            Ask::Overdraw { .. } | Ask::Charge { .. } | Ask::Drain { .. } | Ask::Replay { .. } => 1,
            Ask::Show | Ask::Refund { .. } => 0,
        }
    }
}

/// The answer to an [`Ask`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outcome {
    /// Whether the ask was granted.
    pub allowed: bool,
    /// Credits that were there before the ask. [`Ask::Show`] reports the reserved credits here.
    pub before: u64,
    /// Credits left after the ask.
    pub left: u64,
    /// Credits below 0 after the ask: what was used over the limit. 0 as long as any are left.
    pub owed: u64,
    /// Nanoseconds until the bucket holds more credits (each algorithm's module says how many); 0 when it is full.
    pub reset_ns: u64,
    /// Nanoseconds until the same ask would be granted if no other ask comes first, and not a nanosecond earlier. `None` when
    /// it was granted, and when it never will be because it costs more than the bucket can hold.
    pub retry_ns: Option<u64>,
    /// For token buckets, when the caller's present session began. For an ask that made, renewed or found a reservation, when
    /// the reservation ends. Else [`Timestamp::EPOCH`].
    pub session: Timestamp,
    /// The resolution of a reservation or an idempotent request.
    pub resolution: Resolution,
}

/// The resolution of an ask about a reservation, or of an idempotent request. If several buckets have a part in a reservation,
/// the smallest of their resolutions says the most about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Resolution {
    /// The reservation of a commit had ended. The cost is counted now.
    Late,
    /// The ask was carried out.
    #[default]
    Done,
    /// The request was made before. The answer is the first one, and nothing has changed.
    Repeated,
    /// No such reservation exists, or it has ended. Nothing has changed.
    Gone,
    /// The name belongs to a reservation with other credits or another time, or to another request. Nothing has changed.
    Different,
}
