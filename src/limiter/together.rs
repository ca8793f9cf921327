//! Requests that are taken together or not at all: what they ask is gathered first, each counter once, and then put into
//! the batch as one group.

use std::ops::Range;

use super::once::Named;
use super::{Answer, Asked, CountedAs, Fate, Matched, Requests};
use crate::algorithm::{Ask, Limit, ReservationAsk};
use crate::clock::Timestamp;
use crate::store::{Action, append_key, record_key};

/// Requests that are taken together, at most.
pub const MAX_TOGETHER: usize = 16;

/// A stack of rules, or requests that are taken together.
#[derive(Debug)]
pub(super) struct Set {
    /// The rules, with canaries among them.
    pub matched: Range<usize>,
    /// The requests, of which some bring limits of their own.
    pub asked: Range<usize>,
}

/// What is asked of counters, on its way into the batch.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    keys: Vec<u8>,
    asks: Vec<Gathering>,
    /// A rule denies whatever its counters say: nothing may be taken.
    pub is_denied: bool,
    /// Each counter is asked once, and not for each request.
    pub is_once: bool,
    /// No counter is asked for more than it can hold.
    pub is_clamped: bool,
    /// Of the records of all that is set aside.
    pub record_id: Option<Vec<u8>>,
    /// Where the requests and the rules that they matched begin.
    first_asked: usize,
    first_matched: usize,
}

#[derive(Debug)]
struct Gathering {
    key: Range<usize>,
    limit: Limit,
    action: Action,
    at: Timestamp,
}

impl Gathered {
    /// Whether there is an ask about the bucket with the key that `write_key` writes, or about a lease of it, but for this very
    /// one.
    pub fn has_other(&self, write_key: impl FnOnce(&mut Vec<u8>) -> Option<Limit>) -> bool {
        let mut key = Vec::new();
        write_key(&mut key);
        let known = self.asks.iter().filter_map(|known| self.keys.get(known.key.clone()));
        known.filter(|known| **known != key).any(|known| record_key::bucket(known) == record_key::bucket(&key))
    }

    /// Adds an action under the limit that `write_key` tells; returns its place, or `None` when there is no limit. Costs of one
    /// counter add up, or the largest counts once; of several limits on it, the lowest judges them, without debt where one has
    /// none. A lease that is asked for twice is one.
    pub fn add(
        &mut self,
        action: Action,
        at: Timestamp,
        write_key: impl FnOnce(&mut Vec<u8>) -> Option<Limit>,
    ) -> Option<usize> {
        let (key, limit) = append_key(&mut self.keys, write_key)?;
        let (others, new) = self.keys.split_at(key.start);
        let is_same = |known: &Gathering| others.get(known.key.clone()) == Some(new);
        if let Some(place) = self.asks.iter().position(is_same) {
            if let Some(known) = self.asks.get_mut(place) {
                known.action = match (known.action, action) {
                    (Action::Ask(one), Action::Ask(other)) if !self.is_once => Action::Ask(sum(one, other)),
                    (known, other) => larger(known, other),
                };
                if limit.capacity() < known.limit.capacity() {
                    known.limit = limit;
                }
            }
            self.keys.truncate(key.start);
            return Some(place);
        }
        self.asks.push(Gathering { key, limit, action, at });
        Some(self.asks.len() - 1)
    }
}

/// Of what several requests ask of one counter that is asked once.
fn larger(one: Action, other: Action) -> Action {
    match (one, other) {
        (Action::Ask(Ask::Charge { cost }), Action::Ask(Ask::Charge { cost: other })) => {
            Action::Ask(Ask::Charge { cost: cost.max(other) })
        }
        (
            Action::Reservation(ReservationAsk::Reserve { credits, ttl_seconds }),
            Action::Reservation(ReservationAsk::Reserve { credits: other, .. }),
        ) => Action::Reservation(ReservationAsk::Reserve { credits: credits.max(other), ttl_seconds }),
        (one, _) => one,
    }
}

/// What asks as much as both. To look for one credit takes none, and what is taken is there to be looked at.
fn sum(one: Ask, other: Ask) -> Ask {
    match (one, other) {
        (Ask::Take { cost }, Ask::Take { cost: more }) => Ask::Take { cost: cost.saturating_add(more) },
        (Ask::Look { cost }, Ask::Look { cost: other }) => Ask::Look { cost: cost.max(other) },
        (Ask::Overdraw { cost }, Ask::Overdraw { cost: more }) => Ask::Overdraw { cost: cost.saturating_add(more) },
        (Ask::Take { cost }, Ask::Overdraw { cost: more }) | (Ask::Overdraw { cost }, Ask::Take { cost: more }) => {
            Ask::Take { cost: cost.saturating_add(more) }
        }
        (take @ (Ask::Take { .. } | Ask::Overdraw { .. }), _) => take,
        (_, other) => other,
    }
}

impl Requests {
    /// The requests from here on, up to [`Requests::end_together`], are taken together or not at all: each is told what it
    /// would come to, and none takes anything when one is denied. If one is refused, the batch must not be applied.
    pub fn begin_together(&mut self) {
        let (first_asked, first_matched) = (self.asked.len(), self.matched.len());
        self.together = Some(Box::new(Gathered { first_asked, first_matched, ..Gathered::default() }));
    }

    /// As [`Requests::begin_together`], for requests that are parts of one: each counter is asked once, whichever of them it is
    /// of. Charges take effect in any case.
    pub fn begin_as_one(&mut self) {
        self.begin_together();
        self.together.iter_mut().for_each(|gathered| gathered.is_once = true);
    }

    /// See [`Requests::begin_together`].
    pub fn end_together(&mut self) {
        let Some(gathered) = self.together.take() else { return };
        let Gathered { keys, asks, is_denied, is_clamped, first_asked, first_matched, .. } = *gathered;
        let first = self.batch.len();
        let charges = asks.iter().any(|asked| asked.action.is_settlement());
        let last_asked = self.asked.len().saturating_sub(1);
        for (place, Gathering { key, limit, action, at }) in asks.into_iter().enumerate() {
            let key = keys.get(key).unwrap_or_default();
            let write_key = |out: &mut Vec<u8>| {
                out.extend_from_slice(key);
                Some(limit)
            };
            let entry = match self.named.as_deref_mut() {
                // What is denied whatever counters say need not be remembered.
                Some(Named::Once(once)) if !is_denied => {
                    // Several requests may ask one counter, so the counters are dealt out: at most one share per request.
                    once.request = last_asked.min(first_asked + place);
                    once.push(action, at, &mut self.batch, write_key)
                }
                _ => self.batch.push_if(action, at, write_key),
            };
            if let Some(entry) = entry.filter(|_| is_clamped) {
                self.batch.clamp(entry);
            }
        }
        if is_denied {
            self.batch.only_look(first);
        }
        if !charges {
            self.batch.group(first);
            self.sets.push(Set { matched: first_matched..self.matched.len(), asked: first_asked..self.asked.len() });
        }
        for matched in self.matched.iter_mut().skip(first_matched) {
            if let Answer::Gathered(place) = matched.answer {
                matched.answer = Answer::Counted(first + place);
            }
        }
        for asked in self.asked.iter_mut().skip(first_asked) {
            if let Asked::GatheredBucket(place) = *asked {
                *asked = Asked::Bucket(first + place);
            }
        }
    }

    /// Of the requests that are taken together and were denied, only the rules that deny count. Returns how many such sets
    /// were denied.
    pub(super) fn judge_sets(&mut self) -> u64 {
        let mut denied = 0;
        for set in &self.sets {
            let Some(matched) = self.matched.get_mut(set.matched.clone()) else { continue };
            let asked = self.asked.get(set.asked.clone()).unwrap_or_default();
            let is_bucket_denied = asked.iter().any(|asked| match asked {
                Asked::Bucket(entry) => self.batch.allowed(*entry) == Some(false),
                Asked::Barred { is_hit, .. } => *is_hit,
                Asked::Refused(_)
                | Asked::GatheredBucket(_)
                | Asked::Rules(_)
                | Asked::Once(_)
                | Asked::Settling(_) => false,
            });
            let allowed = |answer: Answer| match answer {
                Answer::Uncounted { allowed, .. } => Some(allowed),
                Answer::Counted(entry) => self.batch.allowed(entry),
                Answer::Gathered(_) => None,
            };
            let fate = |answer: Answer| if let Answer::Counted(entry) = answer { self.batch.fate(entry) } else { None };
            let denies = |matched: &Matched| !matched.is_canary && allowed(matched.answer) == Some(false);
            let is_denied = is_bucket_denied || matched.iter().any(denies);
            let is_counted = |matched: &Matched| {
                matched.counted_as == CountedAs::HitOnce && fate(matched.answer) != Some(Fate::Done)
            };
            let was_denied = matched.iter().any(|matched| denies(matched) && is_counted(matched));
            denied += u64::from(is_denied && !was_denied);
            for matched in matched.iter_mut().filter(|matched| is_denied && !matched.is_canary) {
                if allowed(matched.answer) != Some(false) {
                    matched.counted_as = CountedAs::Nothing;
                }
            }
        }
        denied
    }
}
