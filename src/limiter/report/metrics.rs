//! Updates metrics for a plan that was applied. A run of hits with the same rule and answer costs one atomic addition.

use super::answers::Report;
use crate::algorithm::Fate;
use crate::algorithm::ReservationAsk;
use crate::limiter::plan::{Group, Member, Purpose, Request};
use crate::metrics::{Metrics, RuleHits};
use crate::store::Action;

/// A run of hits on one rule with one answer.
#[derive(Clone, Copy)]
struct Run {
    rule: usize,
    allowed: bool,
    hits: u64,
}

impl<'a> Report<'a> {
    /// Counts every rule that a request concerned, canaries included, by its answer. A rule whose counter the store failed to ask
    /// has none. Returns the number of entries that the store failed for.
    pub(in crate::limiter) fn count(self, metrics: &Metrics) -> u64 {
        let mut errors = 0;
        let mut run = Run { rule: 0, allowed: true, hits: 0 };
        let denied = self.denied_groups(metrics);
        let mut denied = denied.as_slice();
        for (index, member) in self.plan.members.iter().enumerate() {
            let is_in_denied_group = !denied.is_empty() && is_in_first(&mut denied, index);
            let Some(allowed) = self.allowed(member) else {
                errors += 1;
                continue;
            };
            // In a denied group, only the rules that deny count.
            if allowed && !member.is_canary && is_in_denied_group {
                continue;
            }
            if member.purpose != Purpose::Hit {
                self.count_other(member, allowed);
            } else if (run.rule, run.allowed) == (member.rule, allowed) {
                run.hits += 1;
            } else {
                self.count_run(run);
                run = Run { rule: member.rule, allowed, hits: 1 };
            }
        }
        self.count_run(run);
        errors + self.failed_buckets() + self.count_settled()
    }

    /// The groups that were denied, in order. Counts the denials that repeat no earlier one.
    fn denied_groups(self, metrics: &Metrics) -> Vec<&'a Group> {
        let mut denied = Vec::new();
        for group in &self.plan.groups {
            if let Some(is_repeated) = self.denial(group) {
                metrics.hits.stacks_denied.inc_by(u64::from(!is_repeated));
                denied.push(group);
            }
        }
        denied
    }

    /// Reports whether the group was denied: `Some` of whether that repeats an earlier denial.
    fn denial(self, group: &Group) -> Option<bool> {
        let requests = self.plan.requests.get(group.requests.clone()).unwrap_or_default();
        let is_request_denied = requests.iter().any(|request| match request {
            Request::OwnLimit(entry) => self.entry_allowed(*entry) == Some(false),
            Request::Barred { is_hit, .. } => *is_hit,
            Request::Refused(_) | Request::Rules { .. } | Request::Settlement(_) => false,
        });
        let members = self.plan.members.get(group.members.clone()).unwrap_or_default();
        let mut denying =
            members.iter().filter(|member| !member.is_canary && self.allowed(member) == Some(false)).peekable();
        if !is_request_denied && denying.peek().is_none() {
            return None;
        }
        let is_repeated =
            |member: &Member| member.purpose == Purpose::IdempotentHit && self.fate(member) != Some(Fate::Done);
        Some(denying.any(is_repeated))
    }

    /// Counts a member that is not a plain hit, unless it repeats an answer, or its idempotency key was used for another
    /// request.
    fn count_other(self, member: &Member, allowed: bool) {
        let Some(rule) = self.policy().and_then(|policy| policy.hits.get(member.rule)) else { return };
        match (self.fate(member), member.purpose) {
            (_, Purpose::Hit | Purpose::Other) | (Some(Fate::Different), _) => {}
            (Some(Fate::Repeated), _) => rule.replays.inc(),
            (_, Purpose::IdempotentHit) => rule.count(allowed, 1),
            (_, Purpose::Charge) => rule.charges.inc(),
            (_, Purpose::Refund) => rule.refunds.inc(),
            (Some(Fate::Done), Purpose::Release) => rule.releases.inc(),
            (_, Purpose::Release) => {}
        }
    }

    fn count_run(self, run: Run) {
        let rule = self.policy().and_then(|policy| policy.hits.get(run.rule));
        if let Some(rule) = rule.filter(|_| run.hits > 0) {
            rule.count(run.allowed, run.hits);
        }
    }

    /// The number of buckets under the client's own limit that the store failed for.
    fn failed_buckets(self) -> u64 {
        let failed = |request: &&Request| match request {
            Request::OwnLimit(entry) => self.entry_allowed(*entry).is_none(),
            Request::Refused(_) | Request::Barred { .. } | Request::Rules { .. } | Request::Settlement(_) => false,
        };
        self.plan.requests.iter().filter(failed).count() as u64
    }

    /// Counts settlements by rule. Returns the number that the store failed to settle.
    fn count_settled(self) -> u64 {
        let mut errors = 0;
        for (rule, entry) in self.plan.settled.iter().filter_map(|record| Some((record.rule, record.entry?))) {
            let Ok(outcome) = self.entry(entry) else {
                errors += 1;
                continue;
            };
            let Some(hits) = rule.and_then(|rule| self.policy()?.hits.get(rule)) else { continue };
            match self.plan.batch.action(entry) {
                Some(Action::Reservation(ReservationAsk::Commit { .. })) => count_commit(hits, outcome.fate),
                Some(Action::Reservation(ReservationAsk::Release)) if outcome.fate == Fate::Done => hits.releases.inc(),
                _ => {}
            }
        }
        errors
    }
}

/// Whether the member is in the first of these groups, after those were removed that end before it.
fn is_in_first(groups: &mut &[&Group], member: usize) -> bool {
    while let [first, rest @ ..] = groups
        && first.members.end <= member
    {
        *groups = rest;
    }
    groups.first().is_some_and(|group| group.members.start <= member)
}

fn count_commit(hits: &RuleHits, fate: Fate) {
    match fate {
        Fate::Done => hits.commits.settled.inc(),
        Fate::Late => hits.commits.late.inc(),
        Fate::Repeated => hits.commits.repeated.inc(),
        Fate::Gone | Fate::Different => {}
    }
}
