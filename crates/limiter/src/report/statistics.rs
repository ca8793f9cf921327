//! Counts the hits of ratelimit's limits for its statistics. Repeated answers to idempotent requests count nothing.

use super::Report;
use crate::plan::{Member, Purpose, Request, Source};
use divvy_core::algorithm::{Ask, Outcome, OutcomeSource, Resolution};
use divvy_core::rules::{Descriptor, read_entries};
use divvy_telemetry::metrics::{Ratelimit, Tally};

impl Report<'_> {
    /// Counts hits of configured limits, and of clients' own limits in their place.
    pub(super) fn count_limits(self, metrics: &Ratelimit) {
        let Some(active) = self.active_rules().filter(|active| !active.limits.is_empty()) else { return };
        let near_limit_ratio = active.rules.domains().map_or(1.0, |domains| domains.near_limit_ratio);
        for (position, member) in self.plan.members.iter().enumerate() {
            let Some(Some((descriptor, configured))) = active.limits.get(member.rule) else { continue };
            let is_shadow = descriptor.is_shadow;
            let found = match member.source {
                Source::Entry(entry) => {
                    self.tally(entry).map(|tally| (self.actor_of_entry(active, member.rule, entry), tally))
                }
                Source::Fixed { .. } | Source::Blocked(_) => {
                    let is_within = self.allowed(member) == Some(true) && !is_shadow;
                    let fixed = self.plan.fixed_actors.get(position);
                    fixed.map(|(actor, cost)| (Some(actor), uncounted(cost, is_within)))
                }
            };
            let Some((actor, tally)) = found.filter(|_| self.is_new_hit(member)) else { continue };
            let tally = Tally { near_limit_ratio, is_shadow, ..tally };
            if descriptor.shows_values() {
                let name = descriptor.statistic_of(read_entries(actor.unwrap_or_default()));
                metrics.limit_of_request(&name, &descriptor.domain).count(tally);
            } else {
                configured.count(tally);
            }
        }
        for (request, text, cost) in self.plan.own_hits.iter() {
            let tally = match self.plan.requests.get(request) {
                Some(Request::OwnLimit(entry)) => self.tally(*entry),
                Some(Request::Barred(outcome)) => Some(uncounted(cost, outcome.allowed)),
                _ => None,
            };
            let mut entries = read_entries(text);
            if let (Some(tally), Some([_, domain])) = (tally, entries.next()) {
                let domain = String::from_utf8_lossy(&domain).into_owned();
                let name = Descriptor { domain: domain.clone(), ..Descriptor::default() }.statistic_of(entries);
                metrics.limit_of_request(&name, &domain).count(Tally { near_limit_ratio, ..tally });
            }
        }
    }

    fn is_new_hit(self, member: &Member) -> bool {
        match member.purpose {
            Purpose::Hit => true,
            Purpose::IdempotentHit => self.resolution(member).is_none_or(|resolution| resolution == Resolution::Done),
            Purpose::Other | Purpose::Charge | Purpose::Refund | Purpose::Release => false,
        }
    }

    fn tally(self, entry: usize) -> Option<Tally> {
        let asked = self.plan.batch.entry(entry)?;
        let (limit, cost) = (asked.limit.capacity(), asked.action.ask().map_or(0, Ask::cost));
        let known = self.entry(entry).ok().filter(|outcome| outcome.source != OutcomeSource::FailurePolicy);
        let used = known.map(|Outcome { left, owed, .. }| limit.saturating_sub(left).saturating_add(owed));
        Some(Tally { cost, limit, used, ..Tally::default() })
    }
}

/// Returns the tally of a hit that no counter counted: an allowed one is far from the limit, which is 0 otherwise.
fn uncounted(cost: u64, is_within: bool) -> Tally {
    Tally { cost, limit: if is_within { u64::MAX } else { 0 }, used: Some(cost), ..Tally::default() }
}
