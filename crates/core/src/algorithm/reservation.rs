//! Reservations: a decision changes a bucket and the reservation's record together.
//!
//! A reservation sets credits aside until it ends: when its TTL has passed, its bucket's window ends, or it is released
//! or committed. A commit counts the credits used, which may be more or fewer than were reserved. Its answer is
//! remembered for a while, so that a client that got no answer may send it again.

use super::decide::{Ask, Outcome, Resolution, Run};
use super::groups::longest_ns;
use super::limit::{Decision, Kind, Limit, State, with_algorithm};
use super::record::{Content, REMEMBERED_NS, Record, RecordChange, Reservation};
use super::set_aside::{Decorator, Expiry, OpenReservation};
use crate::clock::Timestamp;

/// Maximum TTL of a reservation: thirty days (seconds). Use a quota to set credits aside for longer.
pub const LONGEST_SECONDS: u32 = 30 * 24 * 60 * 60;

/// A caller's request about a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReservationAsk {
    /// Sets `credits`, at least one, aside for `ttl_seconds`: all or none. A repeated request finds the same
    /// reservation.
    Reserve {
        /// Credits to set aside, at least 1.
        credits: u64,
        /// TTL.
        ttl_seconds: u32,
    },
    /// Counts `cost` credits that were used, and frees the reserved credits. If there is no reservation, `charges` says
    /// whether the cost is counted anyway.
    Commit {
        /// Credits that were used.
        cost: u64,
        /// Whether the cost is counted even without a reservation.
        charges: bool,
        /// The run that is meant; `None` for whichever has the name.
        run: Option<Run>,
    },
    /// Frees the reserved credits.
    Release {
        /// As for a commit.
        run: Option<Run>,
    },
    /// Keeps the reserved credits for `ttl_seconds` from now on, but never for less time than before. `None` stands for
    /// the TTL of the original request.
    Renew {
        /// New TTL.
        ttl_seconds: Option<u32>,
        /// As for a commit.
        run: Option<Run>,
    },
}

impl ReservationAsk {
    /// Returns the run that the ask is about; `None` for whichever has the name, or for a new one.
    pub fn run(self) -> Option<Run> {
        match self {
            Self::Reserve { .. } => None,
            Self::Commit { run, .. } | Self::Release { run } | Self::Renew { run, .. } => run,
        }
    }
}

/// Returns the run of a reservation that is made with this [generation](Limit::decide_reservation).
pub fn run_of(generation: u64) -> Run {
    Run::new(generation as u32).unwrap_or(Run::MAX)
}

impl Limit {
    /// Decides `ask` about a reservation at time `at`, given the state of its bucket and its record. `generation` is a
    /// number that no other bucket with the same key had recently. In the outcome, `session` is the end of the
    /// reservation, if it is still open.
    pub fn decide_reservation(
        &self,
        bucket: Option<&State>,
        record: Option<&Record>,
        ask: ReservationAsk,
        generation: u64,
        at: Timestamp,
    ) -> (Decision, RecordChange) {
        let found = record.and_then(|record| record.found(at));
        // Another reservation has the name now. Its record stays.
        let run_found = found.and_then(|record| record.reservation()?.run);
        let is_of_other = ask.run().is_some_and(|run| found.is_some() && Some(run) != run_found);
        let record_of_run = found.as_ref().filter(|_| !is_of_other);
        let context = Context { limit: self, bucket, record: record_of_run, at };
        let (decision, change) = match ask {
            ReservationAsk::Reserve { credits, ttl_seconds } => {
                let run = Some(run_of(generation));
                context.reserve(Reservation { credits, ttl_seconds, run }, generation)
            }
            ReservationAsk::Commit { cost, charges, run } => context.commit(cost, charges, run),
            ReservationAsk::Release { .. } => context.release(),
            ReservationAsk::Renew { ttl_seconds, .. } => context.renew(ttl_seconds),
        };
        let change = if is_of_other { RecordChange::Keep } else { change };
        (decision, change.or_found(record, at))
    }

    /// Decides a request to reserve under a name whose reservation is over in another bucket of its group. What is still set
    /// aside here becomes the new reservation's, so that the old one's id concerns no part of it.
    pub fn decide_next_run(
        &self,
        bucket: Option<&State>,
        record: Option<&Record>,
        (credits, ttl_seconds): (u64, u32),
        generation: u64,
        at: Timestamp,
    ) -> (Decision, RecordChange) {
        let found = record.and_then(|record| record.found(at));
        let context = Context { limit: self, bucket, record: found.as_ref(), at };
        let reservation = Reservation { credits, ttl_seconds, run: Some(run_of(generation)) };
        let (decision, change) = match context.find_open() {
            Some(open) => context.extend(OpenReservation { reservation, ..open }, ttl_seconds),
            None => Context { record: None, ..context }.reserve(reservation, generation),
        };
        (decision, change.or_found(record, at))
    }
}

/// An ask's bucket, record and time.
struct Context<'a> {
    limit: &'a Limit,
    bucket: Option<&'a State>,
    record: Option<&'a Record>,
    at: Timestamp,
}

/// Returns the decision with the end of the reservation, and the reservation's record.
fn record_open(mut decision: Decision, open: OpenReservation) -> (Decision, RecordChange) {
    let OpenReservation { reservation, expiry, generation, capacity } = open;
    decision.outcome.session = expiry.by_server;
    decision.outcome.run = reservation.run;
    let content = Content::Open { reservation, ends: expiry.by_bucket, generation, capacity };
    (decision, RecordChange::Set(Record { until: expiry.by_server, content }))
}

impl Context<'_> {
    fn reserve(&self, reservation: Reservation, generation: u64) -> (Decision, RecordChange) {
        let open = self.find_open();
        let existing = match self.record.map(|record| record.content) {
            Some(Content::Open { reservation, .. }) if open.is_some() => Some(reservation),
            // A committed lease is free, so its name may be used again.
            Some(Content::Committed { reservation, .. }) if self.limit.kind() != Kind::Concurrency => Some(reservation),
            _ => None,
        };
        if let Some(existing) = existing {
            return self.repeat(existing, reservation, open);
        }
        let wanted = (reservation, generation);
        let (decision, expiry) =
            with_algorithm!(self.limit, limit => Decorator(limit).reserve(self.bucket, wanted, self.at));
        let (true, Some(state)) = (decision.outcome.allowed, &decision.state) else {
            return (decision, RecordChange::Keep);
        };
        let generation = if let State::Reserved(state) = state { state.groups.generation } else { generation };
        record_open(decision, OpenReservation { reservation, expiry, generation, capacity: self.limit.capacity() })
    }

    /// Answers a request to reserve under a name that is in use: by the same reservation, or by another one.
    fn repeat(
        &self,
        existing: Reservation,
        wanted: Reservation,
        open: Option<OpenReservation>,
    ) -> (Decision, RecordChange) {
        // The rule, not the client, says how long a lease lasts.
        let lasts_alike = self.limit.kind() == Kind::Concurrency || existing.ttl_seconds == wanted.ttl_seconds;
        let is_unknown = existing.credits == 0;
        let is_same = is_unknown || (existing.credits == wanted.credits && lasts_alike);
        let resolution = if is_same { Resolution::Repeated } else { Resolution::Different };
        let session = open.map_or(Timestamp::EPOCH, |open| open.expiry.by_server);
        self.look(|outcome| Outcome { allowed: is_same, resolution, session, run: existing.run, ..outcome })
    }

    fn commit(&self, cost: u64, charges: bool, run: Option<Run>) -> (Decision, RecordChange) {
        if let Some(&Record { content: Content::Committed { left, owed, reset_ns, .. }, .. }) = self.record {
            let first = Outcome { allowed: true, before: left, left, owed, reset_ns, ..Outcome::default() };
            let outcome = Outcome { resolution: Resolution::Repeated, ..first };
            return (Decision { outcome, state: None }, RecordChange::Keep);
        }
        let open = self.find_open();
        if open.is_none() && !charges {
            return self.gone();
        }
        let mut decision = self.settle(open, cost);
        decision.outcome.resolution = if open.is_some() { Resolution::Done } else { Resolution::Late };
        // The credits and the TTL of a reservation that has ended are unknown.
        let reservation = open.map_or(Reservation { run, ..Reservation::default() }, |open| open.reservation);
        let as_made = self.at.plus(longest_ns(reservation.ttl_seconds));
        let ends = open.map_or(Timestamp::EPOCH, |open| open.expiry.by_server.min(as_made));
        let Outcome { left, owed, reset_ns, .. } = decision.outcome;
        let content = Content::Committed { reservation, left, owed, reset_ns };
        (decision, RecordChange::Set(Record { until: ends.max(self.at.plus(REMEMBERED_NS)), content }))
    }

    fn release(&self) -> (Decision, RecordChange) {
        match self.find_open() {
            Some(open) => (self.settle(Some(open), 0), RecordChange::Clear),
            None => self.gone(),
        }
    }

    fn renew(&self, ttl_seconds: Option<u32>) -> (Decision, RecordChange) {
        let Some(open) = self.find_open() else { return self.gone() };
        self.extend(open, ttl_seconds.unwrap_or(open.reservation.ttl_seconds))
    }

    /// Keeps the reserved credits for this TTL from now on, but never for less time than before.
    fn extend(&self, open: OpenReservation, ttl_seconds: u32) -> (Decision, RecordChange) {
        let longer = (open.reservation.credits, open.expiry.by_bucket, ttl_seconds);
        let (decision, expiry) =
            with_algorithm!(self.limit, limit => Decorator(limit).renew(self.bucket, longer, self.at));
        record_open(decision, OpenReservation { expiry, ..open })
    }

    /// Frees the reserved credits, if there are any, and counts `cost`.
    fn settle(&self, open: Option<OpenReservation>, cost: u64) -> Decision {
        with_algorithm!(self.limit, limit => Decorator(limit).settle(self.bucket, open, cost, self.at))
    }

    /// Returns the reservation if its credits are still set aside.
    fn find_open(&self) -> Option<OpenReservation> {
        let Content::Open { reservation, ends, generation, capacity } = self.record?.content else { return None };
        let Some(State::Reserved(state)) = self.bucket else { return None };
        let by_server = with_algorithm!(self.limit, limit => Decorator(limit).end_by_server(state, ends, self.at));
        let is_open = self.at < by_server && generation == state.groups.generation;
        let expiry = Expiry { by_server, by_bucket: ends };
        is_open.then_some(OpenReservation { reservation, expiry, generation, capacity })
    }

    fn gone(&self) -> (Decision, RecordChange) {
        self.look(|outcome| Outcome { allowed: false, resolution: Resolution::Gone, ..outcome })
    }

    fn look(&self, answer: impl FnOnce(Outcome) -> Outcome) -> (Decision, RecordChange) {
        let look = self.limit.decide(self.bucket, Ask::Look { cost: 0 }, self.at);
        (Decision { outcome: answer(look.outcome), ..look }, RecordChange::Keep)
    }
}
