//! Chooses the rule that answers for a stack, and reports the state of each rule in it.

use super::answers::Report;
use crate::plan::{Block, Member};
use crate::refusal::Refusal;
use crate::verdict::Verdict;
use divvy_core::algorithm::Limit;
use divvy_core::rules::Rule;

/// State of a request at one of the rules that it matched.
#[derive(Debug, Clone, Copy)]
pub struct Standing<'a> {
    /// The state at this rule.
    pub verdict: Verdict,
    /// The rule, and its place among the rules.
    pub rule: &'a Rule,
    /// Index of the rule in the policy.
    pub place: usize,
    /// The limit in force: the actor's own, or the rule's. `None` if the rule has no counter.
    pub limit: Option<&'a Limit>,
    /// Maximum number of credits that can be left.
    pub capacity: u64,
    /// The block that denies the request, if the actor is blocked.
    pub block: Option<&'a Block>,
}

impl<'a> Report<'a> {
    /// Returns the state of request `index` at the rule that answers it. In a stack, that is the rule that denies for
    /// the longest time, or else the one with the smallest share of its credits left. If several are equal, the first
    /// one answers.
    ///
    /// # Errors
    /// Same as [`Report::verdict`].
    pub fn standing(self, index: usize) -> Result<Standing<'a>, Refusal> {
        let (member, verdict) = self.answering(self.members(index)?)?;
        self.standing_of(member, verdict)
    }

    /// Returns the member that answers for these members, and its verdict. See [`Report::standing`].
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

    /// Returns whether several rules had to allow request `index`.
    pub fn is_stack(self, index: usize) -> bool {
        self.members(index).unwrap_or_default().iter().filter(|member| !member.is_canary).count() > 1
    }

    /// Returns whether request `index` was a charge or a refund.
    pub fn is_settlement(self, index: usize) -> bool {
        self.members(index).unwrap_or_default().iter().any(|member| member.purpose.is_settlement())
    }

    /// Returns the state of request `index` at each of the rules that had to allow it, in their order.
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
        let block = self.block(member);
        Ok(Standing { verdict, rule, place: member.rule, limit: self.plan.limit(member), capacity, block })
    }

    fn capacity(self, member: &Member, verdict: &Verdict) -> u64 {
        // A rule without a counter always has all of its credits.
        self.plan.limit(member).map_or(verdict.credit, Limit::capacity)
    }
}

/// The verdict of a rule, and the maximum number of credits that can be left.
struct Answer {
    verdict: Verdict,
    capacity: u64,
}

impl Answer {
    /// Returns whether this rule answers in place of a rule that was matched before it.
    fn comes_before(&self, other: &Self, is_settlement: bool) -> bool {
        let (one, before) = (&self.verdict, &other.verdict);
        // If waiting does not help, the wait counts as infinite.
        let wait = |verdict: &Verdict| verdict.retry_ns.map_or(u128::MAX, u128::from);
        if is_settlement {
            // A settlement is always allowed, so only the balance matters.
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
