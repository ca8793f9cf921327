//! Reservations: what is remembered of each, and what a bucket and the record of a reservation come to together.
//!
//! A reservation sets credits aside until it ends. It ends by its time or with its bucket's window, or because it is
//! released or committed. A commit counts what was used, whatever was reserved, and is remembered for a while, so that a
//! client that got no answer may ask again. Where the records are kept is the store's business, and so are their names.

use super::ask::{Ask, Outcome};
use super::reserving::Ends;
use super::{Decision, Limit, State, decide, reserved, reserving};
use crate::clock::{NANOS_PER_SECOND, Timestamp};

/// The longest time of a reservation (seconds): thirty days. What is set aside for longer is a quota of its own.
pub const LONGEST_SECONDS: u32 = 30 * 24 * 60 * 60;
/// A commit is remembered for so long at least.
pub const REMEMBERED_NS: u64 = 60 * NANOS_PER_SECOND;

/// What is asked about a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReservationAsk {
    /// Set `credits`, at least one, aside for so many seconds: all or none. Asked again, it is the same reservation.
    Reserve { credits: u64, ttl_seconds: u32 },
    /// Count `cost` credits that were used, and free what is reserved. Without a reservation `charges` has them counted all
    /// the same.
    Commit { cost: u64, charges: bool },
    /// Free what is reserved.
    Release,
    /// Keep what is reserved for so many seconds from now on; never for less than it is. `None`: for as many as it was made for.
    Renew { ttl_seconds: Option<u32> },
}

/// What an ask about a reservation came to, or one that is answered once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fate {
    /// As asked.
    #[default]
    Done,
    /// A commit's reservation had ended: what was used is counted now.
    Late,
    /// It was asked before: the answer is the first one, and nothing has changed.
    Repeated,
    /// There is no such reservation, or it has ended: nothing has changed.
    Gone,
    /// A reservation of that name exists with other credits, or for another time; or another ask had the name: nothing has
    /// changed.
    Different,
}

/// What is remembered of a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reservation {
    /// What was asked for.
    pub credits: u64,
    pub ttl_seconds: u32,
    pub stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Its credits are set aside until `ends`, by its bucket's own clock, unless the bucket of this generation was forgotten;
    /// remembered until `until`: this was the same time by the server's clock, and is later if that was set back since.
    Open { until: Timestamp, ends: Timestamp, generation: u64 },
    /// It was committed, and answered like this; remembered until `until`: for [`REMEMBERED_NS`], and until the reservation
    /// would have ended, but for no longer than it was made for.
    Committed { until: Timestamp, left: u64, owed: u64, reset_ns: u64 },
}

/// What bucket and record come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decided {
    /// `session` is when the reservation ends, where it goes on.
    pub outcome: Outcome,
    /// The bucket's new state; `None`: it has not changed.
    pub bucket: Option<State>,
    pub record: RecordChange,
}

/// What becomes of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordChange<R = Reservation> {
    Keep,
    Set(R),
    Clear,
}

impl<R: Copy + PartialEq> RecordChange<R> {
    /// Returns this change. If it keeps the record, and the ask `found` it corrected, returns the correction.
    pub fn or_found(self, record: Option<R>, found: Option<R>) -> Self {
        match (self, found) {
            (Self::Keep, Some(found)) if record.is_none_or(|record| record != found) => Self::Set(found),
            (change, _) => change,
        }
    }
}

impl<R> RecordChange<R> {
    /// The same, of another kind of record.
    pub fn map<T>(self, of: impl FnOnce(R) -> T) -> RecordChange<T> {
        match self {
            Self::Keep => RecordChange::Keep,
            Self::Set(record) => RecordChange::Set(of(record)),
            Self::Clear => RecordChange::Clear,
        }
    }
}

impl Reservation {
    /// When it may be forgotten.
    pub fn expires(&self) -> Timestamp {
        match self.stage {
            Stage::Open { until, .. } | Stage::Committed { until, .. } => until,
        }
    }

    /// Returns the record as an ask at `at` finds it, or `None` when it has expired. If the clock was set back, a commit expires no
    /// later than one that is made now.
    pub fn found(self, at: Timestamp) -> Option<Self> {
        let stage = match self.stage {
            Stage::Open { .. } => self.stage,
            Stage::Committed { until, left, owed, reset_ns } => {
                let until = decide::expiry(until, self.longest_remembered_ns(), at);
                Stage::Committed { until, left, owed, reset_ns }
            }
        };
        (at < self.expires()).then_some(Self { stage, ..self })
    }

    /// Returns the latest time that is certainly before the reservation was made or committed.
    pub fn made_after(&self) -> Timestamp {
        match self.stage {
            // It may have been renewed for any time.
            Stage::Open { .. } => Timestamp::EPOCH,
            Stage::Committed { until, .. } => until.minus(self.longest_remembered_ns()),
        }
    }

    /// Moves the expiry, because the server's clock was set back by `by_ns`.
    pub fn set_back(&mut self, by_ns: u64) {
        match &mut self.stage {
            Stage::Open { until, .. } | Stage::Committed { until, .. } => *until = until.minus(by_ns),
        }
    }

    /// Returns how long (nanoseconds) its commit is remembered at most.
    fn longest_remembered_ns(&self) -> u64 {
        REMEMBERED_NS.max(reserved::longest_ns(self.ttl_seconds))
    }
}

impl Limit {
    /// Decides `ask` about a reservation at time `at`, given what its bucket remembers, and what of the reservation is
    /// remembered. `generation` is a number that no other bucket of its key had lately.
    pub fn decide_reservation(
        &self,
        bucket: Option<&State>,
        record: Option<&Reservation>,
        ask: ReservationAsk,
        generation: u64,
        at: Timestamp,
    ) -> Decided {
        let found = record.and_then(|record| record.found(at));
        let case = Case { limit: self, bucket, record: found.as_ref(), at };
        let decided = match ask {
            ReservationAsk::Reserve { credits, ttl_seconds } => case.reserve(credits, ttl_seconds, generation),
            ReservationAsk::Commit { cost, charges } => case.commit(cost, charges),
            ReservationAsk::Release => case.release(),
            ReservationAsk::Renew { ttl_seconds } => case.renew(ttl_seconds),
        };
        Decided { record: decided.record.or_found(record.copied(), found), ..decided }
    }
}

/// What an ask finds.
struct Case<'a> {
    limit: &'a Limit,
    bucket: Option<&'a State>,
    record: Option<&'a Reservation>,
    at: Timestamp,
}

/// A reservation whose credits are set aside.
#[derive(Clone, Copy)]
struct Open {
    credits: u64,
    ends: Ends,
    generation: u64,
}

impl Open {
    fn stage(self) -> Stage {
        Stage::Open { until: self.ends.by_server, ends: self.ends.by_bucket, generation: self.generation }
    }
}

impl Case<'_> {
    fn reserve(&self, credits: u64, ttl_seconds: u32, generation: u64) -> Decided {
        // A lease that was committed is free: its name may be used again.
        let is_lease = matches!(self.limit, Limit::Concurrency(_));
        let is_over = |known: &&Reservation| is_lease && matches!(known.stage, Stage::Committed { .. });
        if let Some(known) = self.known().filter(|known| !is_over(known)) {
            return self.reserved_before(known, credits, ttl_seconds);
        }
        let wanted = (credits, ttl_seconds, generation);
        let changed = with_algorithm!(self.limit, limit => reserving::reserve(limit, self.bucket, wanted, self.at));
        let (true, Some(bucket)) = (changed.is_allowed, &changed.state) else {
            return Decided { bucket: changed.state, ..unchanged(changed.outcome) };
        };
        let generation = if let State::Reserving(held) = bucket { held.reserved.generation } else { generation };
        let stage = Open { credits, ends: changed.ends, generation }.stage();
        Decided {
            outcome: Outcome { session: changed.ends.by_server, ..changed.outcome },
            bucket: changed.state,
            record: RecordChange::Set(Reservation { credits, ttl_seconds, stage }),
        }
    }

    /// The same reservation once more, or another one of its name.
    fn reserved_before(&self, known: &Reservation, credits: u64, ttl_seconds: u32) -> Decided {
        let is_unknown = known.credits == 0;
        // How long a lease lasts is not what the client has asked for.
        let is_lease = matches!(self.limit, Limit::Concurrency(_));
        let lasts_alike = is_lease || known.ttl_seconds == ttl_seconds;
        let is_same = is_unknown || (known.credits == credits && lasts_alike);
        let fate = if is_same { Fate::Repeated } else { Fate::Different };
        let session = self.open().map_or(Timestamp::EPOCH, |open| open.ends.by_server);
        let looked = self.look();
        Decided { outcome: Outcome { allowed: is_same, fate, session, ..looked.outcome }, ..looked }
    }

    fn commit(&self, cost: u64, charges: bool) -> Decided {
        if let Some(Reservation { stage: Stage::Committed { left, owed, reset_ns, .. }, .. }) = self.record {
            let (left, owed, reset_ns) = (*left, *owed, *reset_ns);
            let first = Outcome { allowed: true, before: left, left, owed, reset_ns, ..Outcome::default() };
            return unchanged(Outcome { fate: Fate::Repeated, ..first });
        }
        let open = self.open();
        if open.is_none() && !charges {
            return self.gone();
        }
        let changed = self.settle(open, cost);
        let fate = if open.is_some() { Fate::Done } else { Fate::Late };
        let outcome = Outcome { fate, ..changed.outcome };
        let Outcome { left, owed, reset_ns, .. } = outcome;
        let remembered = self.at.plus(REMEMBERED_NS);
        // What a reservation that had ended was made with is not known any more.
        let of = self.record.filter(|_| open.is_some());
        let (credits, ttl_seconds) = of.map_or((0, 0), |record| (record.credits, record.ttl_seconds));
        let as_made = self.at.plus(reserved::longest_ns(ttl_seconds));
        let until = open.map_or(remembered, |open| remembered.max(open.ends.by_server.min(as_made)));
        let record = Reservation { credits, ttl_seconds, stage: Stage::Committed { until, left, owed, reset_ns } };
        Decided { outcome, bucket: changed.state, record: RecordChange::Set(record) }
    }

    fn release(&self) -> Decided {
        let Some(open) = self.open() else { return self.gone() };
        let changed = self.settle(Some(open), 0);
        Decided { outcome: changed.outcome, bucket: changed.state, record: RecordChange::Clear }
    }

    fn renew(&self, ttl_seconds: Option<u32>) -> Decided {
        let (Some(record), Some(open)) = (self.record, self.open()) else { return self.gone() };
        let longer = (open.credits, open.ends.by_bucket, ttl_seconds.unwrap_or(record.ttl_seconds));
        let changed = with_algorithm!(self.limit, limit => reserving::renew(limit, self.bucket, longer, self.at));
        let stage = Open { ends: changed.ends, ..open }.stage();
        Decided {
            outcome: Outcome { session: changed.ends.by_server, ..changed.outcome },
            bucket: changed.state,
            record: RecordChange::Set(Reservation { stage, ..*record }),
        }
    }

    /// Frees what is reserved, if anything is, and counts `cost`.
    fn settle(&self, open: Option<Open>, cost: u64) -> Decision {
        let (credits, ends) = open.map_or((0, self.at), |open| (open.credits, open.ends.by_bucket));
        let used = (credits, ends, cost);
        with_algorithm!(self.limit, limit => reserving::settle(limit, self.bucket, used, self.at))
    }

    /// The reservation, if its credits are set aside.
    fn open(&self) -> Option<Open> {
        let Reservation { credits, stage: Stage::Open { ends, generation, .. }, .. } = *self.record? else {
            return None;
        };
        let Some(State::Reserving(held)) = self.bucket else { return None };
        let by_server = with_algorithm!(self.limit, limit => reserving::end_by_server(limit, held, ends, self.at));
        let is_open = self.at < by_server && generation == held.reserved.generation;
        is_open.then_some(Open { credits, ends: Ends { by_server, by_bucket: ends }, generation })
    }

    /// The reservation, if it is not over, or was committed lately.
    fn known(&self) -> Option<&Reservation> {
        let is_open = self.open().is_some();
        self.record.filter(|record| is_open || matches!(record.stage, Stage::Committed { .. }))
    }

    fn gone(&self) -> Decided {
        let looked = self.look();
        Decided { outcome: Outcome { allowed: false, fate: Fate::Gone, ..looked.outcome }, ..looked }
    }

    fn look(&self) -> Decided {
        let Decision { outcome, state } = self.limit.decide(self.bucket, Ask::Look { cost: 0 }, self.at);
        Decided { bucket: state, ..unchanged(outcome) }
    }
}

fn unchanged(outcome: Outcome) -> Decided {
    Decided { outcome, bucket: None, record: RecordChange::Keep }
}
