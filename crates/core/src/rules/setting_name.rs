//! The names of a rule's settings in a rules file.

/// Declares the names, and lists them.
macro_rules! names {
    ($($constant:ident = $name:literal,)+) => {
        $(#[doc = concat!("`", $name, "`")]
        pub const $constant: &str = $name;)+

        /// All settings that a rule may have, in the order of the documentation.
        pub const NAMES: &[&str] = &[$($constant),+];
    };
}

names! {
    CREDIT_LIMIT = "creditLimit",
    LIMIT = "limit",
    RESET_SECONDS = "resetSeconds",
    PER = "per",
    WINDOW = "window",
    TIMEZONE = "timezone",
    RESET_AT = "resetAt",
    ALGORITHM = "algorithm",
    REFILL_CREDITS = "refillCredits",
    REFILL_SECONDS = "refillSeconds",
    BURST = "burst",
    NETWORKS = "networks",
    LIST = "list",
    ACTOR_FIELD = "actorField",
    ACTOR_PREFIX = "actorPrefix",
    COST_FIELD = "costField",
    OVERRUN = "overrun",
    HOLD_FIELD = "holdField",
    COUNTER = "counter",
    BLOCK_AFTER = "blockAfter",
    BLOCK_WINDOW = "blockWindow",
    BLOCK_SECONDS = "blockSeconds",
    BLOCK_FACTOR = "blockFactor",
    BLOCK_MAX = "blockMax",
    BLOCK_FORGET = "blockForget",
    MATCH_POLICY = "matchPolicy",
    LABEL = "label",
    COMMENT = "comment",
}

/// The value of `limit`, in place of a number of credits.
pub const UNLIMITED: &str = "none";
/// The default time zone of a calendar.
pub const UTC: &str = "UTC";
/// The default start of a calendar's days.
pub const MIDNIGHT: &str = "00:00";
