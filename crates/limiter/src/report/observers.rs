//! Everything that counts the outcomes of a plan that was applied: metrics, the denials for the blocks that rules set, and the
//! [ranking](crate::heavy_hitters) of each rule's actors.
//!
//! A run of hits with the same rule and answer costs one atomic addition.
//!
//! In rankings, denials count one each, for every rule that denies. Credits count when they are taken: by an allowed hit, by a
//! charge, or by the commit of a reservation. A lease counts as one. Nothing is subtracted for refunds, and a repeated answer
//! to an idempotent request counts nothing.

use std::cell::Cell;
use std::ops::Range;

use tokio::sync::Notify;

use super::Report;
use crate::active_rules::ActiveRules;
use crate::heavy_hitters::{Event, Order, Random, Sampler, Top};
use crate::plan::{Group, Member, Purpose, Request, Source, Veto};
use crate::store::{Action, record_key};
use divvy_core::algorithm::{Ask, Limit, OutcomeSource, ReservationAsk, Resolution};
use divvy_telemetry::metrics::Metrics;

/// A run of hits on one rule with one answer.
#[derive(Clone, Copy)]
struct Run {
    rule: usize,
    allowed: bool,
    hits: u64,
}

impl Report<'_> {
    /// Counts the answer of every rule that a request concerned, including canaries. Returns the number of entries for
    /// which the store failed. Their rules have no answer.
    pub(crate) fn count(self, metrics: &Metrics) -> u64 {
        let (mut run, mut next) = (Run { rule: 0, allowed: true, hits: 0 }, 0);
        for group in &self.plan.groups {
            let Some(is_repeated) = self.denial(group) else { continue };
            metrics.hits.stacks_denied.inc_by(u64::from(!is_repeated));
            self.count_members(next..group.members.start, false, &mut run);
            self.count_members(group.members.clone(), true, &mut run);
            next = group.members.end;
        }
        self.count_members(next..self.plan.members.len(), false, &mut run);
        self.count_run(run);
        self.count_settled();
        self.count_limits(&metrics.ratelimit);
        self.plan.batch.outcomes.iter().filter(|outcome| outcome.is_err()).count() as u64
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

    /// If the group was denied, returns whether that repeats the first answer to an idempotent request.
    fn denial(self, group: &Group) -> Option<bool> {
        let requests = self.plan.requests.get(group.requests.clone()).unwrap_or_default();
        let is_request_denied = requests.iter().any(|request| match request {
            Request::OwnLimit(entry) => self.entry(*entry).is_ok_and(|outcome| !outcome.allowed),
            Request::Barred(outcome) => !outcome.allowed,
            Request::Refused(_) | Request::Rules { .. } | Request::Settlement(_) => false,
        });
        // A quota group takes no part in what the others take.
        let may_deny = |member: &Member| !member.is_canary && member.veto != Veto::WithGroup;
        let denies = |member: &&Member| may_deny(member) && self.allowed(member) == Some(false);
        let members = self.plan.members.get(group.members.clone()).unwrap_or_default();
        let mut denying = members.iter().filter(denies).peekable();
        if !is_request_denied && denying.peek().is_none() {
            return None;
        }
        let is_repeated = |member: &Member| {
            member.purpose == Purpose::IdempotentHit && self.resolution(member) != Some(Resolution::Done)
        };
        Some(denying.any(is_repeated))
    }

    /// Counts a member that is not a plain hit. Does not count it if its answer is repeated, or if its idempotency key
    /// was used for another request.
    fn count_other(self, member: &Member, allowed: bool) {
        let Some(rule) = self.active_rules().and_then(|active| active.hits.get(member.rule)) else { return };
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
        let entry = member.source.entry().and_then(|entry| self.plan.batch.entry(entry));
        entry.is_some_and(|entry| entry.action.is_settlement())
    }

    fn count_run(self, run: Run) {
        let rule = self.active_rules().and_then(|active| active.hits.get(run.rule));
        if let Some(rule) = rule.filter(|_| run.hits > 0) {
            rule.count(run.allowed, run.hits);
        }
    }

    /// Counts settlements by rule.
    fn count_settled(self) {
        for (rule, entry) in self.plan.settled.iter().filter_map(|record| Some((record.rule?, record.entry?))) {
            let hits = self.active_rules().and_then(|active| active.hits.get(rule));
            let (Some(hits), Ok(outcome)) = (hits, self.entry(entry)) else { continue };
            let Some(Action::Reservation(ask)) = self.plan.batch.entry(entry).map(|entry| entry.action) else {
                continue;
            };
            match (ask, outcome.resolution) {
                (ReservationAsk::Commit { .. }, Resolution::Done) => hits.commits.settled.inc(),
                (ReservationAsk::Commit { .. }, Resolution::Late) => hits.commits.late.inc(),
                (ReservationAsk::Commit { .. }, Resolution::Repeated) => hits.commits.repeated.inc(),
                (ReservationAsk::Release { .. }, Resolution::Done) => hits.releases.inc(),
                _ => {}
            }
        }
    }
}

impl<'a> Report<'a> {
    /// Notes the denials by rules with a penalty, and notifies the task that counts those by the store.
    pub(crate) fn note_denials(self, has_denials: &Notify, metrics: &Metrics) {
        let Some(active) = self.active_rules().filter(|active| !active.penalties.is_empty()) else { return };
        for member in self.plan.requests.iter().flat_map(|request| self.counting_members(request)) {
            if let Some(Some(penalty)) = active.penalties.get(member.rule)
                && let Some((entry, source)) = self.denying_entry(member)
                && let Some(actor) = self.actor_of_entry(active, member.rule, entry)
            {
                let is_cached = source == OutcomeSource::DenialCache;
                metrics.rule_blocks.lost_denials.inc_by(u64::from(!penalty.note(actor, is_cached, self.plan.now())));
                if !is_cached {
                    has_denials.notify_one();
                }
            }
        }
    }

    /// Returns the members of the request, unless a block denies it: otherwise a blocked client could get others blocked.
    fn counting_members(self, request: &Request) -> &'a [Member] {
        let Request::Rules { members, .. } = request else { return &[] };
        let members = self.plan.members.get(members.clone()).unwrap_or_default();
        let is_blocked = |member: &Member| !member.is_canary && matches!(member.source, Source::Blocked(_));
        if members.iter().any(is_blocked) { &[] } else { members }
    }

    /// Returns the entry that denied the member, and what answered. During an outage of the store, the counter is unknown, and
    /// its denials do not count.
    fn denying_entry(self, member: &Member) -> Option<(usize, OutcomeSource)> {
        let entry = member.source.entry()?;
        let outcome = self.entry(entry).ok()?;
        let is_hit = matches!(member.purpose, Purpose::Hit | Purpose::IdempotentHit) && !self.is_charge(entry);
        let is_known = outcome.resolution == Resolution::Done && outcome.source != OutcomeSource::FailurePolicy;
        (is_hit && is_known && !outcome.allowed && member.veto == Veto::Alone).then_some((entry, outcome.source))
    }
}

thread_local! {
    static SAMPLER: Cell<Sampler> = Cell::new(Sampler::of(Random::new()));
}

/// An amount that counts for the actor of a rule: the rule, the order, the amount, and the entry whose key contains the actor, if
/// there is one.
type Amount = (usize, Order, u64, Option<usize>);

impl<'a> Report<'a> {
    /// Counts a sample of the plan's members and settlements.
    pub(crate) fn count_top(self, top: &Top) {
        let Some(active) = self.active_rules() else { return };
        let end = self.plan.members.len() + self.plan.settled.len();
        let (mut sampler, mut first) = (SAMPLER.get(), 0);
        sampler.begin(self.plan.now());
        while let Some((position, weight)) = sampler.next(first, end) {
            first = position + 1;
            let amount = match self.plan.members.get(position) {
                Some(member) => self.amount_of_member(position, member),
                None => self.amount_of_settlement(position - self.plan.members.len()),
            };
            let Some((rule, order, amount, entry)) = amount else { continue };
            let Some(of_rule) = active.tops.get(rule) else { continue };
            let actor = match entry {
                Some(entry) => self.actor_of_entry(active, rule, entry),
                None => self.plan.fixed_actors.get(position).map(|(actor, _)| actor),
            };
            let event = Event { order, actor: actor.unwrap_or_default(), amount, weight };
            top.count(&of_rule.top, event, self.plan.now(), &mut sampler);
        }
        SAMPLER.set(sampler);
    }

    /// Returns the actor in the key of an entry.
    pub(super) fn actor_of_entry(self, active: &ActiveRules, rule: usize, entry: usize) -> Option<&'a [u8]> {
        let prefix = active.counter(rule)?.prefix.as_bytes();
        record_key::bucket(self.plan.batch.key_at(entry)?).strip_prefix(prefix)
    }

    /// Returns the amount that the member at this position counts, if it counts any.
    fn amount_of_member(self, position: usize, member: &Member) -> Option<Amount> {
        if matches!(member.purpose, Purpose::Other | Purpose::Refund | Purpose::Release) {
            return None;
        }
        let entry = member.source.entry();
        let of_rule = |order, amount| Some((member.rule, order, amount, entry));
        let allowed = self.allowed(member)?;
        if self.resolution(member).is_some_and(|resolution| resolution != Resolution::Done) {
            return None;
        }
        // A gateway's charge counts as a hit, but takes its credits anyway.
        let is_charge = entry.is_some_and(|entry| self.is_charge(entry));
        if !is_charge && !allowed {
            return of_rule(Order::Denied, 1);
        }
        let credits = self.credits(entry?)?;
        let is_left_out = !member.is_canary && self.is_left_out(position, member, !is_charge);
        if credits > 0 && !is_left_out { of_rule(Order::Taken, credits) } else { None }
    }

    /// Returns whether the member's group was denied, or whether an earlier member has counted the credits that the group
    /// takes from this rule.
    fn is_left_out(self, position: usize, member: &Member, can_be_denied: bool) -> bool {
        let groups = &self.plan.groups;
        let place = groups.partition_point(|group| group.members.end <= position);
        let Some(group) = groups.get(place).filter(|group| group.members.contains(&position)) else { return false };
        let earlier = self.plan.members.get(group.members.start..position).unwrap_or_default();
        let is_same = |other: &Member| (other.rule, other.source.entry()) == (member.rule, member.source.entry());
        earlier.iter().any(is_same) || (can_be_denied && self.denial(group).is_some())
    }

    fn amount_of_settlement(self, index: usize) -> Option<Amount> {
        let record = self.plan.settled.get(index)?;
        let (rule, entry) = (record.rule?, record.entry?);
        let (Resolution::Done | Resolution::Late) = self.entry(entry).ok()?.resolution else { return None };
        let asked = self.plan.batch.entry(entry)?;
        match asked.action {
            // A lease was counted when it was taken.
            Action::Reservation(ReservationAsk::Commit { cost, .. })
                if cost > 0 && !matches!(asked.limit, Limit::Concurrency(_)) =>
            {
                Some((rule, Order::Taken, cost, Some(entry)))
            }
            _ => None,
        }
    }

    pub(super) fn is_charge(self, entry: usize) -> bool {
        let ask = self.plan.batch.entry(entry).and_then(|entry| entry.action.ask());
        matches!(ask, Some(Ask::Charge { .. }))
    }

    /// Returns the credits that an entry takes if it is allowed.
    fn credits(self, index: usize) -> Option<u64> {
        let entry = self.plan.batch.entry(index)?;
        Some(match (entry.action, &entry.limit) {
            (Action::Reservation(ReservationAsk::Reserve { .. }), Limit::Concurrency(_)) => 1,
            (action, _) => match action.ask()? {
                Ask::Count { cost } => cost.min(self.entry(index).ok()?.before),
                ask => ask.cost(),
            },
        })
    }
}
