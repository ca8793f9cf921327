//! Chooses the rule that answers for a stack, and reports the state of each rule in it.

use super::answers::Report;
use crate::algorithm::Limit;
use crate::limiter::plan::Member;
use crate::limiter::refusal::Refusal;
use crate::limiter::verdict::Verdict;
use crate::rules::Rule;

/// State of a request at one of the rules that it matched.
#[derive(Debug, Clone, Copy)]
pub struct Standing<'a> {
    pub verdict: Verdict,
    /// The rule, and its place among the rules.
    pub rule: &'a Rule,
    pub place: usize,
    /// The limit in force: the actor's own, or the rule's. `None` if the rule has no counter.
    pub limit: Option<Limit>,
    /// The most credits that can be left.
    pub capacity: u64,
}

impl<'a> Report<'a> {
    /// The state of request `index` at the rule that answers it.
    ///
    /// # Errors
    /// Same as [`Report::verdict`].
    pub fn standing(self, index: usize) -> Result<Standing<'a>, Refusal> {
        let (member, verdict) = self.answering(index)?;
        self.standing_with(member, verdict).ok_or(Refusal::NoRules)
    }

    /// Whether several rules had to allow request `index`.
    pub fn is_stack(self, index: usize) -> bool {
        self.members(index).unwrap_or_default().iter().filter(|member| !member.is_canary).count() > 1
    }

    /// Whether request `index` was a charge or a refund.
    pub fn is_settlement(self, index: usize) -> bool {
        self.members(index).unwrap_or_default().iter().any(|member| member.purpose.is_settlement())
    }

    /// The state of request `index` at each of the rules that had to allow it, in their order.
    ///
    /// # Errors
    /// Same as [`Report::verdict`].
    pub fn standings(self, index: usize) -> Result<impl Iterator<Item = Standing<'a>>, Refusal> {
        let members = self.members(index)?.iter().filter(|member| !member.is_canary);
        Ok(members.filter_map(move |member| self.standing_with(member, self.answer(member).ok()?)))
    }

    fn standing_with(self, member: &Member, verdict: Verdict) -> Option<Standing<'a>> {
        let rule = self.policy()?.rules.rules().get(member.rule)?;
        let capacity = self.capacity(member, &verdict);
        Some(Standing { verdict, rule, place: member.rule, limit: self.plan.limit(member), capacity })
    }

    /// The rule that answers, of those that must all allow: the one that denies for the longest time, or else the one that
    /// leaves the least in proportion; the first of several.
    pub(super) fn answering(self, index: usize) -> Result<(&'a Member, Verdict), Refusal> {
        let mut answering: Option<(&Member, Verdict)> = None;
        for member in self.members(index)? {
            let verdict = self.answer(member)?;
            let is_first = |known: &(&Member, Verdict)| self.comes_before((member, &verdict), (known.0, &known.1));
            if !member.is_canary && answering.as_ref().is_none_or(is_first) {
                answering = Some((member, verdict));
            }
        }
        answering.ok_or(Refusal::NoRules)
    }

    /// Whether a rule answers rather than one that was matched before it.
    fn comes_before(self, (one, verdict): (&Member, &Verdict), (other, before): (&Member, &Verdict)) -> bool {
        // Infinite, if waiting does not help.
        let wait = |verdict: &Verdict| verdict.retry_ns.map_or(u128::MAX, u128::from);
        let capacity = |member, verdict: &Verdict| i128::from(self.capacity(member, verdict));
        if one.purpose.is_settlement() {
            // It was not asked for: what is left is the answer.
            return i128::from(verdict.balance()) * capacity(other, before)
                < i128::from(before.balance()) * capacity(one, verdict);
        }
        match (verdict.allowed, before.allowed) {
            (false, false) => wait(verdict) > wait(before),
            (true, true) => {
                i128::from(verdict.credit) * capacity(other, before)
                    < i128::from(before.credit) * capacity(one, verdict)
            }
            (allowed, _) => !allowed,
        }
    }

    /// The most credits that can be left. A rule without a counter always has all of them.
    fn capacity(self, member: &Member, verdict: &Verdict) -> u64 {
        self.plan.limit(member).map_or(verdict.credit, |limit| limit.capacity())
    }
}
