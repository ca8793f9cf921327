//! One action on one bucket, and the decision about it.

use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::record_key::RecordSpace;
use divvy_core::algorithm::{Ask, Decision, Limit, Outcome, Record, RecordChange, ReservationAsk, State};
use divvy_core::clock::{NANOS_PER_SECOND, Timestamp};

/// Time after which a denied client should retry if its remaining credit is unknown.
const ASK_AGAIN_NS: u64 = NANOS_PER_SECOND;

/// An action on a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Asks the bucket, without a record of the request.
    Ask(Ask),
    /// Forgets the bucket. `allowed` in the outcome says whether its state was not fresh.
    Forget,
    /// Asks about a reservation. The entry's key is the key of the reservation's record, and contains the bucket's key.
    Reservation(ReservationAsk),
    /// Asks, and records the outcome. The same request (same key, same fingerprint) gets the same outcome again, and
    /// takes nothing. Any ask can be idempotent. The entry's key is the key of the answer's record, and contains the
    /// bucket's key.
    Idempotent {
        /// The ask. A repeated request does not carry it out again.
        ask: Ask,
        /// Identifies the request. A different request under the same key has a different fingerprint.
        fingerprint: u64,
    },
}

// The size matters, because every hit writes an action.
const _: () = assert!(size_of::<Action>() == 24);

impl Action {
    /// Returns whether the action reports what has already happened: a charge, a refund or a release.
    pub fn is_settlement(self) -> bool {
        matches!(self, Self::Reservation(ReservationAsk::Release { .. }))
            || matches!(self.ask(), Some(Ask::Charge { .. } | Ask::Refund { .. }))
    }

    /// Returns the action's ask, idempotent or not. `None` if it forgets the bucket or is about a reservation.
    #[inline]
    pub fn ask(self) -> Option<Ask> {
        match self {
            Self::Ask(ask) | Self::Idempotent { ask, .. } => Some(ask),
            Self::Forget | Self::Reservation(_) => None,
        }
    }

    /// Returns the credits that must be left for the action to be granted. `None` if it is always granted, or forgets
    /// the bucket.
    pub(super) fn wanted(self) -> Option<u64> {
        match self {
            Self::Reservation(ReservationAsk::Reserve { credits, .. }) => Some(credits),
            _ => self.ask().map(Ask::wanted),
        }
    }

    /// Returns the fingerprint of an idempotent request.
    pub fn fingerprint(self) -> Option<u64> {
        if let Self::Idempotent { fingerprint, .. } = self { Some(fingerprint) } else { None }
    }

    /// Returns whether the action settles a reservation: a commit, a release or a renewal.
    pub fn settles_reservation(self) -> bool {
        matches!(self, Self::Reservation(ask) if !matches!(ask, ReservationAsk::Reserve { .. }))
    }

    /// Returns whether only the store may answer the action, and no policy.
    pub fn needs_store(self) -> bool {
        self.is_settlement() || self.is_about_reservation() || matches!(self.ask(), Some(Ask::Show))
    }

    /// Returns whether the bucket may have more credits left after the action than before.
    pub fn gives_back(self) -> bool {
        match self {
            Self::Forget => true,
            Self::Reservation(ask) => matches!(ask, ReservationAsk::Commit { .. } | ReservationAsk::Release { .. }),
            Self::Ask(ask) | Self::Idempotent { ask, .. } => matches!(ask, Ask::Refund { .. }),
        }
    }

    /// Returns whether the action makes, settles or keeps a reservation.
    pub fn is_about_reservation(self) -> bool {
        matches!(self, Self::Reservation(_))
    }

    /// Returns the kind of the action's record, which changes together with the bucket. `None` if it has no record.
    pub fn record_space(self) -> Option<RecordSpace> {
        match self {
            Self::Reservation(_) => Some(RecordSpace::Reservations),
            Self::Idempotent { .. } => Some(RecordSpace::Answers),
            Self::Ask(_) | Self::Forget => None,
        }
    }

    /// Returns the same action for at most `credits`, and at least 1, if it takes or reserves credits.
    pub(super) fn up_to(self, credits: u64) -> Self {
        let most = credits.max(1);
        match self {
            Self::Ask(Ask::Take { cost }) => Self::Ask(Ask::Take { cost: cost.min(most) }),
            Self::Reservation(ReservationAsk::Reserve { credits, ttl_seconds }) => {
                Self::Reservation(ReservationAsk::Reserve { credits: credits.min(most), ttl_seconds })
            }
            Self::Ask(_) | Self::Forget | Self::Reservation(_) | Self::Idempotent { .. } => self,
        }
    }

    /// Returns whether the action has a record next to the bucket.
    #[inline]
    pub fn has_record(self) -> bool {
        self.record_space().is_some()
    }
}

/// One action on one bucket.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The place of its key in the batch's `keys`.
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
    /// Creates an entry of no idempotent request.
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
