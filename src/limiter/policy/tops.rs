//! The top of each rule of a policy, and what it takes over from the policy before it.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::clock::Timestamp;
use crate::limiter::heavy_hitters::RuleTop;
use crate::rules::{ActorFields, ActorPrefix, MatchPolicy, Rule, RuleSet};

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

/// The part of a rule that determines whether it keeps its top: what it matches, how it names its actors, and whether its
/// denials are real.
type TopIdentity<'a> = (Vec<(&'a str, Cow<'a, str>)>, &'a [String], Option<&'a ActorPrefix>, bool);

impl Tops {
    /// Creates the tops of these rules. A rule that was in force `before` keeps its top, even if its limit has changed.
    pub fn new(rules: &RuleSet, before: Option<(&RuleSet, &Self)>) -> Self {
        let mut known: HashMap<TopIdentity<'_>, VecDeque<&Arc<RuleTop>>> = HashMap::new();
        let of_before = before.into_iter().flat_map(|(rules, tops)| rules.rules().iter().zip(&tops.0));
        for (rule, of_rule) in of_before {
            known.entry(identity(rule)).or_default().push_back(&of_rule.top);
        }
        let mut tops = Vec::with_capacity(rules.rules().len());
        for rule in rules.rules() {
            let kept = known.get_mut(&identity(rule)).and_then(VecDeque::pop_front);
            let actor = ActorFields::of(rule);
            tops.push(TopOfRule { top: kept.cloned().unwrap_or_default(), actor });
        }
        Self(tops)
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

fn identity(rule: &Rule) -> TopIdentity<'_> {
    (rule.match_pairs(), &rule.actor_fields, rule.actor_prefix.as_ref(), rule.match_policy == MatchPolicy::Canary)
}
