//! What a bucket can be asked, and the answer.

use super::reservation::Fate;
use crate::clock::Timestamp;

/// What a caller wants from a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// Would `cost` credits be granted? Takes nothing.
    Look { cost: u64 },
    /// Take `cost` credits, all or none. A cost of 0 is always granted.
    Take { cost: u64 },
    /// Take `cost` credits, all of them, when there is at least one: what is left may be below 0 afterwards.
    Overdraw { cost: u64 },
    /// Count `cost` credits that were used already, whatever is left. `allowed` tells whether there was at least one before.
    Charge { cost: u64 },
    /// Give back `cost` credits, or as many as were taken; always allowed. A bucket that was never asked stays so.
    Refund { cost: u64 },
    /// Take up to `cost` credits, as many as there are; granted when there was at least one.
    ///
    /// `strict` is for token buckets (the others ignore it): a take that leaves no token, a denied one included,
    /// starts the refill interval anew, so that a caller who never pauses stays limited.
    Drain { cost: u64, strict: bool },
    /// As [`Ask::Drain`], for an event at a time that the client brings. That may be any time, and run backwards as it
    /// likes: a token bucket never takes it for a clock that was set back.
    Replay { cost: u64, strict: bool },
}

/// The answer to an [`Ask`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outcome {
    pub allowed: bool,
    /// Credits that were there before the ask.
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
    /// When the caller's present session began, for token buckets; when a reservation ends that was made, renewed or made
    /// before. Else [`Timestamp::EPOCH`].
    pub session: Timestamp,
    /// What an ask about a reservation came to, or one that is answered once.
    pub fate: Fate,
}
