//! The texts of the Lua scripts, made from the files in `lua/`.
//!
//! Each begins with a preamble of constants, so that the scripts and [`divvy_core::algorithm`] use the same numbers. Each has a `mode`
//! (`lua/decide.lua`): a script of one bucket always applies, and the script of groups passes the mode to the function of
//! each bucket.

use std::sync::LazyLock;

use super::names::RESERVED;
use crate::wire::Script;
use divvy_core::algorithm::record::REMEMBERED_NS;
use divvy_core::algorithm::reservation::groups::{MAX_GROUPS, PARTS_OF_TTL, SHORTEST_STEP_MS};
use divvy_core::algorithm::{Limit, MAX_LOG_CREDITS};
use divvy_core::clock::{MAX_STANDSTILL_NS, NANOS_PER_MILLI, Timestamp};

/// Redis keeps a bucket for this time after it is equivalent to a fresh one, because the next ask may have a time that
/// is this far behind.
const GRACE_NS: u64 = MAX_STANDSTILL_NS;
/// Maximum credits that a rule's fixed window may owe. The sum of this and a limit's credits is exact in Lua's doubles.
const MAX_OWED: u64 = 1 << 52;

/// First line of a script that applies all of its actions.
const APPLY: &str = "local mode, is_next_run = 'apply', false\n";
const NUMBERS: &str = include_str!("lua/numbers.lua");
const DECISION: &str = include_str!("lua/decision.lua");

const FIXED_WINDOW: &str = include_str!("lua/fixed_window.lua");

/// Declares the scripts of all limits: the name under which the script of groups calls a script, and the files with the
/// algorithm.
macro_rules! bucket_scripts {
    ($($limit:ident = $name:literal: [$($file:expr),+],)+) => {
        const BUCKETS: &[(&str, &[&str])] = &[$(($name, &[$($file),+])),+];

        /// Returns the script for buckets with such a limit.
        pub fn bucket_script(limit: &Limit) -> &'static Script {
            match limit {
                $(Limit::$limit(_) => {
                    static SCRIPT: LazyLock<Script> = LazyLock::new(|| make_bucket_script($name, &[$($file),+]));
                    &SCRIPT
                })+
            }
        }
    };
}

bucket_scripts! {
    CalendarWindow = "calendar-window": [FIXED_WINDOW, include_str!("lua/calendar_window.lua")],
    FixedWindow = "fixed-window": [FIXED_WINDOW],
    SlidingWindow = "sliding-window": [include_str!("lua/sliding_window.lua")],
    SlidingLog = "sliding-log": [include_str!("lua/sliding_log.lua")],
    TokenBucket = "token-bucket": [include_str!("lua/token_bucket.lua")],
    LeakyBucket = "leaky-bucket": [include_str!("lua/leaky_bucket.lua")],
    Concurrency = "concurrency": [include_str!("lua/concurrency.lua")],
}

fn make_bucket_script(name: &'static str, files: &[&str]) -> Script {
    Script::new(name, [&preamble(), APPLY, NUMBERS, DECISION, &bucket_text(files)].concat())
}

const WINDOW_NAME: &str = "window";

/// The script for a rule's fixed window.
pub static WINDOW: LazyLock<Script> = LazyLock::new(|| Script::new(WINDOW_NAME, window_script()));

/// The script for groups.
pub static GROUP: LazyLock<Script> = LazyLock::new(|| Script::new("group", group_text()));

/// Returns the text of the script for a rule's fixed window.
///
/// `KEYS[1]` is the window's name. The other keys and all arguments are described in `lua/stored.lua`.
pub fn window_script() -> String {
    [&preamble(), APPLY, DECISION, &window_text(NUMBERS)].concat()
}

/// Returns the text of the script for groups: the others as functions, and the steps that call them.
fn group_text() -> String {
    let mut text = [&preamble(), NUMBERS, DECISION, "local buckets = {}\n"].concat();
    let mut add = |name: &str, body: &str| {
        text.push_str(&format!("buckets['{name}'] = function(KEYS, ARGV, mode, is_next_run)\n{body}\nend\n"));
    };
    add(WINDOW_NAME, &window_text(""));
    BUCKETS.iter().for_each(|(name, files)| add(name, &bucket_text(files)));
    text.push_str(include_str!("lua/group.lua"));
    text
}

/// Returns the constants that Rust and Lua share.
fn preamble() -> String {
    let numbers = [
        ("MAX_STANDSTILL_NS", MAX_STANDSTILL_NS),
        ("GRACE_NS", GRACE_NS),
        ("REMEMBERED_NS", REMEMBERED_NS),
        ("MAX_GROUPS", MAX_GROUPS as u64),
        ("PARTS_OF_TTL", PARTS_OF_TTL),
        ("SHORTEST_STEP_MS", SHORTEST_STEP_MS),
        // The last nanosecond that fits 64 bits stands for all later times.
        ("LAST_MS", Timestamp::MAX.as_nanos().div_ceil(NANOS_PER_MILLI)),
        ("MAX_LOG_CREDITS", MAX_LOG_CREDITS),
        ("MAX_OWED", MAX_OWED),
    ];
    let numbers = numbers.into_iter().map(|(name, number)| format!("local {name} = {number}\n"));
    numbers.chain([format!("local RESERVED = '{RESERVED}'\n")]).collect()
}

/// Returns the part of a script that depends on the algorithm.
fn bucket_text(algorithm: &[&str]) -> String {
    [
        include_str!("lua/decide.lua"),
        &algorithm.concat(),
        include_str!("lua/stored.lua"),
        include_str!("lua/records.lua"),
        include_str!("lua/apply.lua"),
    ]
    .concat()
}

/// Returns the window's script without the constants. `before_bucket` precedes the functions for a window that is
/// decided as a bucket.
fn window_text(before_bucket: &str) -> String {
    [
        include_str!("lua/window_stored.lua"),
        // A hit on a window without reservations creates none of these functions.
        "if is_bucket then\nreturn (function(damaged)\n",
        before_bucket,
        &bucket_text(&[FIXED_WINDOW, include_str!("lua/rule_window.lua")]),
        "\nend)(refusal)\nend\n",
        include_str!("lua/window_apply.lua"),
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_constant_of_the_preamble_is_used_and_declared_once() {
        let script = group_text();
        for line in preamble().lines() {
            let name = line.split(' ').nth(1).unwrap();
            let is_used = |line: &&str| !line.trim_start().starts_with("--") && line.contains(name);
            assert!(script.lines().filter(is_used).count() > 1, "{name} is not used");
            assert_eq!(script.matches(&format!("local {name}")).count(), 1, "{name}");
        }
    }
}
