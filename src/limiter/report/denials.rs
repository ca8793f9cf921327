//! Notes the denials of a plan that was applied, for the blocks that rules set.

use super::answers::Report;
use crate::algorithm::Resolution;
use crate::limiter::denials::Denials;
use crate::limiter::plan::{Member, Purpose, Source};

impl Report<'_> {
    /// Notes the denials by rules with a penalty.
    pub(in crate::limiter) fn note_denials(self, denials: &Denials) {
        let Some(policy) = self.policy().filter(|policy| !policy.penalties.is_empty()) else { return };
        let denied = self.plan.members.iter().filter_map(|member| {
            let penalty = policy.penalties.get(member.rule)?;
            Some((penalty, self.actor_of_entry(policy, member.rule, self.denying_entry(member)?)?))
        });
        denials.note(denied, self.plan.now());
    }

    /// Returns the entry that denied the member. Local denials do not count: the denial cache asks the store once a second,
    /// and during an outage the counter is unknown.
    fn denying_entry(self, member: &Member) -> Option<usize> {
        let Source::Entry(entry) = member.source else { return None };
        let outcome = self.entry(entry).ok()?;
        let is_hit = matches!(member.purpose, Purpose::Hit | Purpose::IdempotentHit) && !self.is_charge(entry);
        let is_denied = !outcome.allowed && outcome.resolution == Resolution::Done && !outcome.is_local;
        (is_hit && is_denied).then_some(entry)
    }
}
