//! A rule's fixed window in Redis: Divvy 1.7.1's steps as one script, and what its answers mean.
//!
//! Absent: set to what is left of the limit, with the window as its time to live. Enough left: decrease. Otherwise
//! denied, and untouched. Redis's clock ends the window; an action's own time has no part in it.

use super::bucket::{self, NOW};
use super::call_plan::{Actions, FORGET, words};
use super::records;
use super::script_text::WINDOW;
use crate::algorithm::{FixedWindow, Limit, Outcome, Tally};
use crate::clock::NANOS_PER_MILLI;
use crate::store::contract::{Action, Batch, Entry};
use crate::store::redis::topology::Layout;
use crate::store::redis::wire::{Arguments, Call, Elements};

/// What the script answers for each action: allowed, credits before, credits after, milliseconds until the end.
type Answer = [i64; 4];

/// The call that applies the actions to their window; it takes their key.
pub fn call(batch: &Batch, asked: &mut Actions, layout: Layout) -> Call {
    let mut arguments = Arguments::with_capacity(3 + 2 * asked.indices.len());
    asked.entries(batch).find_map(numbers).into_iter().flatten().for_each(|number| arguments.push_number(number));
    for entry in asked.entries(batch) {
        let (name, cost) = match entry.action {
            Action::Ask(ask) => words(ask),
            Action::Forget => FORGET,
            Action::Reservation(_) | Action::Idempotent { .. } => {
                arguments.push(&bucket::text(entry.action, NOW));
                arguments.push("");
                continue;
            }
        };
        arguments.push(name);
        arguments.push_number(cost);
    }
    let tag = records::tag(&asked.key, &asked.records, layout);
    tag.iter().for_each(|tag| arguments.push(tag));
    let other_keys = records::other_keys(&asked.key, &asked.records, layout);
    let (key, actions) = (std::mem::take(&mut asked.key), asked.indices.len());
    Call::Script { script: &WINDOW, brings_text: false, key, other_keys, arguments, actions }
}

/// A window's credits, its length in milliseconds, rounded up: Redis knows no shorter time; and what its number counts down from.
fn numbers(entry: &Entry) -> Option<[u64; 3]> {
    let Limit::FixedWindow(FixedWindow { credits, window_ns, tally }) = entry.limit else { return None };
    let full = if let Tally::LeftOf(full) = tally { full } else { credits };
    Some([credits.get(), window_ns.get().div_ceil(NANOS_PER_MILLI), full.get()])
}

/// Reads the outcome of the next action, which is the entry's, from the script's reply.
pub fn outcome(entry: &Entry, reply: &mut Elements<'_>) -> Option<Outcome> {
    if reply.is_at_text() {
        return bucket::outcome(entry, reply);
    }
    read(entry, [reply.number()?, reply.number()?, reply.number()?, reply.number()?])
}

fn read(entry: &Entry, [allowed, before, left, ttl_ms]: Answer) -> Option<Outcome> {
    let allowed = match allowed {
        1 => true,
        0 => false,
        _ => return None,
    };
    let (before, ttl_ms) = (u64::try_from(before).ok()?, u64::try_from(ttl_ms).ok()?);
    let Action::Ask(ask) = entry.action else { return Some(Outcome { allowed, ..Outcome::default() }) };
    let (left, owed) = if left < 0 { (0, left.unsigned_abs()) } else { (left.unsigned_abs(), 0) };
    let capacity = entry.limit.capacity();
    // In its last millisecond, a window has 0 ms to live, but it still counts.
    let until_end_ns = ttl_ms.max(1).saturating_mul(NANOS_PER_MILLI);
    Some(Outcome {
        allowed,
        before,
        left,
        owed,
        reset_ns: if left >= capacity { 0 } else { until_end_ns },
        retry_ns: (!allowed && ask.wanted() <= capacity).then_some(until_end_ns),
        ..Outcome::default()
    })
}

#[cfg(test)]
mod tests {
    use super::super::call_plan::asked_by;
    use super::super::script_call::outcomes;
    use super::*;
    use crate::algorithm::Ask;
    use crate::clock::Timestamp;
    use crate::store::redis::wire::{Failure, Reply};

    const SECOND: u64 = 1_000_000_000;

    fn batch(asks: &[Ask]) -> Batch {
        let mut batch = Batch::default();
        let limit = Limit::FixedWindow(FixedWindow::new(5, 60 * SECOND).unwrap());
        let prefix = crate::store::key::Prefix::new(crate::store::key::Space::Rule, [("a", "b")], &limit);
        for ask in asks {
            batch.push(limit, Action::Ask(*ask), Timestamp::EPOCH, |out| prefix.write_key("actor", out));
        }
        batch
    }

    fn read(asks: &[Ask], numbers: &[i64]) -> Result<Vec<Outcome>, Failure> {
        let batch = batch(asks);
        let asked = asked_by(&batch, Layout::OneServer);
        outcomes(&batch, &asked[0], &Reply::numbers(numbers))?.into_iter().collect()
    }

    #[test]
    fn every_action_on_a_window_gets_its_own_outcome() {
        let outcomes = read(&[Ask::Take { cost: 4 }, Ask::Take { cost: 2 }], &[1, 5, 1, 60_000, 0, 1, 1, 60_000]);
        let taken = Outcome { allowed: true, before: 5, left: 1, reset_ns: 60 * SECOND, ..Outcome::default() };
        let denied = Outcome { allowed: false, before: 1, retry_ns: Some(60 * SECOND), ..taken };
        assert_eq!(outcomes.unwrap(), [taken, denied]);
    }

    #[test]
    fn an_ask_that_never_fits_has_no_time_to_retry_at_and_a_full_window_none_to_reset_at() {
        let outcomes = read(&[Ask::Take { cost: 6 }], &[0, 5, 5, 0]).unwrap();
        assert_eq!(outcomes, [Outcome { before: 5, left: 5, ..Outcome::default() }]);
    }

    #[test]
    fn the_last_millisecond_is_not_over_yet() {
        let outcomes = read(&[Ask::Take { cost: 1 }], &[0, 0, 0, 0]).unwrap();
        assert_eq!(outcomes[0].retry_ns, Some(1_000_000));
    }

    #[test]
    fn a_foreign_reply_is_refused() {
        assert!(read(&[Ask::Take { cost: 1 }], &[1, 5, 4]).is_err());
        assert!(read(&[Ask::Take { cost: 1 }], &[]).is_err());
    }
}
