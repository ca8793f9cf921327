//! The report, and the answers that consist of one verdict.

use std::sync::Arc;

use crate::plan::{Block, Member, Plan, Purpose, Request, Source};
use crate::policy::Policy;
use crate::refusal::Refusal;
use crate::store::{Outcomes, StoreError, outcome_at};
use crate::verdict::Verdict;
use divvy_core::algorithm::{Outcome, Resolution};
use divvy_core::clock::Timestamp;

/// A plan that the store has applied.
#[derive(Debug, Default)]
pub struct Applied {
    pub(crate) plan: Plan,
    pub(crate) outcomes: Outcomes,
}

/// Reads answers from a plan and the outcomes of its entries.
#[derive(Debug, Clone, Copy)]
pub struct Report<'a> {
    pub(super) plan: &'a Plan,
    pub(super) outcomes: &'a Outcomes,
}

impl Applied {
    /// Returns the report on this plan.
    pub fn report(&self) -> Report<'_> {
        Report { plan: &self.plan, outcomes: &self.outcomes }
    }
}

/// The plan's buffers, to be used again.
impl From<Applied> for Plan {
    fn from(Applied { mut plan, outcomes }: Applied) -> Self {
        plan.batch.outcomes = outcomes;
        plan
    }
}

impl<'a> Report<'a> {
    /// Returns the number of requests.
    pub fn len(self) -> usize {
        self.plan.len()
    }

    /// Returns whether there are no requests.
    pub fn is_empty(self) -> bool {
        self.plan.is_empty()
    }

    /// Returns the verdict on request `index`, by the rule that answers.
    ///
    /// # Errors
    /// There are no rules, the request was refused, its idempotency key was used for another request, or the store
    /// failed for any of its counters.
    #[inline]
    pub fn verdict(self, index: usize) -> Result<Verdict, Refusal> {
        match self.members(index)? {
            // Fast path: one rule, no stack, no canaries.
            [only] => self.answer(only),
            members => Ok(self.answering(members)?.1),
        }
    }

    /// Returns the outcome of request `index`, which has a limit of its own.
    ///
    /// # Errors
    /// The store failed for its bucket.
    pub fn outcome(self, index: usize) -> Result<Outcome, Refusal> {
        match self.plan.requests.get(index) {
            Some(Request::OwnLimit(entry)) => Ok(self.entry(*entry)?),
            Some(Request::Barred(outcome)) => Ok(**outcome),
            Some(Request::Refused(refusal)) => Err(refusal.clone()),
            Some(Request::Rules { .. } | Request::Settlement(_)) | None => Err(Refusal::NoRules),
        }
    }

    /// Returns the number of counters that request `index`, an [`Intent::Forget`](crate::Intent::Forget), has
    /// forgotten.
    ///
    /// # Errors
    /// Same as [`Report::verdict`].
    pub fn forgotten(self, index: usize) -> Result<usize, Refusal> {
        self.members(index)?.iter().try_fold(0, |count, member| match member.source {
            Source::Entry(entry) => Ok(count + usize::from(self.entry(entry)?.allowed)),
            Source::Fixed { .. } | Source::Blocked(_) => Ok(count),
        })
    }

    /// Returns whether all counters of the requests with an idempotency key repeated their answers.
    ///
    /// # Errors
    /// The index of the first request whose key was used for another request.
    pub fn is_replay(self) -> Result<bool, usize> {
        let (mut is_any, mut are_all) = (false, true);
        for (index, request) in self.plan.requests.iter().enumerate() {
            let Request::Rules { is_idempotent: true, .. } = request else { continue };
            for member in self.members(index).map_err(|_| index)?.iter().filter(|member| !member.is_canary) {
                if let Source::Entry(_) = member.source {
                    is_any = true;
                    are_all &= self.resolution(member) == Some(Resolution::Repeated);
                }
            }
        }
        Ok(is_any && are_all)
    }

    /// Returns the members of request `index`.
    #[inline]
    pub(super) fn members(self, index: usize) -> Result<&'a [Member], Refusal> {
        match self.plan.requests.get(index) {
            // Fast path: no idempotency key.
            Some(Request::Rules { members, is_idempotent: false }) => {
                Ok(self.plan.members.get(members.clone()).unwrap_or_default())
            }
            _ => self.idempotent_members(index),
        }
    }

    #[cold]
    fn idempotent_members(self, index: usize) -> Result<&'a [Member], Refusal> {
        let members = self.plan.members_of(index)?;
        // Canaries do not answer.
        let is_different =
            |member: &Member| !member.is_canary && self.resolution(member) == Some(Resolution::Different);
        if members.iter().any(is_different) { Err(Refusal::DifferentRequest) } else { Ok(members) }
    }

    // Inlined, because it runs for each rule of each hit.
    #[inline(always)]
    pub(super) fn answer(self, member: &Member) -> Result<Verdict, Refusal> {
        match member.source {
            Source::Fixed { allowed, credit } => Ok(Verdict::uncounted(allowed, credit)),
            Source::Blocked(_) => Ok(Verdict::blocked(self.block(member).and_then(|block| block.ends_ns))),
            Source::Entry(entry) => {
                let outcome = self.entry(entry)?;
                if outcome.resolution == Resolution::Different && !member.is_canary {
                    return Err(Refusal::DifferentReservation);
                }
                // Freeing a lease succeeds even if it is not held.
                let allowed = outcome.allowed || member.purpose == Purpose::Release;
                Ok(Outcome { allowed, ..outcome }.into())
            }
        }
    }

    #[inline]
    pub(super) fn entry(self, index: usize) -> Result<Outcome, StoreError> {
        outcome_at(self.outcomes, index)
    }

    /// Returns whether the member's rule allowed the request; `None` if the store did not answer.
    #[inline]
    pub(super) fn allowed(self, member: &Member) -> Option<bool> {
        match member.source {
            Source::Fixed { allowed, .. } => Some(allowed),
            Source::Blocked(_) => Some(false),
            Source::Entry(entry) => Some(self.outcomes.get(entry)?.as_ref().ok()?.allowed),
        }
    }

    /// Returns the resolution of the member's entry; `None` if it has no entry, or the store failed.
    pub(super) fn resolution(self, member: &Member) -> Option<Resolution> {
        let Source::Entry(entry) = member.source else { return None };
        self.outcomes.get(entry)?.as_ref().ok().map(|outcome| outcome.resolution)
    }

    /// Returns the block that denies the member, if there is one.
    pub(super) fn block(self, member: &Member) -> Option<&'a Block> {
        let Source::Blocked(index) = member.source else { return None };
        self.plan.blocks.get(index)
    }

    pub(super) fn policy(self) -> Option<&'a Arc<Policy>> {
        self.plan.policy.as_ref()
    }

    /// Returns the nanoseconds until a reservation ends; `None` if it never does.
    pub(super) fn until(self, ends: Timestamp) -> Option<u64> {
        (ends != Timestamp::EPOCH).then(|| ends.since(self.plan.now()))
    }
}
