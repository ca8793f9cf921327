//! The batch that a store is asked with: actions on buckets, and their outcomes.

use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tokio::task::JoinHandle;

use super::error::StoreError;
use super::origin::Origin;
use super::record_key::{self, RecordSpace};
use crate::algorithm::{Ask, Decision, Limit, Outcome, Record, RecordChange, ReservationAsk, State};
use crate::clock::{NANOS_PER_SECOND, Timestamp};

/// Memory that an entry takes apart from its key: the entry, its outcome, and the answer made of it (bytes).
pub const ENTRY_WEIGHT: usize = 512;

/// When a denied client should ask again, while its remaining credit is unknown.
const ASK_AGAIN_NS: u64 = NANOS_PER_SECOND;

/// What to do with a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Ask(Ask),
    /// Forget the bucket. `allowed` in the outcome tells whether it held anything but a fresh state.
    Forget,
    /// Ask about a reservation. The entry's key is that of its record, and names its bucket.
    Reservation(ReservationAsk),
    /// Ask, and remember the outcome: the same request (same key, same fingerprint) gets it again and takes nothing. Any ask
    /// can be idempotent. The entry's key is the key of its record, and names its bucket.
    Idempotent {
        ask: Ask,
        fingerprint: u64,
    },
}

/// Every hit writes one.
const _: () = assert!(size_of::<Action>() == 24);

impl Action {
    /// Whether it tells what has happened already: a charge, a refund or a release.
    pub fn is_settlement(self) -> bool {
        let is_release = matches!(self, Self::Reservation(ReservationAsk::Release));
        is_release || matches!(self.ask(), Some(Ask::Charge { .. } | Ask::Refund { .. }))
    }

    /// Returns what it asks of its bucket, idempotent or not. `None` if it forgets the bucket or is about a reservation.
    #[inline]
    pub fn ask(self) -> Option<Ask> {
        match self {
            Self::Ask(ask) | Self::Idempotent { ask, .. } => Some(ask),
            Self::Forget | Self::Reservation(_) => None,
        }
    }

    /// Returns the credits that must be left for it to be granted. `None` if it is always granted, or forgets the bucket.
    fn wanted(self) -> Option<u64> {
        match self {
            Self::Reservation(ReservationAsk::Reserve { credits, .. }) => Some(credits),
            _ => self.ask().map(Ask::wanted),
        }
    }

    /// Returns the fingerprint of an idempotent request.
    pub(super) fn fingerprint(self) -> Option<u64> {
        if let Self::Idempotent { fingerprint, .. } = self { Some(fingerprint) } else { None }
    }

    /// Whether it settles a reservation: a commit, a release or a renewal.
    pub fn settles_reservation(self) -> bool {
        self.is_about_reservation() && !matches!(self, Self::Reservation(ReservationAsk::Reserve { .. }))
    }

    /// Whether only the store can answer it, and no policy in the store's place.
    pub(super) fn needs_store(self) -> bool {
        self.is_settlement() || self.is_about_reservation()
    }

    /// Whether there may be more left after it than before.
    pub(super) fn gives_back(self) -> bool {
        match self {
            Self::Forget => true,
            Self::Reservation(ask) => matches!(ask, ReservationAsk::Commit { .. } | ReservationAsk::Release),
            Self::Ask(ask) | Self::Idempotent { ask, .. } => matches!(ask, Ask::Refund { .. }),
        }
    }

    pub fn is_about_reservation(self) -> bool {
        matches!(self, Self::Reservation(_))
    }

    /// Where its record is, which changes together with its bucket; `None` for one without.
    pub fn record_space(self) -> Option<RecordSpace> {
        match self {
            Self::Reservation(_) => Some(RecordSpace::Reservations),
            Self::Idempotent { .. } => Some(RecordSpace::Answers),
            Self::Ask(_) | Self::Forget => None,
        }
    }

    /// The same for at most so many credits, if it is to take or to reserve some, but for 1 at least.
    pub fn up_to(self, credits: u64) -> Self {
        let most = credits.max(1);
        match self {
            Self::Ask(Ask::Take { cost }) => Self::Ask(Ask::Take { cost: cost.min(most) }),
            Self::Reservation(ReservationAsk::Reserve { credits, ttl_seconds }) => {
                Self::Reservation(ReservationAsk::Reserve { credits: credits.min(most), ttl_seconds })
            }
            Self::Ask(_) | Self::Forget | Self::Reservation(_) | Self::Idempotent { .. } => self,
        }
    }

    #[inline]
    pub fn has_record(self) -> bool {
        self.record_space().is_some()
    }
}

/// One action on one bucket.
#[derive(Debug, Clone)]
pub struct Entry {
    pub(super) key: Range<usize>,
    pub limit: Limit,
    pub action: Action,
    /// The time by which the bucket decides: the batch's, or one that the client supplied.
    pub at: Timestamp,
    /// Number of the idempotent request in the batch. All new records of one request count as one. 0 for other actions.
    pub(super) request: u32,
}

/// What an action does to a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    Keep,
    Set(State),
    Clear,
}

impl Entry {
    #[inline]
    pub(super) fn new(key: Range<usize>, limit: Limit, action: Action, at: Timestamp) -> Self {
        Self { key, limit, action, at, request: 0 }
    }

    /// Decides the action, given what the bucket remembers. Every backend that remembers states goes through here, or through
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

    #[inline]
    fn decide_ask(&self, ask: Ask, state: Option<&State>) -> (Outcome, Change) {
        let Decision { outcome, state } = self.limit.decide(state, ask, self.at);
        (outcome, self.change(state, matches!(ask, Ask::Refund { .. })))
    }

    /// Decides the action, given what its bucket and its record remember.
    pub(super) fn decide_with_record(
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
        let gives_back = self.action.is_about_reservation() || self.action.gives_back();
        let bucket_change = match self.change(decision.state, gives_back) {
            // A bucket that never existed need not be forgotten.
            Change::Clear if bucket.is_none() => Change::Keep,
            change => change,
        };
        (decision.outcome, bucket_change, change)
    }

    /// Returns the change to this state. If the action `gives_back` credits, a bucket that has all of them is as good as fresh.
    #[inline]
    fn change(&self, state: Option<State>, gives_back: bool) -> Change {
        match state {
            Some(state) if gives_back && self.limit.lifetime_ns(&state, self.at) == 0 => Change::Clear,
            Some(state) => Change::Set(state),
            None => Change::Keep,
        }
    }

    /// Looks for as many credits as the entry asks for. A look takes none. It changes the state only if the clock was set back.
    pub(super) fn look(&self, state: Option<&State>) -> (Outcome, Change) {
        if self.action == Action::Forget {
            return (self.decide(state).0, Change::Keep);
        }
        let cost = self.action.wanted().unwrap_or(0);
        self.decide_ask(Ask::Look { cost }, state)
    }

    /// The answer when nothing can be counted and the operator wants that allowed: what a bucket that was never asked
    /// before would answer.
    pub(super) fn uncounted(&self) -> Outcome {
        self.decide(None).0
    }

    /// The answer when nothing can be counted and the operator wants that denied: nothing left, for a second.
    pub(super) fn denied(&self) -> Outcome {
        Outcome {
            allowed: false,
            before: 0,
            left: 0,
            reset_ns: ASK_AGAIN_NS,
            retry_ns: Some(ASK_AGAIN_NS),
            ..self.uncounted()
        }
    }

    /// When a bucket in `state` may be forgotten, by the server's clock, which reads `now`.
    pub fn expiry(&self, state: &State, now: Timestamp) -> Timestamp {
        now.plus(self.limit.lifetime_ns(state, self.at))
    }
}

/// A number that no bucket's reservations had before, on any server: also not a moment ago, in the same batch.
pub(super) fn generation() -> u64 {
    static SECRET: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    static NEXT: AtomicU64 = AtomicU64::new(0);
    SECRET.hash_one(NEXT.fetch_add(1, Relaxed))
}

/// A batch of actions, and their outcomes once a store has applied it. Reused from read to read: its buffers keep their
/// capacity, so that a hit allocates nothing.
#[derive(Debug, Default)]
pub struct Batch {
    /// The server's time when the batch was begun; expiries on disk are reckoned from it.
    pub(super) now: Timestamp,
    /// The client that asks.
    pub(super) origin: Option<Origin>,
    pub(super) keys: Vec<u8>,
    pub(super) entries: Vec<Entry>,
    /// Entries that take effect together, by index; ascending.
    groups: Vec<Range<usize>>,
    pub(super) outcomes: Outcomes,
    /// Outcomes that rest on a change which was not durable yet, by index.
    pub(super) unsettled: Vec<usize>,
    /// The task that applies the batch now, whose caller has stopped waiting. This one is empty then.
    unattended: Option<JoinHandle<Batch>>,
}

impl Batch {
    /// Leaves the batch to a task that applies it to its end.
    pub(super) fn leave_to(&mut self, task: JoinHandle<Self>) {
        self.unattended = Some(task);
    }

    /// The task that applies the batch to its end, if the store was still at it when its caller stopped waiting.
    pub fn take_unattended(&mut self) -> Option<JoinHandle<Self>> {
        self.unattended.take()
    }

    /// Empties the batch and dates it.
    pub fn begin(&mut self, now: Timestamp) {
        self.now = now;
        self.keys.clear();
        self.entries.clear();
        self.groups.clear();
        self.outcomes.clear();
        self.unsettled.clear();
    }

    /// From now on, actions come from there, in later batches, too.
    pub fn set_origin(&mut self, origin: Option<Origin>) {
        self.origin = origin;
    }

    /// Adds an action on the bucket whose key `write_key` appends; returns its index.
    pub fn push(&mut self, limit: Limit, action: Action, at: Timestamp, write_key: impl FnOnce(&mut Vec<u8>)) -> usize {
        let start = self.keys.len();
        write_key(&mut self.keys);
        self.entries.push(Entry::new(start..self.keys.len(), limit, action, at));
        self.entries.len() - 1
    }

    /// As [`Batch::push`], when only the key tells the limit; `None`, and nothing is added, when `write_key` says so.
    #[inline]
    pub fn push_if(
        &mut self,
        action: Action,
        at: Timestamp,
        write_key: impl FnOnce(&mut Vec<u8>) -> Option<Limit>,
    ) -> Option<usize> {
        let (key, limit) = append_key(&mut self.keys, write_key)?;
        self.entries.push(Entry::new(key, limit, action, at));
        Some(self.entries.len() - 1)
    }

    /// Adds an ask about the reservation called `id`, of the bucket whose key and limit `write_key` tells; returns its index.
    /// `None`, and nothing is added, when it says so.
    pub fn push_reservation(
        &mut self,
        ask: ReservationAsk,
        id: &[u8],
        write_key: impl FnOnce(&mut Vec<u8>) -> Option<Limit>,
    ) -> Option<usize> {
        let space = RecordSpace::Reservations;
        self.push_if(Action::Reservation(ask), self.now, |out| record_key::write(space, id, out, write_key))
    }

    /// Adds an idempotent ask, whose record is called `id`, of the bucket whose key and limit `write_key` writes and returns.
    /// `fingerprint` identifies the request, which has the number `request` in this batch. Returns the entry's index, or `None` if
    /// `write_key` returns no limit; then nothing is added.
    pub fn push_idempotent(
        &mut self,
        ask: Ask,
        (id, fingerprint, request): (&[u8], u64, u32),
        write_key: impl FnOnce(&mut Vec<u8>) -> Option<Limit>,
    ) -> Option<usize> {
        let write_key = |out: &mut _| record_key::write(RecordSpace::Answers, id, out, write_key);
        let index = self.push_if(Action::Idempotent { ask, fingerprint }, self.now, write_key)?;
        self.entries.last_mut()?.request = request;
        Some(index)
    }

    /// Has the entry with this index take or reserve no more than its bucket can hold.
    pub fn clamp(&mut self, index: usize) {
        if let Some(entry) = self.entries.get_mut(index) {
            entry.action = entry.action.up_to(entry.limit.capacity());
        }
    }

    /// Has the entries from index `first` on take nothing.
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

    /// Makes the entries from index `first` on a group: they take effect together or not at all (see [`Store`]). Each must
    /// be an [`Ask::Look`], an [`Ask::Take`], an [`Ask::Overdraw`], one of these once, or a [`ReservationAsk::Reserve`], of a bucket
    /// of its own. Or each settles a reservation of a bucket of its own: nothing denies that, so all of them always take effect.
    ///
    /// [`Store`]: super::contract::Store
    pub fn group(&mut self, first: usize) {
        // One entry does so anyway.
        if first + 1 < self.entries.len() {
            self.groups.push(first..self.entries.len());
        }
    }

    /// Takes back the entries from index `len` on, and groups with such entries; for a batch that no store has applied yet.
    pub fn truncate(&mut self, len: usize) {
        if let Some(first) = self.entries.get(len) {
            self.keys.truncate(first.key.start);
            self.entries.truncate(len);
            self.groups.retain(|group| group.end <= len);
        }
    }

    /// Memory that its entries take until they are answered, rather too much than too little (bytes).
    #[inline]
    pub fn weight(&self) -> usize {
        self.entries.len() * ENTRY_WEIGHT + self.keys.len()
    }

    /// The entries as ranges of indexes, in order, each of at most `max` bytes of [weight](Batch::weight). A group is never
    /// divided, so a range may be heavier if it is one unit.
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

    /// What its buffers hold, used or not (bytes).
    pub fn memory(&self) -> usize {
        self.keys.capacity()
            + self.entries.capacity() * size_of::<Entry>()
            + self.groups.capacity() * size_of::<Range<usize>>()
            + self.outcomes.capacity() * size_of::<Result<Outcome, StoreError>>()
            + self.unsettled.capacity() * size_of::<usize>()
    }

    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// The entry's time if a client brought it; `None` where it is the batch's own.
    pub(super) fn brought_time(&self, entry: &Entry) -> Option<Timestamp> {
        (entry.at != self.now).then_some(entry.at)
    }

    /// The limit of the entry with this index.
    pub fn limit(&self, index: usize) -> Option<Limit> {
        Some(self.entries.get(index)?.limit)
    }

    /// What the entry with this index asks.
    pub fn action(&self, index: usize) -> Option<Action> {
        Some(self.entries.get(index)?.action)
    }

    /// The key of the entry with this index.
    pub fn key_at(&self, index: usize) -> Option<&[u8]> {
        Some(key_of(&self.keys, self.entries.get(index)?))
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Answers every entry, in order, with what `answer` makes of its index, its bucket key and itself; groups have no
    /// meaning to it.
    pub(super) fn answer_each(&mut self, mut answer: impl FnMut(usize, &[u8], &Entry) -> Result<Outcome, StoreError>) {
        self.forget_outcomes();
        let keys = &self.keys;
        let answers = self.entries.iter().enumerate().map(|(index, entry)| answer(index, key_of(keys, entry), entry));
        self.outcomes.extend(answers);
    }

    /// Answers what is not answered yet, unit by unit, until `answer` says false. It adds the outcomes of all of the unit's
    /// entries, or says false and adds none. Whether all are answered now.
    pub(super) fn answer_on(&mut self, mut answer: impl FnMut(Unit<'_>, &mut Outcomes) -> bool) -> bool {
        let mut outcomes = std::mem::take(&mut self.outcomes);
        let answered = outcomes.len();
        outcomes.reserve(self.entries.len().saturating_sub(answered));
        let is_done = if self.groups.is_empty() {
            // As most batches are: looking for groups would cost each of their entries something.
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

    pub(super) fn has_groups(&self) -> bool {
        !self.groups.is_empty()
    }

    /// The bucket key of one of its entries.
    pub(super) fn key(&self, entry: &Entry) -> &[u8] {
        key_of(&self.keys, entry)
    }

    /// What takes effect together, from the entry with index `first` on, with which a unit must begin.
    pub(super) fn units(&self, first: usize) -> impl Iterator<Item = Unit<'_>> {
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

    /// Index, key and itself of each entry that is not answered yet, in order.
    #[cfg_attr(not(feature = "rocksdb"), expect(dead_code, reason = "only the embedded store reads in advance"))]
    pub(super) fn unanswered(&self) -> impl Iterator<Item = (usize, &[u8], &Entry)> {
        let entries = self.entries.iter().enumerate().skip(self.outcomes.len());
        entries.map(|(index, entry)| (index, key_of(&self.keys, entry), entry))
    }

    /// Takes all answers back.
    pub fn forget_outcomes(&mut self) {
        self.outcomes.clear();
    }

    /// Replaces the outcomes that rest on changes which could not be made durable.
    #[cfg_attr(not(feature = "rocksdb"), expect(dead_code, reason = "only the embedded store makes changes durable"))]
    pub(super) fn fail_unsettled(&mut self, error: &StoreError) {
        for index in self.unsettled.drain(..) {
            if let Some(outcome) = self.outcomes.get_mut(index) {
                *outcome = Err(error.clone());
            }
        }
    }

    /// Every key, entry and outcome, once the batch is applied.
    pub(super) fn answers(&self) -> impl Iterator<Item = (&[u8], &Entry, &Result<Outcome, StoreError>)> {
        self.entries.iter().zip(&self.outcomes).map(|(entry, outcome)| (key_of(&self.keys, entry), entry, outcome))
    }

    /// The entries at `indexes`, which ascend and have all or none of a group, as a batch of their own, to be applied
    /// elsewhere.
    pub fn part(&self, indexes: &[usize]) -> Self {
        let mut part = Self { now: self.now, origin: self.origin, ..Self::default() };
        let mut groups = self.groups.iter().peekable();
        for (index, entry) in indexes.iter().filter_map(|index| Some((*index, self.entries.get(*index)?))) {
            part.push_copy(self, entry);
            while groups.next_if(|group| group.end <= index).is_some() {}
            if let Some(group) = groups.next_if(|group| group.end == index + 1) {
                part.group(part.len() - group.len());
            }
        }
        part
    }

    /// Takes over the outcomes of `part`, which is [`Batch::part`] of `indexes`.
    pub(super) fn adopt(&mut self, part: Self, indexes: &[usize]) {
        for (index, outcome) in indexes.iter().zip(part.outcomes) {
            if let Some(place) = self.outcomes.get_mut(*index) {
                *place = outcome;
            }
        }
    }

    /// Takes over the outcomes of `part`, whose entries follow those that have outcomes already.
    pub fn adopt_next(&mut self, part: Self) {
        self.outcomes.extend(part.outcomes);
    }

    /// Returns the outcome of the entry with this index, or an error if no store has applied it.
    pub fn outcome(&self, index: usize) -> Result<Outcome, StoreError> {
        outcome_at(&self.outcomes, index)
    }

    /// Moves the outcomes out.
    pub fn take_outcomes(&mut self) -> Outcomes {
        std::mem::take(&mut self.outcomes)
    }

    /// Takes back the buffer from [`Batch::take_outcomes`], for the next batch to use.
    pub fn reuse_outcomes(&mut self, outcomes: Outcomes) {
        self.outcomes = outcomes;
    }

    /// The entry with this index, to be changed while the batch is being built.
    pub fn entry_mut(&mut self, index: usize) -> Option<&mut Entry> {
        self.entries.get_mut(index)
    }

    /// Appends the entries of another batch. Returns the index of the first.
    pub fn append(&mut self, other: &Self) -> usize {
        let first = self.entries.len();
        other.entries.iter().for_each(|entry| self.push_copy(other, entry));
        first
    }

    /// Adds a copy of an entry of another batch.
    fn push_copy(&mut self, other: &Self, entry: &Entry) {
        let start = self.keys.len();
        self.keys.extend_from_slice(key_of(&other.keys, entry));
        self.entries.push(Entry { key: start..self.keys.len(), ..entry.clone() });
    }
}

/// The outcomes of a batch's entries, in their order.
pub type Outcomes = Vec<Result<Outcome, StoreError>>;

/// Returns the outcome of the entry with this index, or an error if no store has applied it.
#[inline]
pub fn outcome_at(outcomes: &Outcomes, index: usize) -> Result<Outcome, StoreError> {
    match outcomes.get(index) {
        Some(Ok(outcome)) => Ok(*outcome),
        Some(Err(error)) => Err(error.clone()),
        None => Err(StoreError::new("the store returned no answer")),
    }
}

/// What takes effect together: one entry, or those of a group.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unit<'a> {
    /// The index of the first.
    pub first: usize,
    pub entries: &'a [Entry],
    keys: &'a [u8],
}

impl<'a> Unit<'a> {
    /// The bucket key of one of its entries.
    pub(super) fn key(&self, entry: &Entry) -> &'a [u8] {
        key_of(self.keys, entry)
    }

    /// Index, key and itself of each entry.
    pub(super) fn members(self) -> impl Iterator<Item = (usize, &'a [u8], &'a Entry)> + Clone {
        self.entries.iter().enumerate().map(move |(place, entry)| (self.first + place, self.key(entry), entry))
    }
}

/// Where among `keys` the key is that `write_key` appends, and the limit that it tells; `None`, and nothing is appended, when
/// it tells none.
#[inline]
pub fn append_key(
    keys: &mut Vec<u8>,
    write_key: impl FnOnce(&mut Vec<u8>) -> Option<Limit>,
) -> Option<(Range<usize>, Limit)> {
    let start = keys.len();
    let limit = write_key(keys);
    if limit.is_none() {
        keys.truncate(start);
    }
    limit.map(|limit| (start..keys.len(), limit))
}

/// The entry's own part of its batch's `keys`.
#[expect(clippy::indexing_slicing, reason = "a batch's entries and keys grow and shrink together")]
fn key_of<'a>(keys: &'a [u8], entry: &Entry) -> &'a [u8] {
    &keys[entry.key.clone()]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::algorithm::FixedWindow;

    /// The shares of an address count records by request.
    #[test]
    fn entry_of_an_appended_batch_keeps_the_number_of_its_request() {
        let limit = Limit::FixedWindow(FixedWindow::new(1, NANOS_PER_SECOND).unwrap());
        let write_key = |out: &mut Vec<u8>| {
            out.extend_from_slice(b"key");
            Some(limit)
        };
        let (mut batch, mut other) = (Batch::default(), Batch::default());
        batch.push(limit, Action::Forget, Timestamp::EPOCH, |out| out.push(b'k'));
        other.push_idempotent(Ask::Take { cost: 1 }, (b"id", 5, 7), write_key).unwrap();
        assert_eq!(batch.append(&other), 1);
        assert_eq!((batch.entries[1].request, batch.key_at(1)), (7, other.key_at(0)));
    }

    proptest! {
        #[test]
        fn parts_cover_all_entries_and_divide_no_group(
            units in prop::collection::vec((1_usize..6, 0_usize..2_000), 0..40),
            max in 0_usize..10_000,
        ) {
            let limit = Limit::FixedWindow(FixedWindow::new(1, NANOS_PER_SECOND).unwrap());
            let mut batch = Batch::default();
            for (members, key) in &units {
                let first = batch.len();
                for _ in 0..*members {
                    batch.push(limit, Action::Forget, Timestamp::EPOCH, |out| out.resize(out.len() + key, 0));
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
