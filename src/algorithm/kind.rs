//! The names of the algorithms in a rules file.

/// Declares the algorithms, their names and the list of all.
macro_rules! kinds {
    ($($(#[$attribute:meta])* $kind:ident = $name:literal,)+) => {
        /// An algorithm, without its numbers. The default is Divvy's.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub enum Kind {
            $($(#[$attribute])* $kind,)+
        }

        impl Kind {
            /// All algorithms, in the order of declaration.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$kind),+];

            /// Returns the algorithm's name, as rules files and replies spell it.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)+
                }
            }
        }
    };
}

kinds! {
    /// A window that begins with the first hit, or on a date of a calendar.
    #[default]
    FixedWindow = "fixed-window",
    /// Two counters that approximate the last window.
    SlidingWindow = "sliding-window",
    /// The exact time of each credit.
    SlidingLog = "sliding-log",
    /// Tokens that come back in whole refills.
    TokenBucket = "token-bucket",
    /// A level that leaks evenly: GCRA.
    LeakyBucket = "leaky-bucket",
    /// Leases, which are returned instead of used up.
    Concurrency = "concurrency",
}
