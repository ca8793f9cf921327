//! Arguments and outcomes of the script for a rule's fixed window, which takes the steps of Divvy 1.7.1.
//!
//! A hit on an absent window sets it to the rest of the limit, with the window's length as its time to live. A hit on a window
//! with enough credits decreases them. Any other hit is denied, and changes nothing. Redis's clock ends the window. Times of
//! actions have no meaning to it.

use super::bucket::{NOW, action_text, name_and_cost};
use super::call_plan::BucketActions;
use crate::algorithm::{FixedWindow, Limit, Outcome, Tally};
use crate::clock::NANOS_PER_MILLI;
use crate::store::contract::{Action, Batch, Entry};
use crate::store::redis::wire::{Arguments, Elements};

/// Writes the arguments for actions on the window. Of a pair of arguments for an ask with a record, the second is empty.
pub fn write_arguments(batch: &Batch, actions: &BucketActions, arguments: &mut Arguments) {
    numbers(&actions.limit).into_iter().flatten().for_each(|number| arguments.push_number(number));
    for entry in actions.entries(batch) {
        let (name, cost) = match entry.action {
            Action::Ask(ask) => name_and_cost(ask),
            Action::Forget => ("forget", 0),
            Action::Reservation(_) | Action::Idempotent { .. } => {
                arguments.push(action_text(entry.action, NOW));
                arguments.push("");
                continue;
            }
        };
        arguments.push(name);
        arguments.push_number(cost);
    }
}

/// Returns the window's credits, its length in milliseconds, and the credits that its number counts down from. The length is
/// rounded up, because Redis has no shorter unit.
fn numbers(limit: &Limit) -> Option<[u64; 3]> {
    let Limit::FixedWindow(FixedWindow { credits, window_ns, tally }) = limit else { return None };
    let full = if let Tally::LeftOf(full) = tally { full } else { credits };
    Some([credits.get(), window_ns.get().div_ceil(NANOS_PER_MILLI), full.get()])
}

/// Reads the outcome of the next action, which is the entry's: allowed, credits before, credits after, milliseconds until the
/// window ends.
pub fn read_outcome(entry: &Entry, reply: &mut Elements<'_>) -> Option<Outcome> {
    let [allowed, before, left, ttl_ms] = [reply.number()?, reply.number()?, reply.number()?, reply.number()?];
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
    use super::super::call_plan::plan_calls;
    use super::super::script_call::read_outcomes;
    use super::*;
    use crate::algorithm::Ask;
    use crate::clock::Timestamp;
    use crate::store::redis::topology::Layout;
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
        let plans = plan_calls(&batch, Layout::OneServer);
        read_outcomes(&batch, &plans[0], &Reply::numbers(numbers))?.into_iter().collect()
    }

    #[test]
    fn every_action_on_a_window_gets_its_own_outcome() {
        let outcomes = read(&[Ask::Take { cost: 4 }, Ask::Take { cost: 2 }], &[1, 5, 1, 60_000, 0, 1, 1, 60_000]);
        let taken = Outcome { allowed: true, before: 5, left: 1, reset_ns: 60 * SECOND, ..Outcome::default() };
        let denied = Outcome { allowed: false, before: 1, retry_ns: Some(60 * SECOND), ..taken };
        assert_eq!(outcomes.unwrap(), [taken, denied]);
    }

    #[test]
    fn ask_for_too_much_has_no_time_to_retry_and_a_full_window_has_no_time_to_reset() {
        let outcomes = read(&[Ask::Take { cost: 6 }], &[0, 5, 5, 0]).unwrap();
        assert_eq!(outcomes, [Outcome { before: 5, left: 5, ..Outcome::default() }]);
    }

    #[test]
    fn window_still_counts_in_its_last_millisecond() {
        let outcomes = read(&[Ask::Take { cost: 1 }], &[0, 0, 0, 0]).unwrap();
        assert_eq!(outcomes[0].retry_ns, Some(1_000_000));
    }

    #[test]
    fn a_foreign_reply_is_refused() {
        assert!(read(&[Ask::Take { cost: 1 }], &[1, 5, 4]).is_err());
        assert!(read(&[Ask::Take { cost: 1 }], &[]).is_err());
    }
}
