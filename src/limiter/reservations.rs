//! Reservations: credits that are set aside before what they are for happens, and settled afterwards. A reservation is of
//! every rule that a hit would take from. What a bucket and a record come to is decided below, what an id says in
//! [`ReservationId`].

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};

pub(super) use self::foreign_calendars::Postponed;
pub use self::id::{BadReservationId, MAX_ID_TEXT, ReservationId};
use super::once::Named;
use super::{Answer, Asked, Intent, Limit, Matched, Policy, Refusal, Requests, Verdict};
pub use crate::algorithm::Fate;
use crate::algorithm::{Outcome, ReservationAsk};
use crate::calendar::Calendar;
use crate::clock::{NANOS_PER_SECOND, Timestamp};
use crate::rules::Operation;
use crate::store::{Action, key, record_key, unknown_seal_key};

mod foreign_calendars;
mod id;
mod sealing;

/// The longest time of a reservation, unless the operator says otherwise (seconds).
pub const DEFAULT_MAX_RESERVATION_TTL: u32 = 60;
/// Bytes of a client's own name of a reservation, at most.
pub const MAX_CLIENT_ID: usize = 255;

/// What a client wants to be set aside.
#[derive(Debug, Clone, Copy)]
pub struct Reserve<'a> {
    /// At least 1.
    pub credits: u64,
    /// At least 1. `None` will do for leases, which last as long as their rule says.
    pub ttl_seconds: Option<u32>,
    /// The client's own name of the reservation: asked again under it, it is the same one.
    pub id: Option<&'a [u8]>,
}

/// The answer to a [`Reserve`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reserved {
    pub verdict: Verdict,
    /// `None` when it was denied.
    pub id: Option<ReservationId>,
    /// Nanoseconds until it ends, which may be before its time: with its window. `None` when it was denied, is committed
    /// already, or never ends because nothing is counted.
    pub ends_ns: Option<u64>,
    /// It was made before.
    pub is_repeated: bool,
}

/// The answer to a commit, a release or a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settled {
    /// Of the rule that leaves the least in proportion.
    pub verdict: Verdict,
    pub fate: Fate,
    /// Nanoseconds until it ends, after a renewal.
    pub ends_ns: Option<u64>,
    /// It is of rules that count.
    pub is_counted: bool,
}

impl Settled {
    /// What a commit came to, as clients read it.
    pub fn word(&self) -> &'static str {
        match self.fate {
            Fate::Late => "late",
            Fate::Repeated => "repeated",
            Fate::Done | Fate::Gone | Fate::Different => "settled",
        }
    }

    /// Whether credits are free again.
    pub fn is_released(&self) -> bool {
        self.fate == Fate::Done && self.is_counted
    }

    /// Of a reservation that was renewed: whole seconds until it ends, at least 1; what was asked for where nothing is counted,
    /// which ends nothing. `None`: there is none any more.
    pub fn lasts_seconds(&self, asked: Option<u32>) -> Option<u64> {
        let asked = asked.unwrap_or(DEFAULT_MAX_RESERVATION_TTL);
        (self.fate == Fate::Done).then(|| self.ends_ns.map_or(asked.into(), lasting_seconds))
    }
}

/// Rounded down: who relies on them has them.
pub fn lasting_seconds(ends_ns: u64) -> u64 {
    (ends_ns / NANOS_PER_SECOND).max(1)
}

/// A reservation on its way to the rules.
#[derive(Debug)]
pub(super) struct Reserving {
    pub ttl_seconds: Option<u32>,
    /// The longest time of what is no lease.
    pub max_ttl_seconds: u32,
    /// Of its records.
    pub id: Vec<u8>,
    /// Of each counter, at most what it can hold.
    pub is_clamped: bool,
}

/// One bucket of a reservation that is settled: its entry, and its rule, if there is one in force.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settling {
    /// `None` while this server does not know the bucket's calendar, or if its zone data do not have the zone.
    entry: Option<usize>,
    rule: Option<usize>,
}

/// A way to end a reservation, or to keep it.
#[derive(Debug, Clone, Copy)]
enum Settlement {
    Commit { cost: u64 },
    Release,
    Renew { ttl_seconds: Option<u32> },
}

impl Settlement {
    /// Returns the ask for a bucket with this limit. `is_known` says whether the limit is of a rule in force.
    fn ask(self, limit: Limit, is_known: bool) -> ReservationAsk {
        match (self, limit) {
            (Self::Commit { cost }, _) => ReservationAsk::Commit { cost, charges: is_known },
            (Self::Release, _) => ReservationAsk::Release,
            (Self::Renew { .. }, Limit::Concurrency(limit)) => {
                ReservationAsk::Renew { ttl_seconds: is_known.then_some(limit.ttl_seconds.get()) }
            }
            (Self::Renew { ttl_seconds }, _) => ReservationAsk::Renew { ttl_seconds },
        }
    }
}

impl Requests {
    /// Adds a reservation; [`Requests::reserved`] has its answer. It counts as a hit, which takes from rules that count
    /// requests.
    pub fn push_reserve(&mut self, operation: &Operation, reserve: Reserve<'_>) {
        self.push_reserving(operation, reserve, false);
    }

    /// As [`Requests::push_reserve`], for at most as many credits as a counter can hold, and for a time that is allowed: the
    /// one that is closest to `ttl_seconds`, or without it the longest. `credits` is at least 1.
    ///
    /// Several of them that are [taken as one](Requests::begin_as_one) have one id: see [`Requests::reserved_together`].
    pub fn push_reserve_up_to(&mut self, operation: &Operation, credits: u64, ttl_seconds: Option<u32>) {
        let ttl_seconds = ttl_seconds.unwrap_or(u32::MAX).min(self.max_reservation_ttl).max(1);
        self.push_reserving(operation, Reserve { credits, ttl_seconds: Some(ttl_seconds), id: None }, true);
    }

    fn push_reserving(&mut self, operation: &Operation, reserve: Reserve<'_>, is_clamped: bool) {
        let max = self.max_reservation_ttl;
        let refusal = if reserve.credits == 0 || reserve.ttl_seconds == Some(0) {
            Some(Refusal::BadReservation { max })
        } else if !reserve.id.is_none_or(is_client_id) {
            Some(Refusal::BadClientId)
        } else if !self.has_seal {
            Some(unknown_seal_key().into())
        } else {
            None
        };
        if let Some(refusal) = refusal {
            self.push_refused(refusal);
            return;
        }
        let id = match (reserve.id, &mut self.together) {
            (Some(id), _) => client_id(id),
            (None, Some(gathered)) => {
                gathered.is_clamped = is_clamped;
                gathered.record_id.get_or_insert_with(new_id).clone()
            }
            (None, None) => new_id(),
        };
        let reserving = Reserving { ttl_seconds: reserve.ttl_seconds, max_ttl_seconds: max, id, is_clamped };
        self.named = Some(Box::new(Named::Reservation(reserving)));
        let before = (self.batch.len(), self.matched.len(), self.sets.len(), self.hits);
        self.push_at_cost(operation, Intent::Reserve, Some(reserve.credits));
        self.named = None;
        if self.id_length(self.asked.len() - 1) > MAX_ID_TEXT {
            let (entries, matched, sets, hits) = before;
            self.batch.truncate(entries);
            self.matched.truncate(matched);
            self.sets.truncate(sets);
            self.hits = hits;
            self.asked.pop();
            self.push_refused(Refusal::LongReservation);
        }
    }

    /// How many characters the id has that request `index`, a [`Requests::push_reserve`], may be answered with.
    pub fn id_length(&self, index: usize) -> usize {
        ReservationId::text_length(self.records(self.reserving_entries(index)).map(|(_, key)| key.len()))
    }

    /// Likewise of all requests, [`Requests::push_reserve_up_to`]s that are taken as one.
    ///
    /// # Errors
    /// When it would be longer than an id may be. The batch must not be applied then.
    pub fn check_id_of_all(&self) -> Result<(), Refusal> {
        let length = ReservationId::text_length(self.records(self.all_reserving_entries()).map(|(_, key)| key.len()));
        if length > MAX_ID_TEXT { Err(Refusal::LongReservation) } else { Ok(()) }
    }

    /// The records of these entries, each after what stands for its rule: of what several operations share, the first one's.
    fn records<'a>(
        &'a self,
        entries: impl Iterator<Item = (usize, &'a Matched)>,
    ) -> impl Iterator<Item = (u32, &'a [u8])> {
        let mut is_known = vec![false; self.batch.len()];
        entries.filter_map(move |(entry, of)| {
            if std::mem::replace(is_known.get_mut(entry)?, true) {
                return None;
            }
            let stand_in = self.policy.as_ref().map_or(0, |policy| policy.stand_in(of.rule));
            Some((stand_in, self.batch.key_at(entry)?))
        })
    }

    fn all_reserving_entries(&self) -> impl Iterator<Item = (usize, &Matched)> {
        (0..self.len()).flat_map(|index| self.reserving_entries(index))
    }

    /// The entries of request `index` that set credits aside, each with its rule.
    fn reserving_entries(&self, index: usize) -> impl Iterator<Item = (usize, &Matched)> {
        let matched = self.matched(index).unwrap_or_default().iter();
        matched.filter_map(|matched| match matched.answer {
            Answer::Counted(entry) => self.batch.action(entry)?.is_about_reservation().then_some((entry, matched)),
            Answer::Uncounted { .. } | Answer::Gathered(_) => None,
        })
    }

    /// Counts what was used of what a reservation was for, more or less, and frees the rest; [`Requests::settled`] has the
    /// answer.
    pub fn push_commit(&mut self, id: &ReservationId, cost: u64) {
        self.push_settling(id, Settlement::Commit { cost });
    }

    /// Frees all that is reserved; [`Requests::settled`] has the answer.
    pub fn push_release(&mut self, id: &ReservationId) {
        self.push_settling(id, Settlement::Release);
    }

    /// Keeps a reservation for so many seconds from now on, or for as many as it was made for; a lease for as many as its rule
    /// says. [`Requests::settled`] has the answer.
    pub fn push_renew(&mut self, id: &ReservationId, ttl_seconds: Option<u32>) {
        let max = self.max_reservation_ttl;
        let is_bad = |seconds: u32| seconds == 0 || (seconds > max && !id.is_of_leases());
        if ttl_seconds.is_some_and(is_bad) {
            self.push_refused(Refusal::BadReservation { max });
            return;
        }
        self.push_settling(id, Settlement::Renew { ttl_seconds });
    }

    fn push_settling(&mut self, id: &ReservationId, settlement: Settlement) {
        let (settling, entries) = (self.settling.len(), self.batch.len());
        let mut asked = self.settle(id, settlement);
        if self.settling(settling..self.settling.len()).any(|settling| settling.entry.is_none()) {
            self.settling.truncate(settling);
            self.batch.truncate(entries);
            asked = self.postpone(id, settlement);
        }
        self.asked.push(asked);
    }

    /// Asks about every record of the reservation, as one group: of several calls that settle it, the first decides about all of
    /// its buckets.
    fn settle(&mut self, id: &ReservationId, settlement: Settlement) -> Asked {
        let Some(policy) = self.policy.take() else { return Asked::Refused(Refusal::NoRules) };
        let (first, first_entry) = (self.settling.len(), self.batch.len());
        for (rule, key) in id.records() {
            let Some((bucket, record_id)) = record_key::split(key) else { continue };
            let Some((rule, limit)) = policy.limit_of_bucket(rule, bucket, self.batch.now()) else { continue };
            let Some(limit) = limit else {
                self.settling.push(Settling { entry: None, rule });
                continue;
            };
            // Of which nothing is ever reserved.
            if let Limit::SlidingLog(_) = limit {
                continue;
            }
            let write_key = |out: &mut Vec<u8>| {
                out.extend_from_slice(bucket);
                Some(limit)
            };
            let entry = self.batch.push_reservation(settlement.ask(limit, rule.is_some()), record_id, write_key);
            self.settling.push(Settling { entry, rule });
        }
        if self.names_each_bucket_once(first_entry) {
            self.batch.group(first_entry);
        }
        self.policy = Some(policy);
        let is_foreign = first == self.settling.len() && id.records().next().is_some();
        match is_foreign {
            true => Asked::Refused(BadReservationId.into()),
            false => Asked::Settling(first..self.settling.len()),
        }
    }

    /// Whether each entry from index `first` on has a bucket of its own, which a group needs. No id that a server makes names a
    /// bucket twice.
    fn names_each_bucket_once(&self, first: usize) -> bool {
        let entries = first..self.batch.len();
        if entries.len() < 2 {
            return true;
        }
        let mut buckets: Vec<_> =
            entries.filter_map(|entry| self.batch.key_at(entry)).map(record_key::bucket).collect();
        buckets.sort_unstable();
        buckets.windows(2).all(|two| matches!(two, [one, next] if one != next))
    }

    /// The answer to request `index`, a [`Requests::push_reserve`], once the batch is applied.
    ///
    /// # Errors
    /// As [`Requests::verdict`], and when a reservation of that name exists with other credits or for another time.
    pub fn reserved(&self, index: usize) -> Result<Reserved, Refusal> {
        let verdict = self.verdict(index)?;
        let members = self.reserving_entries(index).filter(|(_, matched)| !matched.is_canary);
        let outcomes: Vec<_> = members.map(|(entry, _)| self.batch.outcome(entry)).collect::<Result<_, _>>()?;
        let is_repeated = !outcomes.is_empty() && outcomes.iter().all(|outcome| outcome.fate == Fate::Repeated);
        let ends = outcomes.iter().map(|outcome| outcome.session).min();
        Ok(Reserved {
            verdict,
            id: verdict.allowed.then(|| ReservationId::new(self.records(self.reserving_entries(index)))),
            ends_ns: ends.filter(|_| verdict.allowed).and_then(|ends| self.until(ends)),
            is_repeated,
        })
    }

    /// The answer to all requests, [`Requests::push_reserve_up_to`]s that are taken as one, once the batch is applied: the one
    /// id of all that they set aside. `None` when any of them was denied.
    ///
    /// # Errors
    /// As [`Requests::verdict`].
    pub fn reserved_together(&self) -> Result<Option<ReservationId>, Refusal> {
        for index in 0..self.len() {
            if !self.verdict(index)?.allowed {
                return Ok(None);
            }
        }
        Ok(Some(ReservationId::new(self.records(self.all_reserving_entries()))))
    }

    /// What stands for each of the reservations that the requests make.
    pub fn names_to_reserve(&self) -> Vec<Arc<[u8]>> {
        let is_reserve = |entry: &usize| {
            matches!(self.batch.action(*entry), Some(Action::Reservation(ReservationAsk::Reserve { .. })))
        };
        let names = (0..self.batch.len()).filter(is_reserve).filter_map(|entry| self.batch.key_at(entry));
        names.map(Arc::from).collect()
    }

    /// All that the requests have set aside, once the batch is applied, but for what was set aside before; `None` when that is
    /// nothing.
    pub fn made_reservations(&self) -> Option<ReservationId> {
        let is_new = |outcome: Outcome| outcome.allowed && outcome.fate == Fate::Done;
        let is_made = |(entry, _): &(usize, _)| self.batch.outcome(*entry).is_ok_and(is_new);
        let id = ReservationId::new(self.records(self.all_reserving_entries().filter(is_made)));
        (!id.is_of_nothing()).then_some(id)
    }

    /// The answer to request `index`, a commit, a release or a renewal, once the batch is applied. What names no bucket counts
    /// nothing.
    ///
    /// # Errors
    /// When no bucket that its id names is one of this server's, and when the store failed.
    pub fn settled(&self, index: usize) -> Result<Settled, Refusal> {
        let range = match self.asked.get(index) {
            Some(Asked::Settling(range)) => range.clone(),
            Some(Asked::Refused(refusal)) => return Err(refusal.clone()),
            _ => return Err(Refusal::NoRules),
        };
        let mut fates = Vec::new();
        let mut least: Option<(Verdict, u64)> = None;
        let mut ends = None;
        for settling in self.settling(range) {
            let Some(entry) = settling.entry else {
                fates.push(Fate::Gone);
                continue;
            };
            let outcome = self.batch.outcome(entry)?;
            fates.push(outcome.fate);
            let goes_on = Some(outcome.session).filter(|_| outcome.fate == Fate::Done);
            ends = ends.into_iter().chain(goes_on.and_then(|session| self.until(session))).min();
            let capacity = self.batch.limit(entry).map_or(1, |limit| limit.capacity());
            let verdict = Verdict::from(outcome);
            let is_less = |(known, of): &(Verdict, u64)| {
                i128::from(verdict.balance()) * i128::from(*of) < i128::from(known.balance()) * i128::from(capacity)
            };
            if least.as_ref().is_none_or(is_less) {
                least = Some((verdict, capacity));
            }
        }
        // The one that says the most: of several buckets, some may have been reset since.
        let fate = [Fate::Late, Fate::Done, Fate::Repeated].into_iter().find(|fate| fates.contains(fate));
        let verdict = least.map_or(Verdict::uncounted(true, 0), |(verdict, _)| verdict);
        let fate = if fates.is_empty() { Fate::Done } else { fate.unwrap_or(Fate::Gone) };
        Ok(Settled { verdict, fate, ends_ns: ends, is_counted: !fates.is_empty() })
    }

    /// As [`Requests::settled`], for a commit: one that nothing came of is an error.
    ///
    /// # Errors
    /// Likewise, and when the reservation is not remembered and no rule is there to count the cost.
    pub fn committed(&self, index: usize) -> Result<Settled, Refusal> {
        let settled = self.settled(index)?;
        if settled.fate == Fate::Gone { Err(Refusal::NoReservation) } else { Ok(settled) }
    }

    pub(super) fn settling(&self, range: Range<usize>) -> impl Iterator<Item = &Settling> {
        self.settling.get(range).unwrap_or_default().iter()
    }

    fn until(&self, ends: Timestamp) -> Option<u64> {
        (ends != Timestamp::EPOCH).then(|| ends.since(self.batch.now()))
    }
}

impl Settling {
    /// Returns the rule and the entry, if the store was asked.
    pub(super) fn asked(&self) -> Option<(Option<usize>, usize)> {
        Some((self.rule, self.entry?))
    }
}

impl Policy {
    /// Finds the rule with this bucket, and the bucket's limit at `now`: the rule's, or its actor's. If several rules have the
    /// bucket, `stand_in` chooses. Without such a rule, the limit is read from the key, if its calendar is known.
    fn limit_of_bucket(&self, stand_in: u32, key: &[u8], now: Timestamp) -> Option<(Option<usize>, Option<Limit>)> {
        let (prefix, limit) = key::split_limit(key)?;
        if let Some(rule) = self.rule_with(prefix, stand_in)
            && let Some(bucket) = self.bucket(rule)
        {
            let actor = key.get(prefix.len()..).unwrap_or_default();
            return Some((Some(rule), Some(bucket.limit_of(actor, now).unwrap_or_else(|| bucket.limit_at(now)))));
        }
        let limit = match limit {
            Some(Limit::CalendarWindow(window)) => {
                Some(Limit::CalendarWindow(Calendar::of(window.calendar)?.dated(window, now)))
            }
            limit => limit,
        };
        Some((None, limit))
    }
}

/// Whether a client may call a reservation so.
pub(super) fn is_client_id(id: &[u8]) -> bool {
    (1..=MAX_CLIENT_ID).contains(&id.len())
}

/// What the record of a reservation is called that a client calls so.
pub(super) fn client_id(id: &[u8]) -> Vec<u8> {
    [b"c", id].concat()
}

/// What no other reservation is called, of any server.
fn new_id() -> Vec<u8> {
    use std::hash::{BuildHasher, RandomState};
    static SECRET: LazyLock<[RandomState; 2]> = LazyLock::new(|| [RandomState::new(), RandomState::new()]);
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Relaxed);
    let mut id = vec![b's'];
    SECRET.iter().for_each(|secret| id.extend(secret.hash_one(number).to_le_bytes()));
    id
}
