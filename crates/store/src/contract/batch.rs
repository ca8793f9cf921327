//! Batches: actions on buckets, which a store applies together, the decision about each, and their outcomes.

use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::StoreError;
use crate::record_key::{self, RecordSpace};
use divvy_core::algorithm::{
    Ask, Decision, Limit, Outcome, OutcomeSource, Record, RecordChange, ReservationAsk, State,
};
use divvy_core::clock::{NANOS_PER_SECOND, Timestamp};

/// Memory of an entry without its key: the entry, its outcome, and the answer (bytes).
pub const ENTRY_WEIGHT: usize = 512;

/// A batch of actions, and their outcomes once a store has applied it. It is reused, and its buffers keep their capacity, so
/// that a hit allocates nothing.
#[derive(Debug, Default)]
pub struct Batch {
    /// The server's time when the batch was begun. Expiries on disk are computed from it.
    pub now: Timestamp,
    /// The keys of the entries, one after the other.
    pub keys: Vec<u8>,
    /// The entries, in the order of the requests.
    pub entries: Vec<Entry>,
    /// Entries that take effect together, as ascending ranges of indexes.
    pub groups: Vec<Range<usize>>,
    /// The outcomes of the entries that are answered, in their order.
    pub outcomes: Outcomes,
    /// Indexes of outcomes that depend on a change that was not durable yet.
    pub not_durable: Vec<usize>,
}

impl Batch {
    /// Empties the batch, and sets its time.
    pub fn begin(&mut self, now: Timestamp) {
        self.now = now;
        self.keys.clear();
        self.entries.clear();
        self.groups.clear();
        self.outcomes.clear();
        self.not_durable.clear();
    }

    /// Adds an action on the bucket whose key `write_key` appends. Returns its index.
    pub fn push(&mut self, limit: Limit, action: Action, at: Timestamp, write_key: impl FnOnce(&mut Vec<u8>)) -> usize {
        let start = self.keys.len();
        write_key(&mut self.keys);
        self.entries.push(Entry::new(start..self.keys.len(), limit, action, at));
        self.entries.len() - 1
    }

    /// Adds an action as [`Batch::push`] does, except that `write_key` also returns the limit. If it returns `None`,
    /// nothing is added.
    #[inline]
    pub fn push_if(
        &mut self,
        action: Action,
        at: Timestamp,
        write_key: impl FnOnce(&mut Vec<u8>) -> Option<Limit>,
    ) -> Option<usize> {
        let start = self.keys.len();
        let limit = write_key(&mut self.keys);
        if limit.is_none() {
            self.keys.truncate(start);
        }
        self.entries.push(Entry::new(start..self.keys.len(), limit?, action, at));
        Some(self.entries.len() - 1)
    }

    /// Adds an ask about the reservation `id` of the bucket whose key `write_key` appends. Returns its index. If
    /// `write_key` returns no limit, adds nothing and returns `None`.
    pub fn push_reservation(
        &mut self,
        ask: ReservationAsk,
        id: &[u8],
        write_key: impl FnOnce(&mut Vec<u8>) -> Option<Limit>,
    ) -> Option<usize> {
        let space = RecordSpace::Reservations;
        self.push_if(Action::Reservation(ask), self.now, |out| record_key::write(space, id, out, write_key))
    }

    /// Adds an idempotent ask with the record `id` of the bucket whose key `write_key` appends. `fingerprint`
    /// identifies the request. Returns the entry's index. If `write_key` returns no limit, adds nothing and returns `None`.
    pub fn push_idempotent(
        &mut self,
        ask: Ask,
        (id, fingerprint): (&[u8], u64),
        write_key: impl FnOnce(&mut Vec<u8>) -> Option<Limit>,
    ) -> Option<usize> {
        let action = Action::Idempotent { ask, fingerprint };
        self.push_if(action, self.now, |out| record_key::write(RecordSpace::Answers, id, out, write_key))
    }

    /// Reduces the credits that the entry with this index takes or reserves to the most that its bucket can hold, and at least 1.
    pub fn clamp(&mut self, index: usize) {
        if let Some(entry) = self.entries.get_mut(index) {
            let most = entry.limit.capacity().max(1);
            if let Action::Ask(Ask::Take { cost: credits })
            | Action::Reservation(ReservationAsk::Reserve { credits, .. }) = &mut entry.action
            {
                *credits = (*credits).min(most);
            }
        }
    }

    /// Turns the entries from index `first` on into looks, which take nothing.
    pub fn only_look(&mut self, first: usize) {
        for entry in self.entries.iter_mut().skip(first) {
            let Some(cost) = entry.action.wanted() else { continue };
            if entry.action.has_record() {
                // A request that is denied regardless of its counters need not be remembered.
                entry.key = record_key::bucket_range(&self.keys, &entry.key);
            }
            entry.action = Action::Ask(Ask::Look { cost });
        }
    }

    /// Makes the entries from index `first` on a group: they take effect together or not at all (see [`Store`]). Their
    /// buckets must be different. Each entry must be an [`Ask::Look`], an [`Ask::Take`], an [`Ask::Overdraw`] or an [`Ask::Count`],
    /// idempotent or not, or a [`ReservationAsk::Reserve`]. Alternatively, all entries settle reservations. Settlements
    /// are never denied, so they always take effect.
    ///
    /// [`Store`]: super::Store
    #[inline]
    pub fn group(&mut self, first: usize) {
        // A single entry needs no group.
        if first + 1 < self.entries.len() {
            self.groups.push(first..self.entries.len());
        }
    }

    /// Removes the entries from index `len` on, and the groups that contain one, from a batch that no store has applied.
    pub fn truncate(&mut self, len: usize) {
        if let Some(first) = self.entries.get(len) {
            self.keys.truncate(first.key.start);
            self.entries.truncate(len);
            self.groups.retain(|group| group.end <= len);
        }
    }

    /// Returns an upper estimate of the memory that the entries take until they are answered (bytes).
    #[inline]
    pub fn weight(&self) -> usize {
        self.entries.len() * ENTRY_WEIGHT + self.keys.len()
    }

    /// Returns the memory of the buffers, used or not (bytes).
    pub fn memory(&self) -> usize {
        self.keys.capacity()
            + self.entries.capacity() * size_of::<Entry>()
            + self.groups.capacity() * size_of::<Range<usize>>()
            + self.outcomes.capacity() * size_of::<Result<Outcome, StoreError>>()
            + self.not_durable.capacity() * size_of::<usize>()
    }

    /// Returns the time of all entries without a time of their own.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Returns the entry's time if a client supplied it, or `None` if it is the batch's time.
    pub fn brought_time(&self, entry: &Entry) -> Option<Timestamp> {
        (entry.at != self.now).then_some(entry.at)
    }

    /// Returns the entry with this index.
    #[inline]
    pub fn entry(&self, index: usize) -> Option<&Entry> {
        self.entries.get(index)
    }

    /// Returns the key of the entry with this index.
    #[inline]
    pub fn key_at(&self, index: usize) -> Option<&[u8]> {
        Some(self.entries.get(index)?.key_in(&self.keys))
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Iterates over the units from index `first` on. A unit must begin there.
    pub fn units(&self, first: usize) -> impl Iterator<Item = Unit<'_>> {
        let begun = self.groups.partition_point(|group| group.start < first);
        let mut groups = self.groups.iter().skip(begun).peekable();
        let mut first = first;
        std::iter::from_fn(move || {
            let end = groups.next_if(|group| group.start == first).map_or(first + 1, |group| group.end);
            let unit = Unit { first, entries: self.entries.get(first..end)?, keys: &self.keys };
            first = end;
            Some(unit)
        })
    }

    /// Removes the entries at `indexes`, in ascending order, while the batch is being built. Returns them.
    pub fn take(&mut self, indexes: &[usize]) -> Vec<Entry> {
        let taken = indexes.iter().filter_map(|index| self.entries.get(*index).cloned()).collect();
        let mut index = 0..;
        self.entries.retain(|_| index.next().is_some_and(|index| indexes.binary_search(&index).is_err()));
        taken
    }

    /// Answers every entry with `answer`, in order. Ignores groups.
    pub fn answer_each(&mut self, answer: impl FnMut(&Entry) -> Result<Outcome, StoreError>) {
        self.outcomes.clear();
        self.outcomes.extend(self.entries.iter().map(answer));
    }

    /// Answers the unanswered entries, unit by unit. `answer` adds the outcomes of all of the unit's entries. If it
    /// adds none and returns false, this stops. Returns whether all entries are answered.
    pub fn answer_on(&mut self, mut answer: impl FnMut(Unit<'_>, &mut Outcomes) -> bool) -> bool {
        let mut outcomes = std::mem::take(&mut self.outcomes);
        let answered = outcomes.len();
        outcomes.reserve(self.entries.len().saturating_sub(answered));
        let is_done = if self.groups.is_empty() {
            // Fast path: there are no groups to search for.
            let mut entries = self.entries.iter().enumerate().skip(answered);
            entries.all(|(first, entry)| {
                answer(Unit { first, entries: std::slice::from_ref(entry), keys: &self.keys }, &mut outcomes)
            })
        } else {
            self.units(answered).all(|unit| answer(unit, &mut outcomes))
        };
        self.outcomes = outcomes;
        is_done
    }

    /// Iterates over the unanswered entries, with their indexes and keys.
    pub fn unanswered(&self) -> impl Iterator<Item = (usize, &[u8], &Entry)> {
        let entries = self.entries.iter().enumerate().skip(self.outcomes.len());
        entries.map(|(index, entry)| (index, entry.key_in(&self.keys), entry))
    }

    /// Replaces the outcomes that depend on changes that could not be made durable.
    pub fn fail_not_durable(&mut self, error: &StoreError) {
        for index in self.not_durable.drain(..) {
            if let Some(outcome) = self.outcomes.get_mut(index) {
                *outcome = Err(error.clone());
            }
        }
    }

    /// Iterates over keys, entries and outcomes, once the batch is applied.
    pub fn answers(&self) -> impl Iterator<Item = (&[u8], &Entry, &Result<Outcome, StoreError>)> {
        self.entries.iter().zip(&self.outcomes).map(|(entry, outcome)| (entry.key_in(&self.keys), entry, outcome))
    }

    /// Returns the outcome of the entry with this index, or an error if no store has applied it.
    pub fn outcome(&self, index: usize) -> Result<Outcome, StoreError> {
        outcome_at(&self.outcomes, index)
    }

    /// Divides the entries into ranges of indexes, each of at most `max` bytes of [weight](Batch::weight). A group is
    /// never divided, so a range that consists of one unit may exceed `max`.
    pub fn parts(&self, max: usize) -> Vec<Range<usize>> {
        let (mut parts, mut first, mut weight) = (Vec::new(), 0, 0);
        for unit in self.units(0) {
            let of_unit: usize = unit.entries.iter().map(|entry| ENTRY_WEIGHT + entry.key.len()).sum();
            if weight + of_unit > max && unit.first > first {
                parts.push(first..unit.first);
                (first, weight) = (unit.first, 0);
            }
            weight += of_unit;
        }
        parts.push(first..self.len());
        parts
    }

    /// Copies the entries at `indexes` to a new batch. The indexes must ascend, and contain all or none of a group.
    pub fn part(&self, indexes: &[usize]) -> Self {
        let mut part = Self { now: self.now, ..Self::default() };
        let mut groups = self.groups.iter().peekable();
        for (index, entry) in indexes.iter().filter_map(|index| Some((*index, self.entries.get(*index)?))) {
            part.push(entry.limit, entry.action, entry.at, |out| out.extend_from_slice(entry.key_in(&self.keys)));
            while groups.next_if(|group| group.end <= index).is_some() {}
            if let Some(group) = groups.next_if(|group| group.end == index + 1) {
                part.group(part.len() - group.len());
            }
        }
        part
    }

    /// Takes over the outcomes of `part`, which consists of the entries at `indexes`.
    pub fn adopt(&mut self, part: Self, indexes: &[usize]) {
        for (index, outcome) in indexes.iter().zip(part.outcomes) {
            if let Some(place) = self.outcomes.get_mut(*index) {
                *place = outcome;
            }
        }
    }
}

/// One entry, or the entries of a group, which take effect together.
#[derive(Debug, Clone, Copy)]
pub struct Unit<'a> {
    /// The index of the first entry.
    pub first: usize,
    /// Its entries.
    pub entries: &'a [Entry],
    pub(super) keys: &'a [u8],
}

impl<'a> Unit<'a> {
    /// Returns the key of one of its entries.
    pub fn key(&self, entry: &Entry) -> &'a [u8] {
        entry.key_in(self.keys)
    }

    /// Iterates over the entries, with their indexes and keys.
    pub fn members(self) -> impl Iterator<Item = (usize, &'a [u8], &'a Entry)> + Clone {
        self.entries.iter().enumerate().map(move |(place, entry)| (self.first + place, self.key(entry), entry))
    }
}

/// The outcomes of a batch's entries, in their order.
pub type Outcomes = Vec<Result<Outcome, StoreError>>;

/// Returns the outcome of the entry with this index, or an error if no store has applied it.
#[inline]
pub fn outcome_at(outcomes: &Outcomes, index: usize) -> Result<Outcome, StoreError> {
    match outcomes.get(index) {
        Some(Ok(outcome)) => Ok(*outcome),
        other => Err(failure(other)),
    }
}

// Apart, so that the ordinary case is small enough to be inlined into other crates.
#[cold]
fn failure(outcome: Option<&Result<Outcome, StoreError>>) -> StoreError {
    match outcome {
        Some(Err(error)) => error.clone(),
        _ => StoreError::new("the store returned no answer"),
    }
}

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
            || matches!(self.ask(), Some(Ask::Charge { .. } | Ask::Refund { .. } | Ask::Return { .. }))
    }

    /// Returns whether the action counts even if it is denied. It is in no group.
    pub fn is_tally(self) -> bool {
        matches!(self.ask(), Some(Ask::Tally { .. }))
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
    fn wanted(self) -> Option<u64> {
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
            Self::Ask(ask) | Self::Idempotent { ask, .. } => ask.gives_back(),
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
}

/// A decision about an action with a record: its outcome, and the changes of the bucket and of the record.
pub type RecordedDecision = (Outcome, Change, RecordChange);

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
    /// Creates an entry.
    #[inline]
    pub fn new(key: Range<usize>, limit: Limit, action: Action, at: Timestamp) -> Self {
        Self { key, limit, action, at }
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
        // An increment may end a counter, or set it to 0.
        (outcome, self.change(state, ask.gives_back() || matches!(ask, Ask::Add { .. })))
    }

    /// Decides the action, given the bucket's state and the record.
    pub fn decide_with_record(&self, bucket: Option<&State>, record: Option<&Record>) -> RecordedDecision {
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
    ) -> RecordedDecision {
        let (decision, change) = self.limit.decide_next_run(bucket, record, reserved, generation(), self.at);
        self.changes(bucket, decision, change)
    }

    fn changes(&self, bucket: Option<&State>, decision: Decision, record: RecordChange) -> RecordedDecision {
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
            source: OutcomeSource::FailurePolicy,
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::window;

    proptest! {
        #[test]
        fn parts_cover_all_entries_and_divide_no_group(
            units in prop::collection::vec((1_usize..6, 0_usize..2_000), 0..40),
            max in 0_usize..10_000,
        ) {
            let mut batch = Batch::default();
            for (members, key) in &units {
                let first = batch.len();
                for _ in 0..*members {
                    batch.push(window(1, 1), Action::Forget, Timestamp::EPOCH, |out| out.resize(out.len() + key, 0));
                }
                batch.group(first);
            }
            let parts = batch.parts(max);
            let ends: Vec<_> = parts.iter().map(|part| part.end).collect();
            let starts: Vec<_> = std::iter::once(0).chain(ends.iter().copied()).take(parts.len()).collect();
            prop_assert_eq!(parts.iter().map(|part| part.start).collect::<Vec<_>>(), starts);
            prop_assert_eq!(ends.last(), Some(&batch.len()));
            for part in parts {
                let whole = batch.units(part.start).take_while(|unit| unit.first < part.end);
                let (count, entries) = whole.fold((0, 0), |(count, entries), unit| (count + 1, entries + unit.entries.len()));
                prop_assert_eq!(entries, part.len());
                let indexes: Vec<_> = part.collect();
                prop_assert!(batch.part(&indexes).weight() <= max || count <= 1);
            }
        }
    }
}
