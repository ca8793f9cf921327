//! The top of each rule of a policy, and what it takes over from the policy before it.

use std::sync::Arc;

use crate::heavy_hitters::RuleTop;
use divvy_core::clock::Timestamp;
use divvy_core::rules::diff::find_origins;
use divvy_core::rules::{ActorFields, MatchPolicy, Rule, RuleSet};

/// The top of one rule.
#[derive(Debug)]
pub struct TopOfRule {
    pub top: Arc<RuleTop>,
    /// The rule's `actorField`.
    pub actor: ActorFields,
}

/// The tops of a policy's rules, in their order. Empty if nothing is counted.
#[derive(Debug, Default)]
pub struct Tops(Vec<TopOfRule>);

impl Tops {
    /// Creates the tops of these rules. A rule that was in force `before` keeps its top, even if its limit has changed.
    pub fn new(rules: &RuleSet, before: Option<(&RuleSet, &Self)>) -> Self {
        let (old, tops) = before.map_or((&[][..], &[][..]), |(rules, tops)| (rules.rules(), &tops.0[..]));
        let kept = |rule: &Rule, origin: usize| {
            let of_rule = tops.get(origin)?;
            old.get(origin).filter(|old| counts_alike(old, rule)).map(|_| Arc::clone(&of_rule.top))
        };
        let top = |(rule, origin): (&Rule, Option<usize>)| TopOfRule {
            top: origin.and_then(|origin| kept(rule, origin)).unwrap_or_default(),
            actor: ActorFields::of(rule),
        };
        Self(rules.rules().iter().zip(find_origins(old, rules.rules())).map(top).collect())
    }

    /// Returns the top of the rule with this index; `None` if nothing is counted.
    #[inline]
    pub fn get(&self, rule: usize) -> Option<&TopOfRule> {
        self.0.get(rule)
    }

    /// Drops the counts of rules that have had no events for so long that none of them counts at `now`.
    pub fn drop_idle(&self, now: Timestamp) {
        self.0.iter().for_each(|of_rule| of_rule.top.drop_idle(now));
    }

    /// Returns the number of rules whose actors had no room when they were counted last.
    pub fn without_room(&self) -> usize {
        self.0.iter().filter(|of_rule| of_rule.top.is_without_room()).count()
    }
}

/// Returns whether the rules' counts have the same meaning: both name their actors in the same way, and both or none of them
/// is a canary.
fn counts_alike(old: &Rule, new: &Rule) -> bool {
    let is_canary = |rule: &Rule| rule.match_policy == MatchPolicy::Canary;
    old.actor_fields == new.actor_fields && old.actor_prefix == new.actor_prefix && is_canary(old) == is_canary(new)
}
