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
    /// The state at this rule.
    pub verdict: Verdict,
    /// The rule, and its place among the rules.
    pub rule: &'a Rule,
    /// Position among the rules of the policy.
    pub place: usize,
    /// The limit in force: the actor's own, or the rule's. `None` if the rule has no counter.
    pub limit: Option<&'a Limit>,
    /// The most credits that can be left.
    pub capacity: u64,
}

impl<'a> Report<'a> {
    /// The state of request `index` at the rule that answers it. Of rules that must all allow, it is the one that denies for the
    /// longest time, or else the one that leaves the least in proportion; the first of several.
    ///
    /// # Errors
    /// Same as [`Report::verdict`].
    pub fn standing(self, index: usize) -> Result<Standing<'a>, Refusal> {
        let (member, verdict) = self.answering(self.members(index)?)?;
        self.standing_of(member, verdict)
    }

    /// The member that answers for these, and its verdict: see [`Report::standing`].
    pub(super) fn answering(self, members: &'a [Member]) -> Result<(&'a Member, Verdict), Refusal> {
        let mut answering: Option<(&Member, Answer)> = None;
        for member in members {
            let verdict = self.answer(member)?;
            let answer = Answer { verdict, capacity: self.capacity(member, &verdict) };
            let comes_first = |(_, known): &(_, Answer)| answer.comes_before(known, member.purpose.is_settlement());
            if !member.is_canary && answering.as_ref().is_none_or(comes_first) {
                answering = Some((member, answer));
            }
        }
        answering.map(|(member, answer)| (member, answer.verdict)).ok_or(Refusal::NoRules)
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
        Ok(members.filter_map(move |member| self.standing_of(member, self.answer(member).ok()?).ok()))
    }

    fn standing_of(self, member: &Member, verdict: Verdict) -> Result<Standing<'a>, Refusal> {
        let rule = self.policy().and_then(|policy| policy.rules.rules().get(member.rule)).ok_or(Refusal::NoRules)?;
        let capacity = self.capacity(member, &verdict);
        Ok(Standing { verdict, rule, place: member.rule, limit: self.plan.limit(member), capacity })
    }

    fn capacity(self, member: &Member, verdict: &Verdict) -> u64 {
        // A rule without a counter always has all of its credits.
        self.plan.limit(member).map_or(verdict.credit, Limit::capacity)
    }
}

/// The verdict of a rule, and the most credits that can be left.
struct Answer {
    verdict: Verdict,
    capacity: u64,
}

impl Answer {
    /// Whether this rule answers rather than a rule that was matched before it.
    fn comes_before(&self, other: &Self, is_settlement: bool) -> bool {
        let (one, before) = (&self.verdict, &other.verdict);
        // Infinite, if waiting does not help.
        let wait = |verdict: &Verdict| verdict.retry_ns.map_or(u128::MAX, u128::from);
        if is_settlement {
            // It was not asked for: what is left is the answer.
            return i128::from(one.balance()) * i128::from(other.capacity)
                < i128::from(before.balance()) * i128::from(self.capacity);
        }
        match (one.allowed, before.allowed) {
            (false, false) => wait(one) > wait(before),
            (true, true) => {
                u128::from(one.credit) * u128::from(other.capacity)
                    < u128::from(before.credit) * u128::from(self.capacity)
            }
            (allowed, _) => !allowed,
        }
    }
}
