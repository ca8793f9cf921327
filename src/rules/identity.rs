//! What a rule's counters are found by, but for the actors' values: rules with the same identity take from the same counters,
//! and a changed rule's counters go on when its identity is known from before. Nothing here knows how they are stored.

use super::{Quota, Rule, Seconds, Settings};
use std::num::NonZeroU32;

use crate::algorithm::{CalendarId, Concurrency, Kind, Limit};

/// What identifies the counters of a rule.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Identity<'a> {
    /// They belong to the rule: another limit, other counters.
    OfRule { operation: Vec<(&'a str, &'a str)>, limit: Limit, names_in_actors: &'a [String] },
    /// They have a name of their own, and count what was used, whatever the credits are.
    Named { counter: &'a str, rhythm: Rhythm, actor_fields: &'a [String] },
}

/// How credits come back, but for how many there are at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rhythm {
    pub algorithm: Kind,
    /// The length of a window, or the time between refills. Leases go on whatever their time becomes.
    time: Seconds,
    calendar: Option<CalendarId>,
    /// Of a token bucket: how many a refill brings. `None`: all of them.
    pub refill_credits: Option<u64>,
}

impl Settings {
    pub fn rhythm(&self) -> Rhythm {
        let is_lease = self.algorithm() == Kind::Concurrency;
        Rhythm {
            algorithm: self.algorithm(),
            time: if is_lease { Seconds::default() } else { self.refill_seconds.unwrap_or(self.reset_seconds) },
            calendar: self.calendar.map(|calendar| calendar.id()),
            refill_credits: self.refill_credits,
        }
    }
}

impl Rule {
    /// What identifies its counters; `None` when it has none.
    pub fn identity(&self) -> Option<Identity<'_>> {
        let Quota::Limited(limit) = self.quota else { return None };
        Some(match &self.counter {
            Some(counter) => {
                Identity::Named { counter, rhythm: self.settings.rhythm(), actor_fields: &self.actor_fields }
            }
            None => {
                let mut operation: Vec<_> = self.pairs().collect();
                operation.sort_unstable();
                Identity::OfRule { operation, limit: identifying(limit), names_in_actors: self.names_in_actors() }
            }
        })
    }
}

/// The numbers of leases identify nothing: who holds one holds it under every limit.
fn identifying(limit: Limit) -> Limit {
    match limit {
        Limit::Concurrency(_) => Limit::Concurrency(Concurrency { leases: 0, ttl_seconds: NonZeroU32::MIN }),
        limit => limit,
    }
}
