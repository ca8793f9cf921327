//! Notes the denials of a plan that was applied, for the blocks that rules set.

use super::answers::Report;
use crate::denials::{Denial, Denials};
use crate::plan::{Member, Purpose, Request, Source};
use divvy_core::algorithm::{OutcomeSource, Resolution};

impl<'a> Report<'a> {
    /// Notes the denials by rules with a penalty.
    pub(crate) fn note_denials(self, denials: &Denials) {
        let Some(policy) = self.policy().filter(|policy| !policy.penalties.is_empty()) else { return };
        let denied =
            self.plan.requests.iter().flat_map(|request| self.counting_members(request)).filter_map(|member| {
                let penalty = policy.penalties.get(member.rule)?;
                let (entry, source) = self.denying_entry(member)?;
                let actor = self.actor_of_entry(policy, member.rule, entry)?;
                Some(Denial { penalty, actor, is_cached: source == OutcomeSource::DenialCache })
            });
        denials.note(denied, self.plan.now());
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
        let Source::Entry(entry) = member.source else { return None };
        let outcome = self.entry(entry).ok()?;
        let is_hit = matches!(member.purpose, Purpose::Hit | Purpose::IdempotentHit) && !self.is_charge(entry);
        let is_known = outcome.resolution == Resolution::Done && outcome.source != OutcomeSource::FailurePolicy;
        (is_hit && is_known && !outcome.allowed).then_some((entry, outcome.source))
    }
}
