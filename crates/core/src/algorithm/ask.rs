//! Asks and their outcomes. An ask is a caller's request to one bucket.

use std::num::NonZeroU32;

use crate::clock::Timestamp;

/// A caller's request to a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// Reports whether `cost` credits would be granted. Takes nothing.
    Look {
        /// Credits that must be left.
        cost: u64,
    },
    /// Reports the bucket as it is. Takes nothing, and is always granted. `before` in the outcome is the number of
    /// reserved credits.
    Show,
    /// Takes `cost` credits, all or none. A cost of 0 is always granted.
    Take {
        /// Credits to take.
        cost: u64,
    },
    /// Takes all of `cost` credits if at least one is left. The balance may be below 0 afterwards.
    Overdraw {
        /// Credits to take.
        cost: u64,
    },
    /// Takes `cost` credits, or as many as are left, and is always granted. So the balance never falls below 0.
    Count {
        /// Credits to take.
        cost: u64,
    },
    /// Counts `cost` credits that were used already, even if none are left. `allowed` says whether at least one was
    /// left before.
    Charge {
        /// Credits that were used.
        cost: u64,
    },
    /// Gives back `cost` credits, or as many as were taken. It is always allowed. A fresh bucket stays fresh.
    Refund {
        /// Credits to give back.
        cost: u64,
    },
    /// Takes up to `cost` credits, as many as there are. It is granted if there was at least one.
    ///
    /// `strict` matters only to token buckets. There, a take that leaves no token starts the refill interval again,
    /// even if the take was denied. So a caller that never pauses stays limited.
    Drain {
        /// Maximum number of credits to take.
        cost: u64,
        /// Whether a take that leaves no token restarts the refill interval.
        strict: bool,
    },
    /// Like [`Ask::Drain`], for an event whose time the client supplies. Any time is allowed, and times may run
    /// backwards. A token bucket never treats that as a clock that was set back.
    Replay {
        /// Maximum number of credits to take.
        cost: u64,
        /// Same as for [`Ask::Drain`].
        strict: bool,
    },
}

impl Ask {
    /// Returns the credits that must be left for this ask to be granted.
    pub fn wanted(self) -> u64 {
        match self {
            Ask::Look { cost } | Ask::Take { cost } => cost,
            Ask::Overdraw { .. } | Ask::Charge { .. } | Ask::Drain { .. } | Ask::Replay { .. } => 1,
            Ask::Show | Ask::Count { .. } | Ask::Refund { .. } => 0,
        }
    }
}

/// One of the reservations that have the same name, one after the other. A predecessor's id must not settle its successor.
pub type Run = NonZeroU32;

/// The answer to an [`Ask`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outcome {
    /// Whether the ask was granted.
    pub allowed: bool,
    /// Credits left before the ask. [`Ask::Show`] reports the reserved credits here.
    pub before: u64,
    /// Credits left after the ask.
    pub left: u64,
    /// Credits used beyond the limit, after the ask. 0 as long as any are left.
    pub owed: u64,
    /// Nanoseconds until the bucket holds more credits (each algorithm's module says how many); 0 if it is full. In a window
    /// that gives all credits back at once, until it ends, even if reserved credits come back before.
    pub reset_ns: u64,
    /// Nanoseconds until the same ask would be granted if no other ask comes first, and not a nanosecond earlier.
    /// `None` if it was granted, or never will be because it costs more than the bucket can hold.
    pub retry_ns: Option<u64>,
    /// For token buckets, the time when the caller's current session began. For an ask that made, renewed or found a
    /// reservation, the time when the reservation ends. Otherwise [`Timestamp::EPOCH`].
    pub session: Timestamp,
    /// The run of the reservation that an ask made or found.
    pub run: Option<Run>,
    /// The resolution of a reservation or an idempotent request.
    pub resolution: Resolution,
    /// The part of the program that answered.
    pub source: OutcomeSource,
}

/// The part of the program that answered an ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OutcomeSource {
    /// The store.
    #[default]
    Store,
    /// This server, which remembered that a window of its distant store has nothing left.
    DenialCache,
    /// The policy for failures of a distant store.
    FailurePolicy,
}

/// The resolution of an ask about a reservation, or of an idempotent request. If a reservation covers several buckets,
/// the smallest of their resolutions stands for all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Resolution {
    /// The reservation had ended before its commit. The cost was counted at the time of the commit.
    Late,
    /// The ask was carried out.
    #[default]
    Done,
    /// The request was made before. The first answer is repeated, and nothing has changed.
    Repeated,
    /// No such reservation exists, or it has ended. Nothing has changed.
    Gone,
    /// The name belongs to another request, or to a reservation with other credits or another TTL. Nothing has changed.
    Different,
}
