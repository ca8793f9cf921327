//! Counts what a batch came to. Hits that a rule said the same to, one after the other, are counted at once: a burst of
//! one rule costs one atomic addition.

use super::{Answer, Asked, CountedAs, Fate, Matched, Requests, Settling};
use crate::algorithm::ReservationAsk;
use crate::metrics::{Metrics, RuleHits};
use crate::store::Action;

/// A run of hits on one rule with one answer.
#[derive(Clone, Copy)]
struct Run {
    rule: usize,
    allowed: bool,
    hits: u64,
}

impl Requests {
    /// Counts what the store said. Returns how often it said nothing.
    pub(super) fn count(&mut self, metrics: &Metrics) -> u64 {
        if !self.sets.is_empty() {
            metrics.hits.stacks_denied.inc_by(self.judge_sets());
        }
        self.count_answers()
    }

    /// Counts every rule that a hit matched, canaries included, by what it said; a rule whose counter the store failed
    /// to ask said nothing.
    fn count_answers(&self) -> u64 {
        let mut errors = 0;
        let mut run = Run { rule: 0, allowed: true, hits: 0 };
        for matched in &self.matched {
            let allowed = match matched.answer {
                Answer::Uncounted { allowed, .. } => allowed,
                Answer::Gathered(_) => continue,
                Answer::Counted(entry) => match self.batch.allowed(entry) {
                    Some(allowed) => allowed,
                    None => {
                        errors += 1;
                        continue;
                    }
                },
            };
            if matched.counted_as != CountedAs::Hit {
                self.count_other(matched, allowed);
                continue;
            }
            if (run.rule, run.allowed) == (matched.rule, allowed) {
                run.hits += 1;
            } else {
                self.count_run(run);
                run = Run { rule: matched.rule, allowed, hits: 1 };
            }
        }
        self.count_run(run);
        let buckets = self.asked.iter().filter_map(|asked| match asked {
            Asked::Bucket(entry) => Some(*entry),
            Asked::Refused(_)
            | Asked::GatheredBucket(_)
            | Asked::Barred { .. }
            | Asked::Rules(_)
            | Asked::Once(_)
            | Asked::Settling(_) => None,
        });
        errors += buckets.filter(|entry| self.batch.allowed(*entry).is_none()).count() as u64;
        errors + self.count_settled()
    }

    /// Counts what became of reservations, by rule. Returns how many the store failed to settle.
    fn count_settled(&self) -> u64 {
        let mut errors = 0;
        for (rule, entry) in self.settling.iter().filter_map(Settling::asked) {
            let Ok(outcome) = self.batch.outcome(entry) else {
                errors += 1;
                continue;
            };
            let hits = rule.and_then(|rule| self.policy.as_ref()?.hits.get(rule));
            match (hits, self.batch.action(entry)) {
                (Some(hits), Some(Action::Reservation(ReservationAsk::Commit { .. }))) => {
                    count_commit(hits, outcome.fate)
                }
                (Some(hits), Some(Action::Reservation(ReservationAsk::Release))) if outcome.fate == Fate::Done => {
                    hits.releases.inc();
                }
                _ => {}
            }
        }
        errors
    }

    /// Counts what is no plain hit, unless it was answered before, or asked for under a key of another request.
    fn count_other(&self, matched: &Matched, allowed: bool) {
        let Some(rule) = self.policy.as_ref().and_then(|policy| policy.hits.get(matched.rule)) else { return };
        match (self.fate(matched), matched.counted_as) {
            (_, CountedAs::Hit | CountedAs::Nothing) | (Some(Fate::Different), _) => {}
            (Some(Fate::Repeated), _) => rule.replays.inc(),
            (_, CountedAs::HitOnce) => rule.count(allowed, 1),
            (_, CountedAs::Charge) => rule.charges.inc(),
            (_, CountedAs::Refund) => rule.refunds.inc(),
            (Some(Fate::Done), CountedAs::Release) => rule.releases.inc(),
            (_, CountedAs::Release) => {}
        }
    }

    fn count_run(&self, run: Run) {
        let rule = self.policy.as_ref().and_then(|policy| policy.hits.get(run.rule));
        if let Some(rule) = rule.filter(|_| run.hits > 0) {
            rule.count(run.allowed, run.hits);
        }
    }
}

fn count_commit(hits: &RuleHits, fate: Fate) {
    match fate {
        Fate::Done => hits.commits.settled.inc(),
        Fate::Late => hits.commits.late.inc(),
        Fate::Repeated => hits.commits.repeated.inc(),
        Fate::Gone | Fate::Different => {}
    }
}
