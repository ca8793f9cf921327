//! The identity of a rule's counters, apart from the actors' values. Rules with the same identity take from the same
//! counters, and a changed rule keeps its counters if its identity stays the same. The identity does not depend on how
//! counters are stored.

use std::borrow::Cow;

use super::setting_name::ACTOR_PREFIX;
use super::{ActorPrefix, Quota, Rule, Seconds, Settings};
use std::num::NonZeroU32;

use crate::algorithm::{CalendarId, Concurrency, Kind, Limit};

/// The identity of a rule's counters.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Identity<'a> {
    /// Counters that belong to the rule. A change of its limit starts new ones.
    Unnamed {
        /// The pairs of the rule and its conditions: see [`Rule::match_pairs`].
        operation: Vec<(&'a str, Cow<'a, str>)>,
        /// The limit. A concurrency limit has its numbers cleared.
        limit: Limit,
        /// Fields whose names are part of the actors. Empty if there is at most one field.
        names_in_actors: &'a [String],
        /// The networks that name actors.
        actor_prefix: Option<&'a ActorPrefix>,
    },
    /// Counters with a name of their own. They record usage, so their identity does not include the number of credits.
    Named {
        /// The name.
        counter: &'a str,
        /// How credits come back.
        rhythm: Rhythm,
        /// The fields that separate the counters, in the rule's order.
        actor_fields: &'a [String],
        /// The networks that name actors.
        actor_prefix: Option<&'a ActorPrefix>,
    },
}

/// How credits come back: the limit without its number of credits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rhythm {
    /// The algorithm, whose states are not interchangeable with another's.
    pub algorithm: Kind,
    /// The length of a window, or the time between refills. Zero for leases, which outlive changes of their TTL.
    time: Seconds,
    calendar: Option<CalendarId>,
    /// Credits that a refill of a token bucket adds; `None` if a refill fills the bucket.
    pub refill_credits: Option<u64>,
}

impl Settings {
    /// Returns how credits come back, without the number of credits.
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
    /// Returns the pairs that name the rule's counters unless they have a name: those of [`Rule::match_pairs`], and how its
    /// actors are counted by networks. No operation has a key twice, so no other rule has these pairs.
    pub fn counter_pairs(&self) -> Vec<(&str, Cow<'_, str>)> {
        let mut pairs = self.match_pairs();
        if let Some(prefix) = &self.actor_prefix {
            pairs.push((ACTOR_PREFIX, prefix.field.as_str().into()));
            pairs.push((ACTOR_PREFIX, prefix.lengths.to_string().into()));
        }
        pairs
    }

    /// Returns the identity of the rule's counters; `None` if it has none.
    pub fn identity(&self) -> Option<Identity<'_>> {
        let Quota::Limited(limit) = self.quota else { return None };
        Some(match &self.counter {
            Some(counter) => {
                let (rhythm, actor_fields) = (self.settings.rhythm(), &self.actor_fields);
                Identity::Named { counter, rhythm, actor_fields, actor_prefix: self.actor_prefix.as_ref() }
            }
            None => Identity::Unnamed {
                operation: self.match_pairs(),
                limit: clear_lease_numbers(limit),
                names_in_actors: self.names_in_actors(),
                actor_prefix: self.actor_prefix.as_ref(),
            },
        })
    }
}

/// Clears the numbers of a concurrency limit, because leases stay valid when they change.
fn clear_lease_numbers(limit: Limit) -> Limit {
    match limit {
        Limit::Concurrency(_) => Limit::Concurrency(Concurrency { leases: 0, ttl_seconds: NonZeroU32::MIN }),
        limit => limit,
    }
}
