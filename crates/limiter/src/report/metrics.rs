//! Updates metrics for a plan that was applied. A run of hits with the same rule and answer costs one atomic addition.

use std::ops::Range;

use super::answers::Report;
use crate::plan::{Group, Member, Purpose, Request, Source};
use crate::store::Action;
use divvy_core::algorithm::{ReservationAsk, Resolution};
use divvy_telemetry::metrics::Metrics;

/// A run of hits on one rule with one answer.
#[derive(Clone, Copy)]
struct Run {
    rule: usize,
    allowed: bool,
    hits: u64,
}

/// The denial of a group.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Denial {
    New,
    /// An idempotent request that gets its first answer again.
    Repeated,
}

impl Report<'_> {
    /// Counts the answer of every rule that a request concerned, including canaries. Returns the number of entries for
    /// which the store failed. Their rules have no answer.
    pub(crate) fn count(self, metrics: &Metrics) -> u64 {
        let (mut run, mut next) = (Run { rule: 0, allowed: true, hits: 0 }, 0);
        for group in &self.plan.groups {
            let Some(denial) = self.denial(group) else { continue };
            metrics.hits.stacks_denied.inc_by(u64::from(denial == Denial::New));
            self.count_members(next..group.members.start, false, &mut run);
            self.count_members(group.members.clone(), true, &mut run);
            next = group.members.end;
        }
        self.count_members(next..self.plan.members.len(), false, &mut run);
        self.count_run(run);
        self.count_settled();
        self.outcomes.iter().filter(|outcome| outcome.is_err()).count() as u64
    }

    /// Counts these members. In a denied group, only the rules that deny count.
    fn count_members(self, members: Range<usize>, is_in_denied_group: bool, run: &mut Run) {
        for member in self.plan.members.get(members).unwrap_or_default() {
            let Some(allowed) = self.allowed(member) else { continue };
            if allowed && !member.is_canary && is_in_denied_group {
                continue;
            }
            if member.purpose != Purpose::Hit {
                self.count_other(member, allowed);
            } else if (run.rule, run.allowed) == (member.rule, allowed) {
                run.hits += 1;
            } else {
                self.count_run(*run);
                *run = Run { rule: member.rule, allowed, hits: 1 };
            }
        }
    }

    /// Returns whether the group was denied.
    pub(super) fn is_denied(self, group: &Group) -> bool {
        self.denial(group).is_some()
    }

    /// Returns the kind of the group's denial, if it was denied.
    fn denial(self, group: &Group) -> Option<Denial> {
        let requests = self.plan.requests.get(group.requests.clone()).unwrap_or_default();
        let is_request_denied = requests.iter().any(|request| match request {
            Request::OwnLimit(entry) => self.entry(*entry).is_ok_and(|outcome| !outcome.allowed),
            Request::Barred(outcome) => !outcome.allowed,
            Request::Refused(_) | Request::Rules { .. } | Request::Settlement(_) => false,
        });
        let denies = |member: &&Member| !member.is_canary && self.allowed(member) == Some(false);
        let members = self.plan.members.get(group.members.clone()).unwrap_or_default();
        let mut denying = members.iter().filter(denies).peekable();
        if !is_request_denied && denying.peek().is_none() {
            return None;
        }
        let is_repeated = |member: &Member| {
            member.purpose == Purpose::IdempotentHit && self.resolution(member) != Some(Resolution::Done)
        };
        Some(if denying.any(is_repeated) { Denial::Repeated } else { Denial::New })
    }

    /// Counts a member that is not a plain hit. Does not count it if its answer is repeated, or if its idempotency key
    /// was used for another request.
    fn count_other(self, member: &Member, allowed: bool) {
        let Some(rule) = self.policy().and_then(|policy| policy.hits.get(member.rule)) else { return };
        match (self.resolution(member), member.purpose) {
            (_, Purpose::Hit | Purpose::Other) | (Some(Resolution::Different), _) => {}
            (Some(Resolution::Repeated), _) => rule.replays.inc(),
            (_, Purpose::IdempotentHit) => rule.count(allowed, 1),
            (_, Purpose::Charge | Purpose::Refund) if !self.has_counted_usage(member) => {}
            (_, Purpose::Charge) => rule.charges.inc(),
            (_, Purpose::Refund) => rule.refunds.inc(),
            (Some(Resolution::Done), Purpose::Release) => rule.releases.inc(),
            (_, Purpose::Release) => {}
        }
    }

    /// Returns whether the member's counter counts a charge or a refund.
    fn has_counted_usage(self, member: &Member) -> bool {
        let Source::Entry(entry) = member.source else { return false };
        self.plan.batch.entry(entry).is_some_and(|entry| entry.action.is_settlement())
    }

    fn count_run(self, run: Run) {
        let rule = self.policy().and_then(|policy| policy.hits.get(run.rule));
        if let Some(rule) = rule.filter(|_| run.hits > 0) {
            rule.count(run.allowed, run.hits);
        }
    }

    /// Counts settlements by rule.
    fn count_settled(self) {
        for (rule, entry) in self.plan.settled.iter().filter_map(|record| Some((record.rule?, record.entry?))) {
            let hits = self.policy().and_then(|policy| policy.hits.get(rule));
            let (Some(hits), Ok(outcome)) = (hits, self.entry(entry)) else { continue };
            let Some(Action::Reservation(ask)) = self.plan.batch.entry(entry).map(|entry| entry.action) else {
                continue;
            };
            match (ask, outcome.resolution) {
                (ReservationAsk::Commit { .. }, Resolution::Done) => hits.commits.settled.inc(),
                (ReservationAsk::Commit { .. }, Resolution::Late) => hits.commits.late.inc(),
                (ReservationAsk::Commit { .. }, Resolution::Repeated) => hits.commits.repeated.inc(),
                (ReservationAsk::Release { .. }, Resolution::Done) => hits.releases.inc(),
                (
                    ReservationAsk::Commit { .. } | ReservationAsk::Release { .. },
                    Resolution::Gone | Resolution::Different,
                )
                | (ReservationAsk::Release { .. }, Resolution::Late | Resolution::Repeated)
                | (ReservationAsk::Reserve { .. } | ReservationAsk::Renew { .. }, _) => {}
            }
        }
    }
}
