//! Asks that are answered once: what is remembered of each, so that a client that got no answer may ask again.
//!
//! The first outcome is remembered for a while, a denial as well. Asked again, the ask has the same outcome, and takes nothing.
//! Of several asks that take effect together, one denies all of them: the others are held back, and have taken nothing. Asked
//! again together, all of them have their first outcomes. Where the records are kept is the store's business, and so are their
//! names.

use super::ask::{Ask, Outcome};
use super::reservation::{Fate, REMEMBERED_NS, RecordChange};
use super::{Decision, Limit, State, decide};
use crate::clock::Timestamp;

/// What is remembered of an ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answered {
    /// Stands for all that was asked for: what differs is another request.
    pub fingerprint: u64,
    pub until: Timestamp,
    /// It would have been allowed, but another one that it belongs with denied it.
    pub is_held_back: bool,
    /// As it was the first time.
    pub outcome: Outcome,
}

/// What is known of an ask before it is decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    Nothing,
    /// It had this outcome.
    Answered(Outcome),
    /// It had this outcome, and has taken nothing. It is asked again once its group no longer contains the ask that denied.
    HeldBack(Outcome),
    /// Another ask had the name.
    Different,
}

impl Answered {
    pub fn new(fingerprint: u64, outcome: Outcome, is_held_back: bool, at: Timestamp) -> Self {
        Self { fingerprint, until: at.plus(REMEMBERED_NS), is_held_back, outcome }
    }

    /// When it was answered.
    pub fn given(&self) -> Timestamp {
        self.until.minus(REMEMBERED_NS)
    }

    /// Returns the record as an ask at `at` finds it, or `None` when it has expired. If the clock was set back, it expires no later
    /// than an answer that is given now.
    pub fn found(self, at: Timestamp) -> Option<Self> {
        let until = decide::expiry(self.until, REMEMBERED_NS, at);
        (at < self.until).then_some(Self { until, ..self })
    }

    /// Moves the expiry, because the server's clock was set back by `by_ns`.
    pub fn set_back(&mut self, by_ns: u64) {
        self.until = self.until.minus(by_ns);
    }
}

impl Known {
    /// What `record` tells, at `at`, of an ask with this fingerprint.
    pub fn of(record: Option<&Answered>, fingerprint: u64, at: Timestamp) -> Self {
        match record.filter(|record| at < record.until) {
            None => Self::Nothing,
            Some(record) if record.fingerprint != fingerprint => Self::Different,
            Some(Answered { outcome, is_held_back, .. }) => {
                let again = Outcome { fate: Fate::Repeated, ..*outcome };
                if *is_held_back { Self::HeldBack(again) } else { Self::Answered(again) }
            }
        }
    }
}

impl Limit {
    /// Decides an ask that is answered once, and belongs with no other one, at time `at`, given what its bucket remembers and
    /// what is remembered of the ask.
    pub fn decide_once(
        &self,
        bucket: Option<&State>,
        record: Option<&Answered>,
        (ask, fingerprint): (Ask, u64),
        at: Timestamp,
    ) -> (Outcome, Option<State>, RecordChange<Answered>) {
        let found = record.and_then(|record| record.found(at));
        let kept = RecordChange::Keep.or_found(record.copied(), found);
        match Known::of(found.as_ref(), fingerprint, at) {
            Known::Answered(outcome) => (outcome, None, kept),
            Known::Different => {
                let Decision { outcome, state } = self.differs(bucket, at);
                (outcome, state, kept)
            }
            Known::Nothing | Known::HeldBack(_) => {
                let decision = self.decide(bucket, ask, at);
                let record = Answered::new(fingerprint, decision.outcome, false, at);
                (decision.outcome, decision.state, RecordChange::Set(record))
            }
        }
    }

    /// The outcome of an ask whose name another one had.
    pub fn differs(&self, bucket: Option<&State>, at: Timestamp) -> Decision {
        let look = self.decide(bucket, Ask::Look { cost: 0 }, at);
        Decision { outcome: Outcome { allowed: false, fate: Fate::Different, ..look.outcome }, ..look }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::FixedWindow;
    use crate::clock::NANOS_PER_SECOND;

    const TAKE: Ask = Ask::Take { cost: 2 };

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_nanos((1_000 + seconds) * NANOS_PER_SECOND)
    }

    #[test]
    fn the_first_answer_is_given_again_for_a_minute_and_to_nothing_else() {
        let limit = Limit::FixedWindow(FixedWindow::new(5, 600 * NANOS_PER_SECOND).unwrap());
        let (first, bucket, record) = limit.decide_once(None, None, (TAKE, 7), at(0));
        let RecordChange::Set(record) = record else { panic!("nothing is remembered") };
        assert_eq!((first.allowed, first.left, first.fate), (true, 3, Fate::Done));
        let again = |ask, seconds| limit.decide_once(bucket.as_ref(), Some(&record), ask, at(seconds));
        let repeated = Outcome { fate: Fate::Repeated, ..first };
        assert_eq!(again((TAKE, 7), 59), (repeated, None, RecordChange::Keep));
        let (different, change, kept) = again((TAKE, 8), 59);
        assert_eq!((different.allowed, different.left, different.fate), (false, 3, Fate::Different));
        assert_eq!((change, kept), (None, RecordChange::Keep));
        let (later, change, _) = again((TAKE, 7), 60);
        assert_eq!((later.allowed, later.left, later.fate, change.is_some()), (true, 1, Fate::Done, true));
    }

    #[test]
    fn a_denial_is_remembered_and_what_was_held_back_is_asked_again() {
        let limit = Limit::FixedWindow(FixedWindow::new(1, NANOS_PER_SECOND).unwrap());
        let (denied, _, record) = limit.decide_once(None, None, (TAKE, 7), at(0));
        let RecordChange::Set(record) = record else { panic!("nothing is remembered") };
        assert_eq!(
            (denied.allowed, Known::of(Some(&record), 7, at(2))),
            (false, Known::Answered(Outcome { fate: Fate::Repeated, ..denied }))
        );
        let held_back = Answered { is_held_back: true, ..record };
        assert!(matches!(Known::of(Some(&held_back), 7, at(2)), Known::HeldBack(_)));
        assert_eq!(limit.decide_once(None, Some(&held_back), (TAKE, 7), at(2)).0.fate, Fate::Done);
    }
}
