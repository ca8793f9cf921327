//! Which script answers a call's actions: the call that applies them, and what its reply says of each.

use super::actions::{Actions, Asked, Meaning};
use super::call::{Call, Failure};
use super::records::Layout;
use super::reply::{Elements, Reply};
use super::{bucket, together, window};
use crate::algorithm::Outcome;
use crate::store::batch::{Batch, Entry};

/// What applies the actions; it takes the keys of their buckets.
pub(super) fn call(batch: &Batch, asked: &mut Asked, layout: Layout) -> Call {
    match asked {
        Asked::OfOne(actions) => of_one(batch, actions, layout),
        Asked::Together(asked) => {
            let of_one = |member: &mut Actions| of_one(batch, member, layout);
            let step = |step: &mut Vec<Actions>| step.iter_mut().map(of_one).collect();
            together::call(asked.steps.iter_mut().map(step), asked.has_successor)
        }
    }
}

fn of_one(batch: &Batch, actions: &mut Actions, layout: Layout) -> Call {
    match actions.meaning {
        Meaning::Window => window::call(batch, actions, layout),
        Meaning::Bucket => bucket::call(batch, actions, layout),
    }
}

/// What the reply to that call says of each action.
pub(super) fn outcomes(batch: &Batch, asked: &Asked, reply: &Reply) -> Result<Vec<Result<Outcome, Failure>>, Failure> {
    let outcomes = reply.elements().and_then(|mut reply| {
        let mut outcomes = Vec::new();
        match asked {
            Asked::OfOne(actions) => read(batch, actions, &mut reply, &mut outcomes)?,
            Asked::Together(asked) => {
                let mut members = asked.steps.iter().flatten();
                members.try_for_each(|member| read(batch, member, &mut reply, &mut outcomes))?;
            }
        }
        (reply.len() == 0).then_some(outcomes)
    });
    outcomes.ok_or(Failure::Foreign("a script's reply does not have one outcome for each action"))
}

fn read(
    batch: &Batch,
    actions: &Actions,
    reply: &mut Elements<'_>,
    outcomes: &mut Vec<Result<Outcome, Failure>>,
) -> Option<()> {
    outcomes.reserve(actions.indices.len());
    actions.entries(batch).try_for_each(|entry| {
        outcomes.push(match reply.error() {
            Some(error) => Err(error.into()),
            None => Ok(outcome(actions.meaning, entry, reply)?),
        });
        Some(())
    })
}

fn outcome(meaning: Meaning, entry: &Entry, reply: &mut Elements<'_>) -> Option<Outcome> {
    match meaning {
        Meaning::Window => window::outcome(entry, reply),
        Meaning::Bucket => bucket::outcome(entry, reply),
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::algorithm::Fate;
    use crate::algorithm::{
        Ask, CalendarId, CalendarWindow, Concurrency, FixedWindow, LeakyBucket, Limit, ReservationAsk, SlidingLog,
        SlidingWindow, TokenBucket,
    };
    use crate::clock::Timestamp;
    use crate::store::batch::Action;
    use crate::store::key::{Prefix, Space};
    use crate::store::redis::actions::asked_by;

    fn limit() -> impl Strategy<Value = Limit> {
        prop::sample::select(vec![
            Limit::FixedWindow(FixedWindow::new(9, 70).unwrap()),
            Limit::CalendarWindow(CalendarWindow::new(9, CalendarId(0)).unwrap()),
            Limit::SlidingWindow(SlidingWindow::new(9, 70).unwrap()),
            Limit::SlidingLog(SlidingLog::new(9, 70).unwrap()),
            Limit::TokenBucket(TokenBucket::new(9, 2, 30).unwrap()),
            Limit::LeakyBucket(LeakyBucket::new(9, 4, 70).unwrap()),
            Limit::Concurrency(Concurrency::new(9, 30).unwrap()),
        ])
    }

    fn action() -> impl Strategy<Value = Action> {
        prop_oneof![
            any::<u64>().prop_map(|cost| Action::Ask(Ask::Take { cost })),
            any::<u64>().prop_map(|cost| Action::Ask(Ask::Refund { cost })),
            Just(Action::Forget),
            Just(Action::Reservation(ReservationAsk::Release)),
        ]
    }

    fn asked(limit: Limit, actions: &[Action]) -> (Batch, Asked) {
        let mut batch = Batch::default();
        let prefix = Prefix::new(Space::Rule, [("a", "b")], &limit);
        for action in actions {
            match action {
                Action::Reservation(ask) => {
                    _ = batch.push_reservation(*ask, b"id", |out| {
                        prefix.write_key("actor", out);
                        Some(limit)
                    })
                }
                action => _ = batch.push(limit, *action, Timestamp::EPOCH, |out| prefix.write_key("actor", out)),
            }
        }
        let mut asked = asked_by(&batch, Layout::OneServer);
        assert_eq!(asked.len(), 1);
        (batch, asked.remove(0))
    }

    /// An element of a reply: a text of words as scripts write them, a number, an error, or one that no script sends.
    fn element() -> impl Strategy<Value = String> {
        let known = prop::sample::select(vec!["0", "1", "-", "-0", "-5", "done", "late", "gone", "", "x", "é"]);
        let word =
            prop_oneof![3 => known.prop_map(str::to_owned), 1 => any::<i128>().prop_map(|word| word.to_string())];
        prop_oneof![
            4 => vec(word, 0..10).prop_map(|words| text(&words.join(" "))),
            4 => any::<i64>().prop_map(|number| format!(":{number}\r\n")),
            1 => prop::sample::select(vec!["-ERR no\r\n", "*1\r\n:1\r\n", "$-1\r\n", "_\r\n", ":x\r\n", "$9\r\nx\r\n", ""])
                .prop_map(str::to_owned),
        ]
    }

    fn text(text: &str) -> String {
        format!("${}\r\n{text}\r\n", text.len())
    }

    proptest! {
        #[test]
        fn any_reply_is_read_or_refused(
            limit in limit(), actions in vec(action(), 1..4), elements in vec(element(), 0..14), cut in 0..300_usize,
        ) {
            let (batch, asked) = asked(limit, &actions);
            let whole = format!("*{}\r\n{}", elements.len(), elements.concat());
            for reply in [whole.get(..cut).unwrap_or_default(), &whole] {
                if let Ok(outcomes) = outcomes(&batch, &asked, &Reply::from_line(reply)) {
                    prop_assert_eq!(outcomes.len(), actions.len());
                }
            }
        }

        #[test]
        fn outcome_of_any_numbers_is_read_as_it_is_written(
            limit in limit(), allowed: bool, numbers: [u64; 4], retry_ns: Option<u64>, owes: bool,
        ) {
            let [before, balance, reset_ns, session] = numbers;
            let (left, owed) = if owes { (0, balance) } else { (balance, 0) };
            let session = Timestamp::from_nanos(session);
            let outcome = Outcome { allowed, before, left, owed, reset_ns, retry_ns, session, fate: Fate::Done };
            let retry = retry_ns.map_or("-".to_owned(), |retry_ns| retry_ns.to_string());
            let sign = if owes { "-" } else { "" };
            let words = format!("{} {before} {sign}{balance} {reset_ns} {retry} {}", u8::from(allowed), session.as_nanos());
            let (batch, asked) = asked(limit, &[Action::Ask(Ask::Take { cost: 1 })]);
            let mut outcomes = outcomes(&batch, &asked, &Reply::list(&[text(&words)])).unwrap();
            prop_assert_eq!(outcomes.remove(0).unwrap(), outcome);
        }
    }
}
