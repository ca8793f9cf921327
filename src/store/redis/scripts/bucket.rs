//! Every bucket but a rule's fixed window: one script an algorithm, which decides in Redis what [`crate::algorithm`]
//! decides for the other stores, to the nanosecond, by the times that clients bring, else by Redis's clock: that of one
//! divvy may differ from another's, and a bucket that went by both would give out the difference again and again.
//!
//! Lua's numbers are doubles, exact below 2^53, and nanoseconds since 1970 are more: `lua/numbers.lua` calculates with
//! whole numbers of any size. Numbers travel as decimal text, so that MONITOR and GET show readable values.

use super::call_plan::{Actions, FORGET, words};
use super::records;
use super::script_text::bucket_script;
use crate::algorithm::{CalendarId, Fate, Limit, Outcome, Tally};
use crate::calendar::Calendar;
use crate::clock::Timestamp;
use crate::store::contract::{Action, Batch, Entry, generation};
use crate::store::redis::topology::Layout;
use crate::store::redis::wire::{Arguments, Call, Elements};

/// Stands for Redis's own time.
pub const NOW: &str = "now";

/// The call that applies the actions to their bucket; it takes their key.
pub fn call(batch: &Batch, asked: &mut Actions, layout: Layout) -> Call {
    let mut arguments = Arguments::with_capacity(1 + asked.indices.len());
    let at = asked.entries(batch).next().map_or(batch.now(), |entry| entry.at);
    arguments.push(&numbers(&asked.limit, at));
    for entry in asked.entries(batch) {
        arguments.push(&action(batch, entry));
    }
    let tag = records::tag(&asked.key, &asked.records, layout);
    tag.iter().for_each(|tag| arguments.push(tag));
    let other_keys = records::other_keys(&asked.key, &asked.records, layout);
    let (key, actions) = (std::mem::take(&mut asked.key), asked.indices.len());
    Call::Script { script: bucket_script(&asked.limit), brings_text: false, key, other_keys, arguments, actions }
}

/// The limit's numbers, in the order in which the algorithm's script reads them, and what its counters count, where that is
/// not what is left of its own credits, and the slowest refill of all limits on them, where that is another one's.
fn numbers(limit: &Limit, at: Timestamp) -> String {
    let capacity = limit.capacity();
    let mut numbers = match (limit, limit.rate()) {
        (Limit::CalendarWindow(limit), _) => {
            let [starts, ends, next] = boundaries(limit.calendar, at).map(Timestamp::as_nanos);
            format!("{capacity} {starts} {ends} {next}")
        }
        (Limit::TokenBucket(_) | Limit::LeakyBucket(_), Some((credits, time_ns))) => {
            format!("{capacity} {credits} {time_ns}")
        }
        (_, Some((_, window_ns))) => format!("{capacity} {window_ns}"),
        // Each ask says how long a lease lasts.
        (_, None) => format!("{capacity} 0"),
    };
    match (limit, limit.tally()) {
        (Limit::SlidingWindow(_) | Limit::SlidingLog(_) | Limit::LeakyBucket(_) | Limit::Concurrency(_), _) => {}
        (_, Tally::LeftOf(credits)) if credits.get() == capacity => {}
        (_, Tally::LeftOf(credits)) => numbers.push_str(&format!(" of {credits}")),
        (_, Tally::Used) => numbers.push_str(" used"),
    }
    let slowest = match limit {
        Limit::TokenBucket(limit) => Some(limit.slowest).filter(|slowest| *slowest < limit.refill),
        Limit::LeakyBucket(limit) => Some(limit.slowest).filter(|slowest| *slowest < limit.count),
        _ => None,
    };
    if let Some(slowest) = slowest {
        numbers.push_str(&format!(" slowest {slowest}"));
    }
    numbers
}

/// Where the window at that time begins and ends, and where the next one does: the script chooses by Redis's clock, which may be
/// behind this process's, or ahead.
fn boundaries(calendar: CalendarId, at: Timestamp) -> [Timestamp; 3] {
    let [present, next] = Calendar::of(calendar).map(|calendar| calendar.windows(at)).unwrap_or_default();
    [present.starts, present.ends, next.ends]
}

fn action(batch: &Batch, entry: &Entry) -> String {
    let at = batch.brought_time(entry).map(|at| at.as_nanos().to_string());
    let at = at.as_deref().unwrap_or(NOW);
    text(entry.action, at)
}

/// What the scripts call the action; `at` is its time as they read it.
pub fn text(action: Action, at: &str) -> String {
    let ((name, cost), once) = match action {
        Action::Ask(ask) => (words(ask), String::new()),
        Action::Forget => (FORGET, String::new()),
        Action::Idempotent { ask, fingerprint } => (words(ask), records::once(fingerprint)),
        Action::Reservation(ask) => return records::text(ask, at, generation()),
    };
    format!("{name} {cost} {at}{once}")
}

/// Reads the outcome of the next action, which is the entry's, from the script's reply.
pub fn outcome(entry: &Entry, reply: &mut Elements<'_>) -> Option<Outcome> {
    read(reply.text()?, entry.action.has_record())
}

/// Reads `allowed before balance reset_ns retry_ns session`. `-` stands for no retry and no session. The fate of an ask with a
/// record may follow.
fn read(text: &str, may_have_fate: bool) -> Option<Outcome> {
    let mut words = text.split(' ');
    let (allowed, before, balance) = (words.next()?, words.next()?, words.next()?);
    let owed = balance.strip_prefix('-');
    // `parse` also reads a sign.
    let number = |word: &str| word.parse().ok().filter(|_| !word.starts_with('+'));
    let optional = |word| if word == "-" { Some(None) } else { number(word).map(Some) };
    let outcome = Outcome {
        allowed: flag(allowed)?,
        before: number(before)?,
        left: if owed.is_some() { 0 } else { number(balance)? },
        owed: owed.map_or(Some(0), number)?,
        reset_ns: number(words.next()?)?,
        retry_ns: optional(words.next()?)?,
        session: Timestamp::from_nanos(optional(words.next()?)?.unwrap_or(0)),
        fate: match words.next() {
            Some(word) if may_have_fate => records::fate(word)?,
            Some(_) => return None,
            None => Fate::Done,
        },
    };
    words.next().is_none().then_some(outcome)
}

fn flag(word: &str) -> Option<bool> {
    match word {
        "1" => Some(true),
        "0" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::call_plan::{Asked, asked_by};
    use super::super::script_call;
    use super::*;
    use crate::algorithm::{Ask, LeakyBucket, SlidingLog};
    use crate::store::redis::wire::Reply;

    fn asked(limit: Limit) -> (Batch, Vec<Asked>) {
        let mut batch = Batch::default();
        let drain = Action::Ask(Ask::Drain { cost: 3, strict: true });
        for (action, at) in [(drain, Timestamp::MAX), (Action::Forget, batch.now())] {
            batch.push(limit, action, at, |key| key.push(b'a'));
        }
        let asked = asked_by(&batch, Layout::OneServer);
        (batch, asked)
    }

    #[test]
    fn a_call_says_in_decimals_what_is_asked() {
        let arguments = |limit| {
            let (batch, mut asked) = asked(limit);
            let call = script_call::call(&batch, &mut asked[0], Layout::OneServer);
            let Call::Script { arguments, .. } = call else { panic!("no script") };
            String::from_utf8(arguments.as_bytes().to_vec()).unwrap()
        };
        let actions = "$29\r\nstrict 3 18446744073709551615\r\n$12\r\nforget 0 now\r\n";
        let leaky = Limit::LeakyBucket(LeakyBucket::new(9, 4, 70).unwrap());
        assert_eq!(arguments(leaky), format!("$6\r\n9 4 70\r\n{actions}"));
        let log = Limit::SlidingLog(SlidingLog::new(9, 70).unwrap());
        assert_eq!(arguments(log), format!("$4\r\n9 70\r\n{actions}"));
    }

    #[test]
    fn every_action_has_its_outcome_or_the_reply_is_foreign() {
        let (batch, asked) = asked(Limit::LeakyBucket(LeakyBucket::new(9, 4, 70).unwrap()));
        let read = |texts: &[&str]| {
            let outcomes = script_call::outcomes(&batch, &asked[0], &Reply::texts(texts))?;
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
            fate: Fate::Done,
        };
        assert_eq!(read(&["1 9 6 50 - 7", "0 0 0 0 - -"]).unwrap(), [taken, Outcome::default()]);
        let foreign: [&[&str]; 4] =
            [&[], &["1 9 6 50 - 7"], &["1 9 6 50 - 7", "1 9 6"], &["1 9 6 50 - 7", "1 9 - 0 - -"]];
        for texts in foreign {
            assert!(read(texts).is_err(), "{texts:?}");
        }
    }
}
