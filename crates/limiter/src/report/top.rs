//! Counts the actors of a plan that was applied, for the [boards](crate::heavy_hitters) of each rule.
//!
//! Denials count one each, for every rule that denies. Credits count when they are taken: by an allowed hit, by a charge,
//! or by the commit of a reservation. A lease counts as one. Nothing is subtracted for refunds, and a repeated answer to an
//! idempotent request counts nothing.

use std::cell::Cell;

use super::answers::Report;
use crate::heavy_hitters::{Event, Order, Sampler, Top};
use crate::plan::{Member, Purpose, Source};
use crate::policy::Policy;
use crate::store::{Action, record_key};
use divvy_core::algorithm::{Ask, Limit, ReservationAsk, Resolution};

thread_local! {
    static SAMPLER: Cell<Sampler> = Cell::new(Sampler::new());
}

/// An amount that counts for the actor of a bucket, or of a member without one.
struct Amount {
    rule: usize,
    order: Order,
    amount: u64,
    /// The entry whose key contains the actor.
    entry: Option<usize>,
}

impl<'a> Report<'a> {
    /// Counts a sample of the plan's members and settlements.
    pub(crate) fn count_top(self, top: &Top) {
        let Some(policy) = self.policy() else { return };
        let end = self.plan.members.len() + self.plan.settled.len();
        let (mut sampler, mut first) = (SAMPLER.get(), 0);
        sampler.begin(self.plan.now());
        while let Some(sample) = sampler.next(first, end) {
            first = sample.position + 1;
            self.count_sample(top, policy, sample.position, sample.weight, &mut sampler);
        }
        SAMPLER.set(sampler);
    }

    fn count_sample(self, top: &Top, policy: &Policy, position: usize, weight: u64, sampler: &mut Sampler) {
        let Some(Amount { rule, order, amount, entry }) = self.amount_at(position) else { return };
        let Some(of_rule) = policy.tops.get(rule) else { return };
        let actor = match entry {
            Some(entry) => self.actor_of_entry(policy, rule, entry),
            None => self.plan.fixed_actors.get(position),
        };
        let event = Event { order, actor: actor.unwrap_or_default(), amount, weight };
        let now = self.plan.now();
        if !top.count(&of_rule.top, event, now, sampler) && top.should_drop_idle(now) {
            policy.tops.drop_idle(now);
        }
    }

    /// Returns the actor in the key of an entry.
    pub(super) fn actor_of_entry(self, policy: &Policy, rule: usize, entry: usize) -> Option<&'a [u8]> {
        let prefix = policy.bucket(rule)?.prefix.as_bytes();
        record_key::bucket(self.plan.batch.key_at(entry)?).strip_prefix(prefix)
    }

    /// Returns the amount that the member or the settlement at this position counts, if it counts any.
    fn amount_at(self, position: usize) -> Option<Amount> {
        match self.plan.members.get(position) {
            Some(member) => self.amount_of_member(position, member),
            None => self.amount_of_settlement(position - self.plan.members.len()),
        }
    }

    fn amount_of_member(self, position: usize, member: &Member) -> Option<Amount> {
        if matches!(member.purpose, Purpose::Other | Purpose::Refund | Purpose::Release) {
            return None;
        }
        let entry = match member.source {
            Source::Entry(entry) => Some(entry),
            Source::Fixed { .. } | Source::Blocked(_) => None,
        };
        let of_rule = |order, amount| Some(Amount { rule: member.rule, order, amount, entry });
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
        let is_same = |other: &Member| match (other.source, member.source) {
            (Source::Entry(one), Source::Entry(other_entry)) => one == other_entry && other.rule == member.rule,
            _ => false,
        };
        earlier.iter().any(is_same) || (can_be_denied && self.is_denied(group))
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
                Some(Amount { rule, order: Order::Taken, amount: cost, entry: Some(entry) })
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
                Ask::Take { cost } | Ask::Overdraw { cost } | Ask::Charge { cost } => cost,
                // Only commands with a limit of their own drain a bucket.
                Ask::Look { .. } | Ask::Show | Ask::Refund { .. } | Ask::Drain { .. } | Ask::Replay { .. } => 0,
            },
        })
    }
}
