//! One action on one bucket, and the decision about it.

use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::Action;
use divvy_core::algorithm::{Ask, Decision, Limit, Outcome, Record, RecordChange, State};
use divvy_core::clock::{NANOS_PER_SECOND, Timestamp};

/// Time after which a denied client should retry if its remaining credit is unknown.
const ASK_AGAIN_NS: u64 = NANOS_PER_SECOND;

/// One action on one bucket.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Where the key is among those of the batch.
    pub key: Range<usize>,
    /// The bucket's limit, which decides the action.
    pub limit: Limit,
    /// The action on the bucket.
    pub action: Action,
    /// The time of the decision: the batch's, or one that the client supplied.
    pub at: Timestamp,
    /// Number of the idempotent request in the batch. All new records of one request count as one. 0 for other actions.
    pub request: u32,
}

/// The change of a bucket by an action.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Change {
    /// The bucket stays as it is.
    #[default]
    Keep,
    /// The bucket gets this state.
    Set(State),
    /// The bucket is forgotten.
    Clear,
}

impl Entry {
    /// Creates an entry that belongs to no idempotent request.
    #[inline]
    pub fn new(key: Range<usize>, limit: Limit, action: Action, at: Timestamp) -> Self {
        Self { key, limit, action, at, request: 0 }
    }

    /// Returns its key, which is a part of its batch's `keys`.
    #[expect(clippy::indexing_slicing, reason = "a batch's entries and keys grow and shrink together")]
    pub fn key_in<'a>(&self, keys: &'a [u8]) -> &'a [u8] {
        &keys[self.key.clone()]
    }

    /// Decides the action, given the bucket's state. Every backend that stores states uses this, or
    /// [`Entry::decide_with_record`].
    #[inline]
    pub fn decide(&self, state: Option<&State>) -> (Outcome, Change) {
        match self.action {
            Action::Ask(ask) | Action::Idempotent { ask, .. } => self.decide_ask(ask, state),
            Action::Forget => {
                let held = state.is_some_and(|state| self.limit.lifetime_ns(state, self.at) > 0);
                let change = if held { Change::Clear } else { Change::Keep };
                (Outcome { allowed: held, ..Outcome::default() }, change)
            }
            Action::Reservation(_) => self.look(state),
        }
    }

    // Inlined, because it runs for each counter of each hit, and a call would copy the outcome and the state.
    #[inline(always)]
    fn decide_ask(&self, ask: Ask, state: Option<&State>) -> (Outcome, Change) {
        let Decision { outcome, state } = self.limit.decide(state, ask, self.at);
        (outcome, self.change(state, matches!(ask, Ask::Refund { .. })))
    }

    /// Decides the action, given the bucket's state and the record.
    pub fn decide_with_record(
        &self,
        bucket: Option<&State>,
        record: Option<&Record>,
    ) -> (Outcome, Change, RecordChange) {
        let (decision, change) = match self.action {
            Action::Ask(_) | Action::Forget => {
                let (outcome, change) = self.decide(bucket);
                return (outcome, change, RecordChange::Keep);
            }
            Action::Idempotent { ask, fingerprint } => {
                self.limit.decide_idempotent(bucket, record, (ask, fingerprint), self.at)
            }
            Action::Reservation(ask) => self.limit.decide_reservation(bucket, record, ask, generation(), self.at),
        };
        self.changes(bucket, decision, change)
    }

    /// Decides a request to reserve as part of a new reservation, because the old one of its name is over in another bucket
    /// of the group.
    pub fn decide_next_run(
        &self,
        bucket: Option<&State>,
        record: Option<&Record>,
        reserved: (u64, u32),
    ) -> (Outcome, Change, RecordChange) {
        let (decision, change) = self.limit.decide_next_run(bucket, record, reserved, generation(), self.at);
        self.changes(bucket, decision, change)
    }

    fn changes(
        &self,
        bucket: Option<&State>,
        decision: Decision,
        record: RecordChange,
    ) -> (Outcome, Change, RecordChange) {
        let gives_back = self.action.is_about_reservation() || self.action.gives_back();
        let bucket_change = match self.change(decision.state, gives_back) {
            // There is no bucket to forget.
            Change::Clear if bucket.is_none() => Change::Keep,
            change => change,
        };
        (decision.outcome, bucket_change, record)
    }

    /// Returns the change to this state. If the action `gives_back` credits, a full bucket is forgotten.
    #[inline]
    fn change(&self, state: Option<State>, gives_back: bool) -> Change {
        match state {
            // As long as credits are reserved, the bucket is not full.
            Some(state @ State::Reserved(_)) => Change::Set(state),
            Some(state) if gives_back && self.limit.lifetime_ns(&state, self.at) == 0 => Change::Clear,
            Some(state) => Change::Set(state),
            None => Change::Keep,
        }
    }

    /// Looks for the entry's credits without taking any. This changes the state only if the clock was set back.
    pub fn look(&self, state: Option<&State>) -> (Outcome, Change) {
        if matches!(self.action, Action::Forget) {
            return (self.decide(state).0, Change::Keep);
        }
        let cost = self.action.wanted().unwrap_or(0);
        self.decide_ask(Ask::Look { cost }, state)
    }

    /// Returns the outcome of a fresh bucket, for an operator who allows hits that cannot be counted.
    pub fn uncounted(&self) -> Outcome {
        self.decide(None).0
    }

    /// Returns a denial with nothing left for a second, for an operator who denies hits that cannot be counted.
    /// Nobody may deny [`Ask::Count`].
    pub fn denied(&self) -> Outcome {
        if let Some(Ask::Count { .. }) = self.action.ask() {
            return self.uncounted();
        }
        Outcome {
            allowed: false,
            before: 0,
            left: 0,
            reset_ns: ASK_AGAIN_NS,
            retry_ns: Some(ASK_AGAIN_NS),
            ..self.uncounted()
        }
    }

    /// Returns the time when a bucket in `state` may be forgotten. `now` is the time of the server's clock.
    pub fn expiry(&self, state: &State, now: Timestamp) -> Timestamp {
        now.plus(self.limit.lifetime_ns(state, self.at))
    }
}

/// Returns a new generation for a bucket's reservations. No other bucket has it, on any server.
pub fn generation() -> u64 {
    static FIRST: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(0));
    static NEXT: AtomicU64 = AtomicU64::new(0);
    FIRST.wrapping_add(NEXT.fetch_add(1, Relaxed))
}
