//! The answers to reservations, and to settlements.

use super::{Report, Verdict};
use crate::plan::{DEFAULT_MAX_RESERVATION_TTL, Member, Request, ReservationId};
use crate::refusal::Refusal;
use divvy_core::algorithm::{Outcome, Resolution};
use divvy_core::clock::NANOS_PER_SECOND;

/// The answer to a reservation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reserved {
    /// The verdict of the rule that answers.
    pub verdict: Verdict,
    /// The id; `None` if the reservation was denied.
    pub id: Option<ReservationId>,
    /// Nanoseconds until the reservation ends, perhaps with its window. `None` if it was denied, is already committed,
    /// or never ends because nothing is counted.
    pub ends_ns: Option<u64>,
    /// Whether an earlier request made the reservation.
    pub is_repeated: bool,
}

/// The answer to a commit, a release or a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settled {
    /// The verdict of the rule that leaves the least in proportion.
    pub verdict: Verdict,
    /// The resolution of the reservation.
    pub resolution: Resolution,
    /// Nanoseconds until the reservation ends, after a renewal.
    pub ends_ns: Option<u64>,
    /// Whether the reservation has any records, and so any rules with counters.
    pub is_counted: bool,
}

impl Settled {
    /// Returns the word for the result of a commit that clients get.
    pub fn word(&self) -> &'static str {
        match self.resolution {
            Resolution::Late => "late",
            Resolution::Repeated => "repeated",
            Resolution::Done | Resolution::Gone | Resolution::Different => "settled",
        }
    }

    /// Returns whether credits were freed.
    pub fn is_released(&self) -> bool {
        self.resolution == Resolution::Done && self.is_counted
    }

    /// Returns the whole seconds until a renewed reservation ends, at least 1. If nothing is counted, nothing ends, and
    /// the result is `asked`. `None` if the reservation no longer exists.
    pub fn lasts_seconds(&self, asked: Option<u32>) -> Option<u64> {
        let asked = asked.unwrap_or(DEFAULT_MAX_RESERVATION_TTL);
        (self.resolution == Resolution::Done).then(|| self.ends_ns.map_or(asked.into(), lasting_seconds))
    }
}

/// Converts to whole seconds, rounded down, so that the holder never relies on time it does not have.
pub fn lasting_seconds(ends_ns: u64) -> u64 {
    (ends_ns / NANOS_PER_SECOND).max(1)
}

impl Report<'_> {
    /// Returns the answer to request `index`, a reservation.
    ///
    /// # Errors
    /// Same as [`Report::verdict`], or there is a reservation with this name, but other credits or another TTL.
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
        let id = || self.id_of(members);
        Ok(Reserved {
            verdict,
            id: verdict.allowed.then(id),
            ends_ns: ends.filter(|_| verdict.allowed).and_then(|ends| self.until(ends)),
            is_repeated: are_repeated && ends.is_some(),
        })
    }

    /// Returns the one id of everything that the plan's requests, a group, have reserved. `None` if any of them was
    /// denied.
    ///
    /// # Errors
    /// Same as [`Report::verdict`].
    pub fn reserved_together(self) -> Result<Option<ReservationId>, Refusal> {
        for index in 0..self.len() {
            if !self.verdict(index)?.allowed {
                return Ok(None);
            }
        }
        Ok(Some(self.id_of(&self.plan.members)))
    }

    fn id_of(self, members: &[Member]) -> ReservationId {
        ReservationId::new(self.plan.records(members, |entry| self.entry(entry).ok()?.run))
    }

    /// Returns an id for everything that these requests have newly reserved; `None` if there is nothing.
    pub fn new_reservations(self) -> Option<ReservationId> {
        let is_new = |outcome: Outcome| outcome.allowed && outcome.resolution == Resolution::Done;
        let makes_one =
            |member: &&Member| self.plan.reservation(member).is_some_and(|entry| self.entry(entry).is_ok_and(is_new));
        let made: Vec<_> = self.plan.members.iter().filter(makes_one).copied().collect();
        let id = self.id_of(&made);
        (!id.is_of_nothing()).then_some(id)
    }

    /// Returns the answer to request `index`, a commit, a release or a renewal. A reservation without records counts
    /// nothing.
    ///
    /// # Errors
    /// This store has none of the records in the id, or the store failed.
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
            // Some of the buckets may have been reset since. The smallest resolution stands for all of them.
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

    /// Returns the answer to request `index`, a commit. See [`Report::settled`].
    ///
    /// # Errors
    /// Same as [`Report::settled`], or the reservation is not remembered and no rule can count the cost.
    pub fn committed(self, index: usize) -> Result<Settled, Refusal> {
        let settled = self.settled(index)?;
        if settled.resolution == Resolution::Gone { Err(Refusal::NoReservation) } else { Ok(settled) }
    }
}
