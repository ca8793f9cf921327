//! The answers to reservations, and to what settles them.

use super::answers::Report;
use crate::algorithm::{Outcome, Resolution};
use crate::clock::NANOS_PER_SECOND;
use crate::limiter::plan::{DEFAULT_MAX_RESERVATION_TTL, Member, Request, ReservationId};
use crate::limiter::refusal::Refusal;
use crate::limiter::verdict::Verdict;

/// The answer to a reservation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reserved {
    /// The verdict of the rule that answers.
    pub verdict: Verdict,
    /// `None` if it was denied.
    pub id: Option<ReservationId>,
    /// Nanoseconds until it ends, which may be with its window. `None` if it was denied, is committed already, or never ends
    /// because nothing is counted.
    pub ends_ns: Option<u64>,
    /// It was made before.
    pub is_repeated: bool,
}

/// The answer to a commit, a release or a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settled {
    /// The verdict of the rule that leaves the least in proportion.
    pub verdict: Verdict,
    /// The result for the reservation.
    pub resolution: Resolution,
    /// Nanoseconds until it ends, after a renewal.
    pub ends_ns: Option<u64>,
    /// The reservation has rules that count.
    pub is_counted: bool,
}

impl Settled {
    /// The result of a commit, as clients read it.
    pub fn word(&self) -> &'static str {
        match self.resolution {
            Resolution::Late => "late",
            Resolution::Repeated => "repeated",
            Resolution::Done | Resolution::Gone | Resolution::Different => "settled",
        }
    }

    /// Whether credits are free again.
    pub fn is_released(&self) -> bool {
        self.resolution == Resolution::Done && self.is_counted
    }

    /// Whole seconds until a renewed reservation ends, at least 1; `asked` if nothing is counted, which ends nothing. `None` if
    /// there is no such reservation anymore.
    pub fn lasts_seconds(&self, asked: Option<u32>) -> Option<u64> {
        let asked = asked.unwrap_or(DEFAULT_MAX_RESERVATION_TTL);
        (self.resolution == Resolution::Done).then(|| self.ends_ns.map_or(asked.into(), lasting_seconds))
    }
}

/// Rounded down, so that the holder never relies on time it does not have.
pub fn lasting_seconds(ends_ns: u64) -> u64 {
    (ends_ns / NANOS_PER_SECOND).max(1)
}

impl Report<'_> {
    /// The answer to request `index`, a reservation.
    ///
    /// # Errors
    /// Same as [`Report::verdict`], and if a reservation of that name exists with other credits or for another time.
    pub fn reserved(self, index: usize) -> Result<Reserved, Refusal> {
        let verdict = self.verdict(index)?;
        let members = self.plan.members_of(index)?;
        let (mut ends, mut are_repeated) = (None, true);
        for entry in
            members.iter().filter(|member| !member.is_canary).filter_map(|member| self.plan.reservation(member))
        {
            let Outcome { session, resolution, .. } = self.entry(entry)?;
            ends = ends.into_iter().chain([session]).min();
            are_repeated &= resolution == Resolution::Repeated;
        }
        let id = || ReservationId::new(self.plan.records(members));
        Ok(Reserved {
            verdict,
            id: verdict.allowed.then(id),
            ends_ns: ends.filter(|_| verdict.allowed).and_then(|ends| self.until(ends)),
            is_repeated: are_repeated && ends.is_some(),
        })
    }

    /// The one id of all that the plan's requests, a group, have reserved. `None` if any of them was denied.
    ///
    /// # Errors
    /// Same as [`Report::verdict`].
    pub fn reserved_together(self) -> Result<Option<ReservationId>, Refusal> {
        for index in 0..self.len() {
            if !self.verdict(index)?.allowed {
                return Ok(None);
            }
        }
        Ok(Some(ReservationId::new(self.plan.records(&self.plan.members))))
    }

    /// All that the requests have reserved and that was not reserved before; `None` if that is nothing.
    pub fn new_reservations(self) -> Option<ReservationId> {
        let is_new = |outcome: Outcome| outcome.allowed && outcome.resolution == Resolution::Done;
        let makes_one =
            |member: &&Member| self.plan.reservation(member).is_some_and(|entry| self.entry(entry).is_ok_and(is_new));
        let made: Vec<_> = self.plan.members.iter().filter(makes_one).copied().collect();
        let id = ReservationId::new(self.plan.records(&made));
        (!id.is_of_nothing()).then_some(id)
    }

    /// The answer to request `index`, a commit, a release or a renewal. A reservation without records counts nothing.
    ///
    /// # Errors
    /// If no record that its id names is one of this store's, and if the store failed.
    pub fn settled(self, index: usize) -> Result<Settled, Refusal> {
        let range = match self.plan.requests.get(index) {
            Some(Request::Settlement(range)) => range.clone(),
            Some(Request::Refused(refusal)) => return Err(refusal.clone()),
            _ => return Err(Refusal::NoRules),
        };
        let records = self.plan.settled.get(range).unwrap_or_default();
        let (mut least, mut resolution, mut ends_ns) = (None, None, None);
        for entry in records.iter().filter_map(|record| record.entry) {
            let outcome = self.entry(entry)?;
            let verdict = Verdict::from(outcome);
            let capacity = i128::from(self.plan.batch.entry(entry).map_or(1, |entry| entry.limit.capacity()));
            let leaves_less = |(other, of_other): &(Verdict, i128)| {
                i128::from(verdict.balance()) * of_other < i128::from(other.balance()) * capacity
            };
            if least.as_ref().is_none_or(leaves_less) {
                least = Some((verdict, capacity));
            }
            // Some of the buckets may have been reset since. The smallest resolution says the most.
            resolution = resolution.into_iter().chain([outcome.resolution]).min();
            if outcome.resolution == Resolution::Done {
                ends_ns = ends_ns.into_iter().chain(self.until(outcome.session)).min();
            }
        }
        Ok(Settled {
            verdict: least.map_or(Verdict::uncounted(true, 0), |(verdict, _)| verdict),
            resolution: resolution.unwrap_or(if records.is_empty() { Resolution::Done } else { Resolution::Gone }),
            ends_ns,
            is_counted: !records.is_empty(),
        })
    }

    /// The answer to request `index`, a commit. See [`Report::settled`].
    ///
    /// # Errors
    /// Same as [`Report::settled`], and if the reservation is not remembered and no rule is there to count the cost.
    pub fn committed(self, index: usize) -> Result<Settled, Refusal> {
        let settled = self.settled(index)?;
        if settled.resolution == Resolution::Gone { Err(Refusal::NoReservation) } else { Ok(settled) }
    }
}
