//! The texts of the Lua scripts, made from the files in `lua/`.
//!
//! Each begins with a preamble of constants, so that the scripts and [`crate::algorithm`] use the same numbers. Each has a `mode`
//! (`lua/decide.lua`): a script of one bucket always applies, and the script of groups passes the mode to the function of
//! each bucket.

use super::records::RESERVED;
use crate::algorithm::MAX_LOG_CREDITS;
use crate::algorithm::record::REMEMBERED_NS;
use crate::algorithm::reservation::groups::{MAX_GROUPS, PARTS_OF_TTL, SHORTEST_STEP_MS};
use crate::clock::{MAX_STANDSTILL_NS, NANOS_PER_MILLI, Timestamp};

/// Redis keeps a bucket for this time after it is as good as fresh: the next ask may bring a time that is as far behind.
const GRACE_NS: u64 = MAX_STANDSTILL_NS;
/// The most credits that a rule's fixed window may owe. A sum of this and a limit's credits is exact in Lua's doubles.
const MAX_OWED: u64 = 1 << 52;

/// First line of a script that applies all of its actions.
const APPLY: &str = "local mode = 'apply'\n";
const NUMBERS: &str = include_str!("lua/numbers.lua");
const CLOCK: &str = include_str!("lua/clock.lua");
const DECISION: &str = include_str!("lua/decision.lua");

const WINDOW: [&str; 2] = [include_str!("lua/fixed_window.lua"), include_str!("lua/rule_window.lua")];

/// The algorithms of buckets, except a rule's fixed window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    CalendarWindow,
    FixedWindow,
    SlidingWindow,
    SlidingLog,
    TokenBucket,
    LeakyBucket,
    Concurrency,
}

impl Algorithm {
    const ALL: [Self; 7] = [
        Self::CalendarWindow,
        Self::FixedWindow,
        Self::SlidingWindow,
        Self::SlidingLog,
        Self::TokenBucket,
        Self::LeakyBucket,
        Self::Concurrency,
    ];

    /// The name under which the script of groups calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::CalendarWindow => "calendar-window",
            Self::FixedWindow => "fixed-window",
            Self::SlidingWindow => "sliding-window",
            Self::SlidingLog => "sliding-log",
            Self::TokenBucket => "token-bucket",
            Self::LeakyBucket => "leaky-bucket",
            Self::Concurrency => "concurrency",
        }
    }

    fn files(self) -> &'static [&'static str] {
        match self {
            Self::CalendarWindow => &[include_str!("lua/fixed_window.lua"), include_str!("lua/calendar_window.lua")],
            Self::FixedWindow => &[include_str!("lua/fixed_window.lua")],
            Self::SlidingWindow => &[include_str!("lua/sliding_window.lua")],
            Self::SlidingLog => &[include_str!("lua/sliding_log.lua")],
            Self::TokenBucket => &[include_str!("lua/token_bucket.lua")],
            Self::LeakyBucket => &[include_str!("lua/leaky_bucket.lua")],
            Self::Concurrency => &[include_str!("lua/concurrency.lua")],
        }
    }
}

/// The name under which the script of groups calls the script of a rule's fixed window.
pub const WINDOW_NAME: &str = "window";

/// Returns the script for a bucket with this algorithm.
pub fn bucket_script(algorithm: Algorithm) -> String {
    [&preamble(), APPLY, NUMBERS, CLOCK, DECISION, &bucket_text(algorithm.files())].concat()
}

/// Returns the script for a rule's fixed window.
///
/// `KEYS[1]` is the window's name. The other keys and all arguments are described in `lua/window_stored.lua`. A window without an
/// end would deny permanently, so a window that lost its time to live (`PERSIST`, a `SET` by hand) gets it back.
pub fn window_script() -> String {
    let before_bucket = [NUMBERS, CLOCK].concat();
    [&preamble(), APPLY, DECISION, &window_text(&before_bucket)].concat()
}

/// Returns the script for groups: the others as functions, and the steps that call them.
pub fn group_script() -> String {
    let mut text = [&preamble(), NUMBERS, CLOCK, DECISION, "local buckets = {}\n"].concat();
    let mut add = |name: &str, body: &str| {
        text.push_str(&format!("buckets['{name}'] = function(KEYS, ARGV, mode)\n{body}\nend\n"));
    };
    add(WINDOW_NAME, &window_text(""));
    Algorithm::ALL.into_iter().for_each(|algorithm| add(algorithm.name(), &bucket_text(algorithm.files())));
    text.push_str(include_str!("lua/group.lua"));
    text
}

/// The constants that Rust and Lua share.
fn preamble() -> String {
    let numbers = [
        ("MAX_STANDSTILL_NS", MAX_STANDSTILL_NS),
        ("GRACE_NS", GRACE_NS),
        ("REMEMBERED_NS", REMEMBERED_NS),
        ("MAX_GROUPS", MAX_GROUPS as u64),
        ("PARTS_OF_TTL", PARTS_OF_TTL),
        ("SHORTEST_STEP_MS", SHORTEST_STEP_MS),
        // The last nanosecond that 64 bits hold stands for all later times.
        ("LAST_MS", Timestamp::MAX.as_nanos().div_ceil(NANOS_PER_MILLI)),
        ("MAX_LOG_CREDITS", MAX_LOG_CREDITS),
        ("MAX_OWED", MAX_OWED),
    ];
    let numbers = numbers.into_iter().map(|(name, number)| format!("local {name} = {number}\n"));
    numbers.chain([format!("local RESERVED = '{RESERVED}'\n")]).collect()
}

/// Returns the part of a script that is about its algorithm.
fn bucket_text(algorithm: &[&str]) -> String {
    [
        include_str!("lua/decide.lua"),
        &algorithm.concat(),
        include_str!("lua/stored.lua"),
        // A hit on a bucket without reservations creates none of these functions.
        "if reserving then\n",
        include_str!("lua/reserved.lua"),
        include_str!("lua/reservation.lua"),
        include_str!("lua/once.lua"),
        "\nend\n",
        include_str!("lua/apply.lua"),
    ]
    .concat()
}

/// Returns the part of the window's script that is not constants. `before_bucket` precedes the functions for a window that is
/// decided as a bucket.
fn window_text(before_bucket: &str) -> String {
    [
        include_str!("lua/window_stored.lua"),
        // A hit on a window without reservations creates none of these functions.
        "if is_bucket then\nreturn (function(KEYS, ARGV, damaged)\n",
        before_bucket,
        &bucket_text(&WINDOW),
        "\nend)(KEYS, arguments, refusal)\nend\n",
        include_str!("lua/window_apply.lua"),
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_constant_of_the_preamble_is_used_and_declared_once() {
        let script = group_script();
        for line in preamble().lines() {
            let name = line.split(' ').nth(1).unwrap();
            let is_used = |line: &&str| !line.trim_start().starts_with("--") && line.contains(name);
            assert!(script.lines().filter(is_used).count() > 1, "{name} is not used");
            assert_eq!(script.matches(&format!("local {name}")).count(), 1, "{name}");
        }
    }
}
