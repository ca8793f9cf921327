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

pub mod call_plan;
pub mod exceptions;
pub mod names;
pub mod texts;

use self::call_plan::{BucketActions, CallPlan};
use self::texts::{GROUP, WINDOW, bucket_script};
use super::topology::Layout;
use super::wire::{Call, Failure, Reply};
use divvy_core::algorithm::{
    Ask, CalendarId, CountBasis, Limit, Outcome, OutcomeSource, ReservationAsk, Resolution, Run, run_of,
};
use divvy_core::calendar::Calendar;
use divvy_core::clock::{NANOS_PER_MILLI, Timestamp};
use divvy_store::{Action, Batch, Entry, generation};

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
    let mut arguments = bucket_arguments(batch, actions);
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

/// Returns the arguments for actions on the bucket.
fn bucket_arguments(batch: &Batch, actions: &BucketActions) -> Vec<Vec<u8>> {
    let first_at = actions.entries(batch).next().map_or(batch.now(), |entry| entry.at);
    let texts = actions.entries(batch).map(|entry| {
        let at = batch.brought_time(entry).filter(|_| !actions.is_window).map(|at| at.as_nanos().to_string());
        action_text(entry.action, at.as_deref().unwrap_or(NOW))
    });
    std::iter::once(numbers(actions, first_at)).chain(texts).map(String::into_bytes).collect()
}

/// Returns the limit's numbers as the algorithm's script reads them. Two more numbers may follow: the basis of the
/// counters, if they do not count down from the limit's own credits, and the slowest refill, if it belongs to another
/// limit on the same counters.
fn numbers(BucketActions { limit, is_window, .. }: &BucketActions, at: Timestamp) -> String {
    let capacity = limit.capacity();
    let mut numbers = match (limit, limit.rate()) {
        (Limit::CalendarWindow(limit), _) => {
            let [starts, ends, next] = boundaries(limit.calendar, at).map(Timestamp::as_nanos);
            format!("{capacity} {starts} {ends} {next}")
        }
        (Limit::TokenBucket(_) | Limit::LeakyBucket(_), Some((credits, time_ns))) => {
            format!("{capacity} {credits} {time_ns}")
        }
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

/// Returns the beginning and the end of the window at that time, and the end of the next window. The script selects a
/// window by Redis's clock, which may be behind this process's clock or ahead of it.
fn boundaries(calendar: CalendarId, at: Timestamp) -> [Timestamp; 3] {
    let [present, next] = Calendar::of(calendar).map(|calendar| calendar.windows(at)).unwrap_or_default();
    [present.starts, present.ends, next.ends]
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
        Ask::Refund { cost } => ("refund", cost),
        Ask::Drain { cost, strict: false } => ("drain", cost),
        Ask::Drain { cost, strict: true } => ("strict", cost),
        Ask::Replay { cost, strict: false } => ("replay", cost),
        Ask::Replay { cost, strict: true } => ("strictreplay", cost),
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

/// Reads a resolution as the scripts write it.
fn resolution(word: &str) -> Option<Resolution> {
    Some(match word {
        "done" => Resolution::Done,
        "late" => Resolution::Late,
        "repeated" => Resolution::Repeated,
        "gone" => Resolution::Gone,
        "different" => Resolution::Different,
        _ => return None,
    })
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
            Some(word) if entry.action.has_record() => resolution(word)?,
            Some(_) => return None,
            None => Resolution::Done,
        },
        run: match words.next() {
            Some(word) => Some(word.parse::<Run>().ok().filter(|_| !word.starts_with('+'))?),
            None => None,
        },
        source: OutcomeSource::Store,
    };
    words.next().is_none().then_some(outcome)
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod bucket_tests {
    use super::*;
    use crate::scripts::call_plan::{CallPlan, plan_calls};
    use crate::scripts::{make_call, read_outcomes};
    use crate::topology::Layout;
    use crate::wire::Reply;
    use divvy_core::algorithm::{FixedWindow, LeakyBucket, SlidingLog};
    use divvy_store::key::{Prefix, Space};

    fn plan(limit: Limit) -> (Batch, CallPlan) {
        let mut batch = Batch::default();
        let drain = Action::Ask(Ask::Drain { cost: 3, strict: true });
        for (action, at) in [(drain, Timestamp::MAX), (Action::Forget, batch.now())] {
            batch.push(limit, action, at, |key| key.push(b'a'));
        }
        let plan = plan_calls(&batch, Layout::OneServer).remove(0);
        (batch, plan)
    }

    #[test]
    fn arguments_are_decimals() {
        let arguments = |limit| {
            let (batch, mut plan) = plan(limit);
            let call = make_call(&batch, &mut plan, Layout::OneServer);
            call.arguments.into_iter().map(|argument| String::from_utf8(argument).unwrap()).collect::<Vec<_>>()
        };
        let (drain, forget) = ("strict 3 18446744073709551615", "forget 0 now");
        let leaky = Limit::LeakyBucket(LeakyBucket::new(9, 4, 70).unwrap());
        assert_eq!(arguments(leaky), ["9 4 70", drain, forget]);
        let log = Limit::SlidingLog(SlidingLog::new(9, 70).unwrap());
        assert_eq!(arguments(log), ["9 70", drain, forget]);
    }

    #[test]
    fn window_of_a_rule_has_whole_milliseconds_and_the_time_of_redis() {
        let limit = Limit::FixedWindow(FixedWindow::new(5, 1_500_001).unwrap());
        let prefix = Prefix::new(Space::Rule, [("a", "b")], &limit);
        let mut batch = Batch::default();
        let take = Action::Ask(Ask::Take { cost: 1 });
        batch.push(limit, take, Timestamp::MAX, |key| prefix.write_key("x", key));
        let mut plan = plan_calls(&batch, Layout::OneServer).remove(0);
        let call = make_call(&batch, &mut plan, Layout::OneServer);
        assert_eq!(call.arguments, [b"5 2".to_vec(), b"take 1 now".to_vec()]);
    }

    #[test]
    fn reply_without_an_outcome_for_each_action_is_foreign() {
        let (batch, plan) = plan(Limit::LeakyBucket(LeakyBucket::new(9, 4, 70).unwrap()));
        let read = |texts: &[&str]| {
            let outcomes = read_outcomes(&batch, &plan, &Reply::of_texts(texts))?;
            outcomes.into_iter().collect::<Result<Vec<_>, _>>()
        };
        let taken = Outcome {
            allowed: true,
            before: 9,
            left: 6,
            owed: 0,
            reset_ns: 50,
            retry_ns: None,
            session: Timestamp::from_nanos(7),
            run: None,
            resolution: Resolution::Done,
            source: OutcomeSource::Store,
        };
        assert_eq!(read(&["1 9 6 50 - 7", "0 0 0 0 - -"]).unwrap(), [taken, Outcome::default()]);
        let foreign: [&[&str]; 4] =
            [&[], &["1 9 6 50 - 7"], &["1 9 6 50 - 7", "1 9 6"], &["1 9 6 50 - 7", "1 9 - 0 - -"]];
        for texts in foreign {
            assert!(read(texts).is_err(), "{texts:?}");
        }
    }
}
