//! Who answers a request that several rules had to allow, and where it stands with each of them.

use super::{Answer, CountedAs, Fate, Limit, Matched, Outcome, Refusal, Requests, StoreError, Verdict};
use crate::rules::Rule;

/// Where a request stands with one of the rules that it matched.
#[derive(Debug, Clone, Copy)]
pub struct Standing<'a> {
    pub verdict: Verdict,
    /// The rule, and its place among the rules.
    pub rule: &'a Rule,
    pub place: usize,
    /// Its limit, or the actor's own, as it is at this time; `None` where it counts nothing.
    pub limit: Option<Limit>,
    /// The most credits that can be left.
    pub capacity: u64,
}

impl Requests {
    /// The verdict on request `index`, once the batch is applied: that of the rule that answers.
    ///
    /// # Errors
    /// When there are no rules, the request's cost cannot be told, or the store failed for any of its counters.
    pub fn verdict(&self, index: usize) -> Result<Verdict, Refusal> {
        match self.matched(index)? {
            // As nearly always: without a stack, and without canaries.
            [only] => self.answer(only),
            _ => Ok(self.answering(index)?.1),
        }
    }

    /// Where request `index` stands with the rule that answers it.
    ///
    /// # Errors
    /// As [`Requests::verdict`].
    pub fn standing(&self, index: usize) -> Result<Standing<'_>, Refusal> {
        let (matched, verdict) = self.answering(index)?;
        self.standing_with(matched, verdict).ok_or(Refusal::NoRules)
    }

    /// Whether several rules had to allow request `index`.
    pub fn is_stack(&self, index: usize) -> bool {
        let members = self.matched(index).unwrap_or_default().iter().filter(|matched| !matched.is_canary);
        members.count() > 1
    }

    /// Whether request `index` was a charge or a refund.
    pub fn is_settlement(&self, index: usize) -> bool {
        self.matched(index).unwrap_or_default().iter().any(Matched::is_settlement)
    }

    /// Where request `index` stands with each of the rules that had to allow it, in their order.
    ///
    /// # Errors
    /// As [`Requests::verdict`].
    pub fn standings(&self, index: usize) -> Result<impl Iterator<Item = Standing<'_>>, Refusal> {
        let members = self.matched(index)?.iter().filter(|matched| !matched.is_canary);
        Ok(members.filter_map(|matched| self.standing_with(matched, self.answer(matched).ok()?)))
    }

    fn standing_with(&self, matched: &Matched, verdict: Verdict) -> Option<Standing<'_>> {
        let rule = self.policy.as_ref()?.rules.rules().get(matched.rule)?;
        let limit = match matched.answer {
            Answer::Counted(entry) => self.batch.limit(entry),
            Answer::Uncounted { .. } | Answer::Gathered(_) => None,
        };
        let capacity = self.capacity(matched).unwrap_or(verdict.credit);
        Some(Standing { verdict, rule, place: matched.rule, limit, capacity })
    }

    /// The rule that answers, of those that must all allow: the one that denies for the longest time, or else the one that
    /// leaves the least in proportion; the first of several.
    fn answering(&self, index: usize) -> Result<(&Matched, Verdict), Refusal> {
        let mut answering: Option<(&Matched, Verdict)> = None;
        for matched in self.matched(index)? {
            let verdict = self.answer(matched)?;
            let is_first = |known: &(&Matched, Verdict)| self.comes_before((matched, &verdict), (known.0, &known.1));
            if !matched.is_canary && answering.as_ref().is_none_or(is_first) {
                answering = Some((matched, verdict));
            }
        }
        answering.ok_or(Refusal::NoRules)
    }

    /// Whether a rule answers rather than one that was matched before it.
    fn comes_before(&self, (one, verdict): (&Matched, &Verdict), (other, before): (&Matched, &Verdict)) -> bool {
        // For ever, when waiting does not help.
        let wait = |verdict: &Verdict| verdict.retry_ns.map_or(u128::MAX, u128::from);
        let capacity = |matched, verdict: &Verdict| i128::from(self.capacity(matched).unwrap_or(verdict.credit));
        if one.is_settlement() {
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

    /// The most credits that the counter can hold; `None` without one, where all are there all the time.
    fn capacity(&self, matched: &Matched) -> Option<u64> {
        match matched.answer {
            Answer::Counted(entry) => Some(self.batch.limit(entry)?.capacity()),
            Answer::Uncounted { .. } | Answer::Gathered(_) => None,
        }
    }

    #[inline]
    fn answer(&self, matched: &Matched) -> Result<Verdict, Refusal> {
        match matched.answer {
            Answer::Uncounted { allowed, credit } => Ok(Verdict::uncounted(allowed, credit)),
            Answer::Counted(entry) => {
                let outcome = self.batch.outcome(entry)?;
                if outcome.fate == Fate::Different && !matched.is_canary {
                    return Err(Refusal::DifferentReservation);
                }
                // What nobody holds need not be freed.
                let allowed = outcome.allowed || matched.counted_as == CountedAs::Release;
                Ok(Outcome { allowed, ..outcome }.into())
            }
            Answer::Gathered(_) => Err(StoreError::new("the store was not asked").into()),
        }
    }
}
