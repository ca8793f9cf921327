//! The names of the algorithms in a rules file.

/// An algorithm, without its numbers. The default is Divvy's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Kind {
    /// A window that begins with the first hit, or on a date of a calendar.
    #[default]
    FixedWindow,
    /// Two counters that approximate the last window.
    SlidingWindow,
    /// The exact time of each credit.
    SlidingLog,
    /// Tokens that come back in whole refills.
    TokenBucket,
    /// A level that leaks evenly: GCRA.
    LeakyBucket,
    /// Leases, which are returned instead of used up.
    Concurrency,
}

impl Kind {
    /// All algorithms, in the order of declaration.
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
            Self::FixedWindow => "fixed-window",
            Self::SlidingWindow => "sliding-window",
            Self::SlidingLog => "sliding-log",
            Self::TokenBucket => "token-bucket",
            Self::LeakyBucket => "leaky-bucket",
            Self::Concurrency => "concurrency",
        }
    }
}
