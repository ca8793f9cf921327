//! Requests that are sent again.

use super::*;
use crate::algorithm::record::Replay;
use crate::clock::NANOS_PER_SECOND;

const TAKE: Ask = Ask::Take { cost: 2 };

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_nanos((1_000 + seconds) * NANOS_PER_SECOND)
}

#[test]
fn first_answer_is_repeated_for_a_minute_to_the_same_request() {
    let limit = Limit::FixedWindow(FixedWindow::new(5, 600 * NANOS_PER_SECOND).unwrap());
    let (Decision { outcome: first, state: bucket }, record) = limit.decide_idempotent(None, None, (TAKE, 7), at(0));
    let RecordChange::Set(record) = record else { panic!("nothing is remembered") };
    assert_eq!((first.allowed, first.left, first.resolution), (true, 3, Resolution::Done));
    let again = |ask, seconds| limit.decide_idempotent(bucket.as_ref(), Some(&record), ask, at(seconds));
    let outcome = Outcome { resolution: Resolution::Repeated, ..first };
    assert_eq!(again((TAKE, 7), 59), (Decision { outcome, state: None }, RecordChange::Keep));
    let (Decision { outcome: different, state }, kept) = again((TAKE, 8), 59);
    assert_eq!((different.allowed, different.left, different.resolution), (false, 3, Resolution::Different));
    assert_eq!((state, kept), (None, RecordChange::Keep));
    let (Decision { outcome: later, state }, _) = again((TAKE, 7), 60);
    assert_eq!((later.allowed, later.left, later.resolution, state.is_some()), (true, 1, Resolution::Done, true));
}

#[test]
fn denial_is_repeated_and_a_held_back_request_is_decided_again() {
    let limit = Limit::FixedWindow(FixedWindow::new(1, NANOS_PER_SECOND).unwrap());
    let (Decision { outcome: denied, .. }, record) = limit.decide_idempotent(None, None, (TAKE, 7), at(0));
    let RecordChange::Set(record) = record else { panic!("nothing is remembered") };
    let replay = Replay::Answered(Outcome { resolution: Resolution::Repeated, ..denied });
    assert_eq!((denied.allowed, Replay::find(Some(&record), 7, at(2))), (false, replay));
    let held_back = Record::new_answer(7, denied, true, at(0));
    assert!(matches!(Replay::find(Some(&held_back), 7, at(2)), Replay::HeldBack(_)));
    assert_eq!(
        limit.decide_idempotent(None, Some(&held_back), (TAKE, 7), at(2)).0.outcome.resolution,
        Resolution::Done
    );
}
