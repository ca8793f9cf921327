//! Reasons why a limit cannot be built. Constructors refuse these, so no such limit exists.

use std::num::NonZeroU64;

/// Maximum credits of a sliding log, which remembers the time of each (eight bytes).
pub const MAX_LOG_CREDITS: u64 = 1_000;

/// A limit that cannot be built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidLimit {
    /// The limit has no credits.
    #[error("a limit needs at least 1 credit")]
    NoCredits,
    /// The window or period is 0.
    #[error("a limit needs a period longer than 0")]
    NoTime,
    /// A refill adds no token.
    #[error("a refill needs at least 1 credit")]
    NoRefill,
    /// The limit exceeds [`MAX_LOG_CREDITS`].
    #[error(
        "sliding-log stores a time for each credit, so it allows at most {} credits, not {credits}; sliding-window allows more",
        MAX_LOG_CREDITS
    )]
    LogTooLong {
        /// Credits of the refused limit.
        credits: u64,
    },
}

pub(super) fn credits(number: u64) -> Result<NonZeroU64, InvalidLimit> {
    NonZeroU64::new(number).ok_or(InvalidLimit::NoCredits)
}

pub(super) fn time(nanos: u64) -> Result<NonZeroU64, InvalidLimit> {
    NonZeroU64::new(nanos).ok_or(InvalidLimit::NoTime)
}
