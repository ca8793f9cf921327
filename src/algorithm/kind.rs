//! The algorithms by name, without numbers: what a rules file chooses from.

/// Declares the algorithms, their names and the list of all.
macro_rules! kinds {
    ($($(#[$attribute:meta])* $kind:ident = $name:literal,)+) => {
        /// One of the algorithms. The default is Divvy's.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub enum Kind {
            $($(#[$attribute])* $kind,)+
        }

        impl Kind {
            /// All algorithms, in the order of declaration.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$kind),+];

            /// The algorithm's name, as rules files and replies spell it.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)+
                }
            }
        }
    };
}

kinds! {
    /// A window that begins with the first hit, or as a calendar says.
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
