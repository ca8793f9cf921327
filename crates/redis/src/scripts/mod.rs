//! The Lua scripts that decide in Redis: the calls that apply actions, with keys and arguments, and the outcomes in their replies.
//!
//! The script of an algorithm decides in Redis as [`divvy_core::algorithm`] does for the other stores, to the nanosecond. It
//! uses times from clients, or Redis's clock. The clocks of two divvy servers may differ, and a bucket that used both
//! would grant the difference again and again.
//!
//! The script for a rule's fixed window takes the steps of Divvy 1.7.1. A hit on an absent window sets it to the rest
//! of the limit, with the window's length as its time to live. A hit on a window with enough credits decreases them.
//! Any other hit is denied, and changes nothing. Redis's clock ends the window. The script ignores the times of
//! actions.
//!
//! Nanoseconds since 1970 are more than 2^53, and Lua's numbers are doubles, which are exact only below that. So
//! `lua/numbers.lua` calculates with whole numbers of any size. Numbers are sent as decimal text, so that MONITOR and GET show
//! readable values.
//!
//! The texts of the scripts are made from the files in `lua/`. Each begins with a preamble of constants, so that the scripts and
//! [`divvy_core::algorithm`] use the same numbers. Each has a `mode` (`lua/frames.lua`): a script of one bucket always applies, and the
//! script of groups passes the mode to the function of each bucket.
//!
//! A batch is divided into calls: without groups, by bucket; with groups, all actions are one call, or one for each slot of a cluster.

pub mod exceptions;
pub mod names;

use std::sync::LazyLock;

use hashbrown::HashMap;
use redis::cluster_routing::Slot;

use self::names::RESERVED;
use super::topology::Layout;
use super::wire::{Call, Failure, Reply, Script};
use divvy_core::algorithm::groups::{MAX_GROUPS, PARTS_OF_TTL, SHORTEST_STEP_MS};
use divvy_core::algorithm::record::REMEMBERED_NS;
use divvy_core::algorithm::{
    Ask, CountBasis, Counter, Expiry, Limit, MAX_LOG_CREDITS, Outcome, OutcomeSource, ReservationAsk, Resolution, Run,
    SHORTEST_SHARE_NS, run_of,
};
use divvy_core::calendar::Calendar;
use divvy_core::clock::{MAX_STANDSTILL_NS, NANOS_PER_MILLI, Timestamp};
use divvy_store::{Action, Batch, Entry, Unit, generation, record_key};

/// Maximum number of actions in a call of the script of groups. Redis does nothing else during a call.
const MAX_TOGETHER: usize = 128;

/// The actions of one call.
#[derive(Default)]
pub struct CallPlan {
    /// The buckets, each with its actions. With steps, each has one action, and a bucket may occur several times.
    pub buckets: Vec<BucketActions>,
    /// The number of buckets in each step. Empty if there is one bucket, whose own script applies its actions. Otherwise the
    /// script of groups applies the steps in order; the actions of a step take effect together.
    pub steps: Vec<usize>,
    /// Whether another call on these buckets follows, which must not overtake this one because Redis has forgotten the script.
    pub has_successor: bool,
}

impl CallPlan {
    fn of_bucket(actions: BucketActions) -> Self {
        Self { buckets: vec![actions], ..Self::default() }
    }

    /// Returns the indexes of the actions in the batch.
    pub fn indices(&self) -> impl Iterator<Item = usize> {
        self.buckets.iter().flat_map(|actions| actions.indices.iter().copied())
    }
}

/// Actions on one bucket.
#[derive(Clone)]
pub struct BucketActions {
    /// The bucket's key in Redis.
    pub key: Vec<u8>,
    pub limit: Limit,
    /// The indexes of the actions in the batch, in ascending order. There is at least one.
    pub indices: Vec<usize>,
    /// The name of each action's record, if it has one.
    pub records: Vec<Vec<u8>>,
    /// Whether the key holds a rule's fixed window, as the original Divvy stores it. Otherwise it holds an algorithm's state.
    pub is_window: bool,
}

impl BucketActions {
    fn of_entry(index: usize, entry_key: &[u8], entry: &Entry) -> Self {
        let (bucket, records) = match names::record(entry.action, entry_key) {
            Some(record) => (record_key::bucket(entry_key), vec![record]),
            None => (entry_key, Vec::new()),
        };
        let window = names::window(bucket, &entry.limit);
        let is_window = window.is_some();
        let key = window.unwrap_or_else(|| names::other(bucket, &entry.limit));
        Self { key, limit: entry.limit, indices: vec![index], records, is_window }
    }

    pub fn entries<'a>(&'a self, batch: &'a Batch) -> impl Iterator<Item = &'a Entry> {
        self.indices.iter().filter_map(|index| batch.entries.get(*index))
    }
}

/// Actions that take effect together, each on another bucket.
type Step = Vec<BucketActions>;

/// Returns the calls of a batch. No two of them touch the same bucket, except the parts of a call for very many actions.
pub fn plan_calls(batch: &Batch, layout: Layout) -> Vec<CallPlan> {
    // Fast path: most batches that are not pipelined have one action.
    if let [entry] = batch.entries.as_slice() {
        return vec![CallPlan::of_bucket(BucketActions::of_entry(0, entry.key_in(&batch.keys), entry))];
    }
    let without_groups = if batch.groups.is_empty() { by_bucket(batch.units(0).flat_map(step)) } else { None };
    let plan_set = |steps: Vec<Step>| {
        let are_single = steps.iter().all(|step| step.len() == 1);
        let by_bucket = if are_single { by_bucket(steps.iter().flatten().cloned()) } else { None };
        by_bucket.unwrap_or_else(|| in_parts(steps))
    };
    without_groups.unwrap_or_else(|| sets(batch, layout).into_iter().flat_map(plan_set).collect())
}

fn step(unit: Unit<'_>) -> Step {
    unit.members().map(|(index, key, entry)| BucketActions::of_entry(index, key, entry)).collect()
}

/// Returns the steps of a unit, usually one. A reservation that a cluster keeps in several slots is settled in a step
/// for each bucket, because no call reaches all of them.
fn steps(unit: Unit<'_>, layout: Layout) -> Vec<Step> {
    let step = step(unit);
    let settles = unit.entries.iter().all(|entry| entry.action.settles_reservation());
    if layout == Layout::Cluster && settles && is_torn(&step) {
        return step.into_iter().map(|member| vec![member]).collect();
    }
    vec![step]
}

/// Returns whether a cluster keeps the buckets in several slots.
fn is_torn(step: &[BucketActions]) -> bool {
    step.windows(2).any(|two| matches!(two, [one, next] if Slot::for_key(&one.key) != Slot::for_key(&next.key)))
}

/// Returns a call for each bucket, in the order of their first actions. Returns `None` if there are actions on a bucket
/// under two limits, because a script call has only one limit.
fn by_bucket(actions: impl Iterator<Item = BucketActions>) -> Option<Vec<CallPlan>> {
    let mut buckets: Vec<BucketActions> = Vec::new();
    let mut places: HashMap<Vec<u8>, usize, foldhash::fast::RandomState> = HashMap::default();
    for new in actions {
        match places.get(&new.key).and_then(|place| buckets.get_mut(*place)) {
            Some(known) if known.limit != new.limit => return None,
            Some(known) => {
                known.indices.extend(new.indices);
                known.records.extend(new.records);
            }
            None => {
                places.insert(new.key.clone(), buckets.len());
                buckets.push(new);
            }
        }
    }
    Some(buckets.into_iter().map(CallPlan::of_bucket).collect())
}

/// Returns the batch's steps in sets without common buckets: all in one or, in a cluster, a set for each slot, because a call reaches
/// the keys of one slot. A step that no call can apply is a set of its own.
fn sets(batch: &Batch, layout: Layout) -> Vec<Vec<Step>> {
    let steps = batch.units(0).flat_map(|unit| steps(unit, layout));
    if layout == Layout::OneServer {
        return vec![steps.collect()];
    }
    let mut sets: HashMap<Slot, Vec<Step>, foldhash::fast::RandomState> = HashMap::default();
    let (torn, whole): (Vec<_>, Vec<_>) = steps.partition(|step| is_torn(step));
    for step in whole {
        let slot = Slot::for_key(step.first().map_or(&[][..], |member| &member.key));
        sets.entry(slot).or_default().push(step);
    }
    sets.into_values().chain(torn.into_iter().map(|step| vec![step])).collect()
}

/// Returns the steps in one call, or in several if they have too many actions.
fn in_parts(steps: Vec<Step>) -> Vec<CallPlan> {
    let mut parts: Vec<CallPlan> = Vec::new();
    for step in steps {
        let last = parts.pop_if(|last| last.buckets.len() + step.len() <= MAX_TOGETHER);
        let mut part = last.unwrap_or_else(|| {
            parts.iter_mut().for_each(|full| full.has_successor = true);
            CallPlan::default()
        });
        part.steps.push(step.len());
        part.buckets.extend(step);
        parts.push(part);
    }
    parts
}

/// Returns the call that applies the actions, and takes the keys of their buckets.
pub fn make_call(batch: &Batch, plan: &mut CallPlan, layout: Layout) -> Call {
    if let ([], [actions]) = (plan.steps.as_slice(), plan.buckets.as_mut_slice()) {
        return bucket_call(batch, actions, layout);
    }
    let (mut keys, mut arguments) = (Vec::new(), Vec::new());
    let mut buckets = plan.buckets.iter_mut();
    for members in &plan.steps {
        arguments.push(members.to_string().into());
        for actions in buckets.by_ref().take(*members) {
            let member = bucket_call(batch, actions, layout);
            arguments.extend(member.script.map(|script| script.name.into()));
            arguments.extend([member.keys.len(), member.arguments.len()].map(|count| count.to_string().into()));
            arguments.extend(member.arguments);
            keys.extend(member.keys);
        }
    }
    Call { brings_text: plan.has_successor, ..Call::script(&GROUP, keys, arguments, plan.buckets.len()) }
}

/// Returns the call that applies actions on one bucket, and takes the bucket's key.
fn bucket_call(batch: &Batch, actions: &mut BucketActions, layout: Layout) -> Call {
    let first_at = actions.entries(batch).next().map_or(batch.now(), |entry| entry.at);
    let texts = actions.entries(batch).map(|entry| {
        let at = batch.brought_time(entry).filter(|_| !actions.is_window).map(|at| at.as_nanos().to_string());
        action_text(entry.action, at.as_deref().unwrap_or(NOW))
    });
    let numbers = numbers(actions, first_at);
    let mut arguments: Vec<_> = std::iter::once(numbers).chain(texts).map(String::into_bytes).collect();
    let script = if actions.is_window { &*WINDOW } else { bucket_script(&actions.limit) };
    let keys = names::keys(std::mem::take(&mut actions.key), &actions.records, layout, &mut arguments);
    Call::script(script, keys, arguments, actions.indices.len())
}

/// Reads the outcome of each action from the reply.
pub fn read_outcomes(batch: &Batch, plan: &CallPlan, reply: &Reply) -> Result<Vec<Result<Outcome, Failure>>, Failure> {
    let entries = plan.buckets.iter().flat_map(|actions| actions.entries(batch));
    let texts = reply.texts().filter(|texts| texts.len() == plan.indices().count());
    let read = |(entry, text): (&Entry, _)| match text {
        Ok(text) => read_outcome(entry, text).map(Ok),
        Err(error) => Some(Err(Failure::from(error))),
    };
    let outcomes = texts.and_then(|texts| entries.zip(texts).map(read).collect());
    outcomes.ok_or(Failure::Foreign("a script's reply does not have one outcome for each action"))
}

/// The argument that stands for Redis's own time.
const NOW: &str = "now";

/// Returns the limit's numbers as the algorithm's script reads them. Two more numbers may follow: the basis of the
/// counters, if they do not count down from the limit's own credits, and the slowest refill, if it belongs to another
/// limit on the same counters.
fn numbers(BucketActions { limit, is_window, .. }: &BucketActions, at: Timestamp) -> String {
    let capacity = limit.capacity();
    let mut numbers = match (limit, limit.rate()) {
        (Limit::CalendarWindow(limit), _) => {
            // The script selects a window by Redis's clock, which may be behind this process's clock or ahead of it.
            let windows = Calendar::of(limit.calendar).map(|calendar| calendar.windows(at));
            let [present, next] = windows.unwrap_or_default();
            let [starts, ends, next] = [present.starts, present.ends, next.ends].map(Timestamp::as_nanos);
            format!("{capacity} {starts} {ends} {next}")
        }
        (Limit::TokenBucket(_) | Limit::LeakyBucket(_), Some((credits, time_ns))) => {
            format!("{capacity} {credits} {time_ns}")
        }
        (Limit::Counter(limit), _) => return counter_numbers(limit),
        // Redis's shortest unit is a millisecond.
        (_, Some((_, window_ns))) if *is_window => format!("{capacity} {}", window_ns.div_ceil(NANOS_PER_MILLI)),
        (_, Some((_, window_ns))) => format!("{capacity} {window_ns}"),
        // Each ask of a concurrency limit has the TTL of its lease.
        (_, None) => format!("{capacity} 0"),
    };
    match limit.chosen_count_basis() {
        None => {}
        Some(CountBasis::LeftOf(credits)) if credits.get() == capacity => {}
        Some(CountBasis::LeftOf(credits)) => numbers.push_str(&format!(" of {credits}")),
        Some(CountBasis::Used) => numbers.push_str(" used"),
    }
    let (slowest, refill, replaced) = match limit {
        Limit::TokenBucket(limit) => (limit.slowest, limit.refill, limit.in_place_of),
        Limit::LeakyBucket(limit) => (limit.slowest, limit.count, limit.in_place_of),
        _ => return numbers,
    };
    if slowest < refill {
        numbers.push_str(&format!(" slowest {slowest}"));
    }
    if let Some(capacity) = replaced {
        numbers.push_str(&format!(" replaces {capacity}"));
    }
    numbers
}

/// Returns a counter's bounds, each plus [`ZERO`], and the effect on its expiry.
fn counter_numbers(Counter { lower, upper, saturates, expiry, keeps_expiry }: &Counter) -> String {
    let [lower, upper] = [*lower, *upper].map(|bound| ZERO.saturating_add_signed(bound.into()));
    let expiry = match expiry {
        Expiry::Keep => String::new(),
        Expiry::After(nanos) => format!(" {nanos} after"),
        Expiry::At(time) => format!(" {}", time.as_nanos()),
    };
    let word = |is_set, word| if is_set { word } else { "" };
    format!("{lower} {upper}{expiry}{}{}", word(*keeps_expiry, " keep"), word(*saturates, " saturate"))
}

/// Returns the action as an argument of the scripts. `at` is its time.
fn action_text(action: Action, at: &str) -> String {
    match action {
        Action::Ask(ask) => ask_text(ask, at),
        Action::Forget => format!("forget 0 {at}"),
        Action::Idempotent { ask, fingerprint } => format!("{} once {fingerprint}", ask_text(ask, at)),
        Action::Reservation(ask) => reservation_text(ask, at, generation()),
    }
}

fn ask_text(ask: Ask, at: &str) -> String {
    let (name, cost) = match ask {
        Ask::Look { cost } => ("look", cost),
        Ask::Show => ("show", 0),
        Ask::Take { cost } => ("take", cost),
        Ask::Overdraw { cost } => ("overdraw", cost),
        Ask::Count { cost } => ("count", cost),
        Ask::Charge { cost } => ("charge", cost),
        Ask::Tally { cost } => ("tally", cost),
        Ask::Refund { cost } => ("refund", cost),
        Ask::Drain { cost, strict: false } => ("drain", cost),
        Ask::Drain { cost, strict: true } => ("strict", cost),
        Ask::Replay { cost, strict: false } => ("replay", cost),
        Ask::Replay { cost, strict: true } => ("strictreplay", cost),
        Ask::Add { by } => (if by < 0 { "subtract" } else { "add" }, by.unsigned_abs()),
        Ask::Share { cost, extra, parts } => return format!("share {cost} {at} {extra} {parts}"),
        Ask::Return { credits, until } => return format!("return {credits} {at} {}", until.as_nanos()),
    };
    format!("{name} {cost} {at}")
}

/// Returns the ask as an argument of the scripts. `at` is its time.
fn reservation_text(ask: ReservationAsk, at: &str, generation: u64) -> String {
    // 0 stands for whichever reservation has the name.
    let run = ask.run().map_or(0, Run::get);
    match ask {
        ReservationAsk::Reserve { credits, ttl_seconds } => {
            format!("reserve {credits} {at} {ttl_seconds} {generation} {run}", run = run_of(generation))
        }
        ReservationAsk::Commit { cost, charges: true, .. } => format!("commit {cost} {at} {run} late"),
        ReservationAsk::Commit { cost, charges: false, .. } => format!("commit {cost} {at} {run}"),
        ReservationAsk::Release { .. } => format!("release 0 {at} {run}"),
        // A TTL is never 0, so 0 can stand for the original TTL.
        ReservationAsk::Renew { ttl_seconds, .. } => format!("renew {} {at} {run}", ttl_seconds.unwrap_or(0)),
    }
}

/// Reads the outcome of the entry: `allowed before balance reset_ns retry_ns session`. `-` stands for no retry and no session. If
/// the entry has a record, its resolution may follow, and the run of a reservation that was made or found.
fn read_outcome(entry: &Entry, text: &str) -> Option<Outcome> {
    let mut words = text.split(' ');
    let (allowed, before, balance) = (words.next()?, words.next()?, words.next()?);
    let owed = balance.strip_prefix('-');
    // `parse` would also accept a sign.
    let number = |word: &str| word.parse().ok().filter(|_| !word.starts_with('+'));
    let optional = |word| if word == "-" { Some(None) } else { number(word).map(Some) };
    let outcome = Outcome {
        allowed: match allowed {
            "1" => true,
            "0" => false,
            _ => return None,
        },
        before: number(before)?,
        left: if owed.is_some() { 0 } else { number(balance)? },
        owed: owed.map_or(Some(0), number)?,
        reset_ns: number(words.next()?)?,
        retry_ns: optional(words.next()?)?,
        session: Timestamp::from_nanos(optional(words.next()?)?.unwrap_or(0)),
        resolution: match words.next() {
            Some(_) if !entry.action.has_record() => return None,
            None | Some("done") => Resolution::Done,
            Some("late") => Resolution::Late,
            Some("repeated") => Resolution::Repeated,
            Some("gone") => Resolution::Gone,
            Some("different") => Resolution::Different,
            Some(_) => return None,
        },
        run: match words.next() {
            Some(word) => Some(word.parse::<Run>().ok().filter(|_| !word.starts_with('+'))?),
            None => None,
        },
        source: OutcomeSource::Store,
    };
    words.next().is_none().then_some(outcome)
}

/// Redis keeps a bucket for this time after it is equivalent to a fresh one, because the next ask may have a time that
/// is this far behind.
const GRACE_NS: u64 = MAX_STANDSTILL_NS;
/// Maximum credits that a rule's fixed window may owe. The sum of this and a limit's credits is exact in Lua's doubles.
const MAX_OWED: u64 = 1 << 52;
/// How much the end of a window may differ between two calls, because Redis rounds to milliseconds.
const END_TOLERANCE_NS: u64 = 10 * NANOS_PER_MILLI;
/// The number that stands for a counter's value of 0, because the numbers in the scripts are never negative. Even the difference
/// of two values of 64 bits is above 0 then.
const ZERO: u128 = 1 << 64;

/// First line of a script that applies all of its actions.
const APPLY: &str = "local mode, is_next_run = 'apply', false\n";
const NUMBERS: &str = include_str!("lua/numbers.lua");
const RECORDS: &str = include_str!("lua/records.lua");
const ALGORITHMS: &str = include_str!("lua/algorithms.lua");
const FRAMES: &str = include_str!("lua/frames.lua");

/// The names of the scripts, each also the section with its algorithm.
const BUCKETS: [&str; 8] = [
    "calendar-window",
    "fixed-window",
    "sliding-window",
    "sliding-log",
    "token-bucket",
    "leaky-bucket",
    "concurrency",
    "counter",
];
const WINDOW_NAME: &str = "window";

static SCRIPTS: LazyLock<[Script; 8]> = LazyLock::new(|| {
    let decision = section(FRAMES, "decision");
    BUCKETS.map(|name| Script::new(name, [&preamble(), APPLY, NUMBERS, decision, &bucket_text(name)].concat()))
});

/// The script for a rule's fixed window.
static WINDOW: LazyLock<Script> = LazyLock::new(|| Script::new(WINDOW_NAME, window_script()));

/// The script for groups.
static GROUP: LazyLock<Script> = LazyLock::new(|| Script::new("group", group_text()));

/// Returns the script for buckets with such a limit.
fn bucket_script(limit: &Limit) -> &'static Script {
    let [calendar_window, fixed_window, sliding_window, sliding_log, token_bucket, leaky_bucket, concurrency, counter] =
        &*SCRIPTS;
    match limit {
        Limit::CalendarWindow(_) => calendar_window,
        Limit::FixedWindow(_) => fixed_window,
        Limit::SlidingWindow(_) => sliding_window,
        Limit::SlidingLog(_) => sliding_log,
        Limit::TokenBucket(_) => token_bucket,
        Limit::LeakyBucket(_) => leaky_bucket,
        Limit::Concurrency(_) => concurrency,
        Limit::Counter(_) => counter,
    }
}

/// Returns a section of a file. A line with four hyphens and its name comes before it.
pub fn section(file: &'static str, name: &str) -> &'static str {
    let (_, begun) = file.split_once(&format!("---- {name}\n")).unwrap_or_default();
    begun.split("\n---- ").next().unwrap_or_default()
}

/// Returns the text of the script for a rule's fixed window.
///
/// `KEYS[1]` is the window's name. The other keys and all arguments are described in `lua/frames.lua`.
pub fn window_script() -> String {
    [&preamble(), APPLY, section(FRAMES, "decision"), &window_text(NUMBERS)].concat()
}

/// Returns the text of the script for groups: the others as functions, and the steps that call them.
fn group_text() -> String {
    let function = |name: &str, body: String| {
        format!("buckets['{name}'] = function(KEYS, ARGV, mode, is_next_run)\n{body}\nend\n")
    };
    let functions: String = BUCKETS.iter().map(|name| function(name, bucket_text(name))).collect();
    [
        &preamble(),
        NUMBERS,
        section(FRAMES, "decision"),
        "local buckets = {}\n",
        &function(WINDOW_NAME, window_text("")),
        &functions,
        section(FRAMES, "group"),
    ]
    .concat()
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
        ("SHORTEST_SHARE_NS", SHORTEST_SHARE_NS),
        ("END_TOLERANCE_NS", END_TOLERANCE_NS),
        ("LAST_MS", Timestamp::MAX.as_nanos().div_ceil(NANOS_PER_MILLI)),
        ("MAX_LOG_CREDITS", MAX_LOG_CREDITS),
        ("MAX_OWED", MAX_OWED),
    ];
    let numbers = numbers.into_iter().map(|(name, number)| format!("local {name} = {number}\n"));
    numbers.chain([format!("local RESERVED, ZERO_TEXT = '{RESERVED}', '{ZERO}'\n")]).collect()
}

/// Returns the part of a script that depends on the algorithm.
fn bucket_text(algorithm: &str) -> String {
    // These two change some functions of the fixed window.
    let is_window = matches!(algorithm, "calendar-window" | "rule-window");
    let base = if is_window { section(ALGORITHMS, "fixed-window") } else { "" };
    let frame = |name| section(FRAMES, name);
    let algorithm = section(ALGORITHMS, algorithm);
    [frame("decide"), base, algorithm, frame("stored"), RECORDS, frame("apply")].concat()
}

/// Returns the window's script without the constants. `before_bucket` precedes the functions for a window that is
/// decided as a bucket.
fn window_text(before_bucket: &str) -> String {
    [
        section(FRAMES, "window_stored"),
        // A hit on a window without reservations creates none of these functions.
        "if is_bucket then\nreturn (function(damaged)\n",
        before_bucket,
        &bucket_text("rule-window"),
        "\nend)(refusal)\nend\n",
        section(FRAMES, "window_apply"),
    ]
    .concat()
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod call_tests {
    use super::*;
    use divvy_core::algorithm::ReservationAsk;
    use divvy_core::clock::Timestamp;
    use divvy_store::testing::{TAKE, window};

    /// Returns the indices of each call's actions, and whether the call is for groups.
    fn planned(batch: &Batch, layout: Layout) -> Vec<(Vec<usize>, bool)> {
        let plans = plan_calls(batch, layout);
        plans.iter().map(|plan| (plan.indices().collect(), !plan.steps.is_empty())).collect()
    }

    /// Returns the calls for units of one-letter buckets.
    fn calls(units: &[&str], layout: Layout) -> Vec<(Vec<usize>, bool)> {
        let mut batch = Batch::default();
        for unit in units {
            let first = batch.len();
            for bucket in unit.bytes() {
                batch.push(window(1, 1), TAKE, Timestamp::EPOCH, |key| key.push(bucket));
            }
            batch.group(first);
        }
        planned(&batch, layout)
    }

    #[test]
    fn each_bucket_has_a_call_if_there_are_no_groups() {
        assert_eq!(calls(&["a"], Layout::Cluster), [(vec![0], false)]);
        assert_eq!(calls(&["a", "b", "a"], Layout::Cluster), [(vec![0, 2], false), (vec![1], false)]);
    }

    #[test]
    fn actions_of_a_batch_with_groups_are_one_call_for_each_slot() {
        assert_eq!(calls(&["a", "ab", "c", "b", "c"], Layout::OneServer), [(vec![0, 1, 2, 3, 4, 5], true)]);
        let mut calls = calls(&["c", "aa", "c", "a"], Layout::Cluster);
        calls.sort_unstable();
        assert_eq!(calls, [(vec![0, 3], false), (vec![1, 2, 4], true)]);
    }

    #[test]
    fn actions_on_a_bucket_under_two_limits_are_steps() {
        let mut batch = Batch::default();
        for (bucket, credits) in [(b'a', 1), (b'b', 1), (b'a', 2), (b'a', 1), (b'b', 1)] {
            let limit = window(credits, 1).counting(window(1, 1).count_basis());
            batch.push(limit, TAKE, Timestamp::EPOCH, |key| key.push(bucket));
        }
        assert_eq!(planned(&batch, Layout::OneServer), [(vec![0, 1, 2, 3, 4], true)]);
    }

    #[test]
    fn reservation_in_several_slots_of_a_cluster_is_settled_bucket_by_bucket() {
        let mut batch = Batch::default();
        for bucket in [b"{a}1", b"{a}2", b"{b}3"] {
            batch.push_reservation(ReservationAsk::Release { run: None }, b"id", |key| {
                key.extend_from_slice(bucket);
                Some(window(1, 1))
            });
        }
        batch.group(0);
        let calls = |batch: &Batch, layout| {
            let mut calls: Vec<_> = planned(batch, layout).into_iter().map(|(call, _)| call).collect();
            calls.sort_unstable();
            calls
        };
        assert_eq!(calls(&batch, Layout::OneServer), [vec![0, 1, 2]]);
        assert_eq!(calls(&batch, Layout::Cluster), [vec![0], vec![1], vec![2]]);
        batch.truncate(2);
        batch.group(0);
        assert_eq!(calls(&batch, Layout::Cluster), [vec![0, 1]]);
    }

    #[test]
    fn every_part_but_the_last_has_a_successor() {
        let entry = Entry::new(0..0, window(1, 1), TAKE, Timestamp::EPOCH);
        let step = |index| [b"a", b"b"].map(|key| BucketActions::of_entry(index, key, &entry)).into();
        let parts = in_parts((0..200).map(step).collect());
        let parts: Vec<_> = parts.iter().map(|part| (part.steps.len(), part.has_successor)).collect();
        assert_eq!(parts, [(64, true), (64, true), (64, true), (8, false)]);
    }
}
