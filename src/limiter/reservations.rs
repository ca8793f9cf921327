//! Reservations: credits that are set aside before what they are for happens, and settled afterwards. A reservation is of
//! every rule that a hit would take from. What a bucket and a record come to is decided below, what an id says in
//! [`ReservationId`].

use std::ops::Range;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub use self::id::{BadReservationId, MAX_ID_TEXT, ReservationId};
use super::once::Named;
use super::{Answer, Asked, Intent, Limit, Policy, Refusal, Requests, StoreError, Verdict};
pub use crate::algorithm::reservation::Fate;
use crate::algorithm::{Outcome, ReservationAsk};
use crate::calendar::Calendar;
use crate::clock::{NANOS_PER_SECOND, Timestamp};
use crate::rules::Operation;
use crate::store::{Action, Batch, key, record_key};

mod id;

/// The longest time of a reservation, unless the operator says otherwise (seconds).
pub const DEFAULT_MAX_RESERVATION_TTL: u32 = 60;
/// Bytes of a client's own name of a reservation, at most.
pub const MAX_CLIENT_ID: usize = 255;

/// What a client wants to be set aside.
#[derive(Debug, Clone, Copy)]
pub struct Reserve<'a> {
    /// At least 1.
    pub credits: u64,
    /// At least 1.
    pub ttl_seconds: u32,
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
    pub fn lasts_seconds(&self, asked: u32) -> Option<u64> {
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
    pub ttl_seconds: u32,
    /// Of its records.
    pub id: Vec<u8>,
}

/// One bucket of a reservation that is settled: its entry, and its rule, if there is one in force.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settling {
    entry: usize,
    rule: Option<usize>,
}

impl Requests {
    /// Adds a reservation; [`Requests::reserved`] has its answer. It counts as a hit, which takes from rules that count
    /// requests.
    pub fn push_reserve(&mut self, operation: &Operation, reserve: Reserve<'_>) {
        let max = self.max_reservation_ttl;
        let refusal = if reserve.credits == 0 || reserve.ttl_seconds == 0 || reserve.ttl_seconds > max {
            Some(Refusal::BadReservation { max })
        } else if reserve.id.is_some_and(|id| id.is_empty() || id.len() > MAX_CLIENT_ID) {
            Some(Refusal::BadClientId)
        } else {
            None
        };
        if let Some(refusal) = refusal {
            self.push_refused(refusal);
            return;
        }
        let id = reserve.id.map_or_else(new_id, |id| [b"c", id].concat());
        self.named = Some(Box::new(Named::Reservation(Reserving { ttl_seconds: reserve.ttl_seconds, id })));
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
        let entries = self.reserving_entries(index).filter_map(|(entry, _)| self.batch.key_at(entry));
        ReservationId::text_length(entries.map(<[u8]>::len))
    }

    /// The entries of request `index` that set credits aside, each with its rule.
    fn reserving_entries(&self, index: usize) -> impl Iterator<Item = (usize, usize)> {
        let matched = self.matched(index).unwrap_or_default().iter();
        matched.filter_map(|matched| match matched.answer {
            Answer::Counted(entry) => self.batch.action(entry)?.is_about_reservation().then_some((entry, matched.rule)),
            Answer::Uncounted { .. } | Answer::Gathered(_) => None,
        })
    }

    /// Counts what was used of what a reservation was for, more or less, and frees the rest; [`Requests::settled`] has the
    /// answer.
    pub fn push_commit(&mut self, id: &ReservationId, cost: u64) {
        self.push_settling(id, |is_known| ReservationAsk::Commit { cost, charges: is_known });
    }

    /// Frees all that is reserved; [`Requests::settled`] has the answer.
    pub fn push_release(&mut self, id: &ReservationId) {
        self.push_settling(id, |_| ReservationAsk::Release);
    }

    /// Keeps a reservation for so many seconds from now on; [`Requests::settled`] has the answer.
    pub fn push_renew(&mut self, id: &ReservationId, ttl_seconds: u32) {
        let max = self.max_reservation_ttl;
        if ttl_seconds == 0 || ttl_seconds > max {
            self.push_refused(Refusal::BadReservation { max });
            return;
        }
        self.push_settling(id, |_| ReservationAsk::Renew { ttl_seconds });
    }

    /// Asks about every record of the reservation. `ask` is told whether a rule in force has its bucket.
    fn push_settling(&mut self, id: &ReservationId, ask: impl Fn(bool) -> ReservationAsk) {
        let Some(policy) = self.policy.take() else {
            self.push_refused(Refusal::NoRules);
            return;
        };
        let first = self.settling.len();
        for (rule, key) in id.records() {
            let Some((bucket, record_id)) = record_key::split(key) else { continue };
            let Some((rule, limit)) = policy.limit_of_bucket(rule, bucket, self.batch.now()) else { continue };
            // Of which nothing is ever reserved.
            if let Limit::SlidingLog(_) = limit {
                continue;
            }
            let write_key = |out: &mut Vec<u8>| {
                out.extend_from_slice(bucket);
                Some(limit)
            };
            let entry = self.batch.push_reservation(ask(rule.is_some()), record_id, write_key);
            self.settling.extend(entry.map(|entry| Settling { entry, rule }));
        }
        self.policy = Some(policy);
        let is_foreign = first == self.settling.len() && id.records().next().is_some();
        self.asked.push(match is_foreign {
            true => Asked::Refused(BadReservationId.into()),
            false => Asked::Settling(first..self.settling.len()),
        });
    }

    /// The answer to request `index`, a [`Requests::push_reserve`], once the batch is applied.
    ///
    /// # Errors
    /// As [`Requests::verdict`], and when a reservation of that name exists with other credits or for another time.
    pub fn reserved(&self, index: usize) -> Result<Reserved, Refusal> {
        let verdict = self.verdict(index)?;
        let outcome = |(entry, rule)| Ok::<_, Refusal>(((entry, rule), self.batch.outcome(entry)?));
        let entries: Vec<_> = self.reserving_entries(index).map(outcome).collect::<Result<_, _>>()?;
        if entries.iter().any(|(_, outcome)| outcome.fate == Fate::Different) {
            return Err(Refusal::DifferentReservation);
        }
        let is_repeated = !entries.is_empty() && entries.iter().all(|(_, outcome)| outcome.fate == Fate::Repeated);
        let ends = entries.iter().map(|(_, outcome)| outcome.session).min();
        let rule = |rule: usize| self.policy.as_ref().map_or(0, |policy| policy.stand_in(rule));
        let records = entries.iter().filter_map(|((entry, of), _)| Some((rule(*of), self.batch.key_at(*entry)?)));
        Ok(Reserved {
            verdict,
            id: verdict.allowed.then(|| ReservationId::new(records)),
            ends_ns: ends.filter(|_| verdict.allowed).and_then(|ends| self.until(ends)),
            is_repeated,
        })
    }

    /// The answer to request `index`, a commit, a release or a renewal, once the batch is applied. What names no bucket counts
    /// nothing.
    ///
    /// # Errors
    /// When no bucket that its id names is one of this server's. When the store failed for any of its buckets: asked again, those
    /// that it did not fail for answer as the first time.
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
            let outcome = self.batch.outcome(settling.entry)?;
            fates.push(outcome.fate);
            let goes_on = Some(outcome.session).filter(|_| outcome.fate == Fate::Done);
            ends = ends.into_iter().chain(goes_on.and_then(|session| self.until(session))).min();
            let capacity = self.batch.limit(settling.entry).map_or(1, |limit| limit.capacity());
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
    /// The rule, and what was asked and came of it.
    pub(super) fn outcome(&self, batch: &Batch) -> (Option<usize>, Option<Action>, Result<Outcome, StoreError>) {
        (self.rule, batch.action(self.entry), batch.outcome(self.entry))
    }
}

impl Policy {
    /// The rule with this bucket, that for which `stand_in` stands if there are several, and the bucket's limit as it is at `now`:
    /// that of the rule, or of its actor. Without such a rule, the limit that the key tells.
    fn limit_of_bucket(&self, stand_in: u32, key: &[u8], now: Timestamp) -> Option<(Option<usize>, Limit)> {
        let (prefix, limit) = key::split_limit(key)?;
        if let Some(rule) = self.rule_with(prefix, stand_in)
            && let Some(bucket) = self.bucket(rule)
        {
            let actor = key.get(prefix.len()..).unwrap_or_default();
            return Some((Some(rule), bucket.limit_of(actor, now).unwrap_or_else(|| bucket.limit_at(now))));
        }
        let limit = match limit {
            Limit::CalendarWindow(window) => Limit::CalendarWindow(Calendar::of(window.calendar)?.dated(window, now)),
            limit => limit,
        };
        Some((None, limit))
    }
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
