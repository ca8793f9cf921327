//! The algorithms by name, without numbers: what a rules file chooses from.

use super::{concurrency, fixed_window, leaky_bucket, sliding_log, sliding_window, token_bucket};

/// One of the algorithms. The default is Divvy's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Kind {
    #[default]
    FixedWindow,
    SlidingWindow,
    SlidingLog,
    TokenBucket,
    LeakyBucket,
    Concurrency,
}

impl Kind {
    pub const ALL: [Self; 6] = [
        Self::FixedWindow,
        Self::SlidingWindow,
        Self::SlidingLog,
        Self::TokenBucket,
        Self::LeakyBucket,
        Self::Concurrency,
    ];

    /// The algorithm's name, as rules files and replies spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::FixedWindow => fixed_window::NAME,
            Self::SlidingWindow => sliding_window::NAME,
            Self::SlidingLog => sliding_log::NAME,
            Self::TokenBucket => token_bucket::NAME,
            Self::LeakyBucket => leaky_bucket::NAME,
            Self::Concurrency => concurrency::NAME,
        }
    }
}
