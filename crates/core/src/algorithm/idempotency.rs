//! Idempotent requests: a client that got no answer may send its request again.
//!
//! The first outcome is remembered for a while, even if it was a denial. A repeated request gets that outcome, and
//! takes nothing. If one request of a group is denied, the others are held back, and take nothing. If the whole group
//! is sent again, each request gets its first outcome.

use super::ask::{Ask, Outcome, Resolution};
use super::limit::Limit;
use super::record::{Content, Record, RecordChange};
use super::state::{Decision, State};
use crate::clock::Timestamp;

/// The earlier answer to a request, if there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replay {
    /// The request is new.
    None,
    /// The request had this outcome.
    Answered(Outcome),
    /// The request had this outcome, but took nothing. It is decided again once its group no longer contains the
    /// request that was denied.
    HeldBack(Outcome),
    /// The name belongs to another request.
    Conflict,
}

impl Replay {
    /// Looks up the request with this fingerprint in `record`, at time `at`.
    pub fn find(record: Option<&Record>, fingerprint: u64, at: Timestamp) -> Self {
        let Some(Content::Answer { fingerprint: first, is_held_back, outcome }) =
            record.and_then(|record| record.found(at)).map(|record| record.content)
        else {
            return Self::None;
        };
        let outcome = Outcome { resolution: Resolution::Repeated, ..outcome };
        match (first == fingerprint, is_held_back) {
            (false, _) => Self::Conflict,
            (true, true) => Self::HeldBack(outcome),
            (true, false) => Self::Answered(outcome),
        }
    }
}

impl Limit {
    /// Decides an idempotent request that is not in a group, at time `at`, given the state of its bucket and its
    /// record.
    pub fn decide_idempotent(
        &self,
        bucket: Option<&State>,
        record: Option<&Record>,
        (ask, fingerprint): (Ask, u64),
        at: Timestamp,
    ) -> (Decision, RecordChange) {
        let kept = RecordChange::Keep.or_found(record, at);
        match Replay::find(record, fingerprint, at) {
            Replay::Answered(outcome) => (Decision { outcome, state: None }, kept),
            Replay::Conflict => (self.decide_conflict(bucket, at), kept),
            Replay::None | Replay::HeldBack(_) => {
                let decision = self.decide(bucket, ask, at);
                let record = Record::new_answer(fingerprint, decision.outcome, false, at);
                (decision, RecordChange::Set(record))
            }
        }
    }

    /// Decides a request whose idempotency key belongs to another request.
    fn decide_conflict(&self, bucket: Option<&State>, at: Timestamp) -> Decision {
        let look = self.decide(bucket, Ask::Look { cost: 0 }, at);
        Decision { outcome: Outcome { allowed: false, resolution: Resolution::Different, ..look.outcome }, ..look }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::fixed_window::FixedWindow;
    use crate::clock::NANOS_PER_SECOND;

    const TAKE: Ask = Ask::Take { cost: 2 };

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_nanos((1_000 + seconds) * NANOS_PER_SECOND)
    }

    #[test]
    fn first_answer_is_repeated_for_a_minute_to_the_same_request() {
        let limit = Limit::FixedWindow(FixedWindow::new(5, 600 * NANOS_PER_SECOND).unwrap());
        let (Decision { outcome: first, state: bucket }, record) =
            limit.decide_idempotent(None, None, (TAKE, 7), at(0));
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
}
