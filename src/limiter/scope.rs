//! Scopes: the part of the rules that a user may ask about.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use arc_swap::ArcSwapOption;

use super::policy::{Policy, labels};
use crate::rules::{ActorFields, DEFAULT_RULE, Key, Operation, Pattern, Rule};

/// The rules, and the actor, that a user may ask about. It is cheap to clone.
#[derive(Debug, Clone)]
pub struct Scope(Option<Arc<Terms>>);

/// The terms of a scope that does not cover everything. Such a scope never covers limits that clients bring themselves.
#[derive(Debug)]
struct Terms {
    labels: Vec<Pattern>,
    /// The fields of the only actor in scope, and their values. Empty if every actor is in scope.
    actor: Vec<(Key, Box<str>)>,
    /// The scope under the policy of the latest plan.
    latest: ArcSwapOption<RulesInScope>,
}

/// The rules of one policy that are in a scope.
#[derive(Debug)]
struct RulesInScope {
    policy: Weak<Policy>,
    /// Whether each rule is in scope, at least with the scope's actor.
    rules: Box<[bool]>,
}

/// A scope under the policy of a plan.
#[derive(Debug)]
pub(super) struct PlanScope {
    terms: Arc<Terms>,
    in_scope: Arc<RulesInScope>,
}

impl Scope {
    /// The scope of users who may ask about everything.
    pub const EVERYTHING: Self = Self(None);

    /// Creates the scope of the rules whose labels match one of these patterns. Rules without a label, and the label `default`, need
    /// the pattern `*`. With the fields and values of an `actor`, only this actor is in scope, and only rules whose `actorField`s
    /// are exactly these fields.
    pub fn new<'a>(
        labels: impl IntoIterator<Item = &'a str>,
        actor: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Self {
        let labels = labels.into_iter().map(Pattern::parse).collect();
        let actor: Operation = actor.into_iter().collect();
        let actor = actor.iter().map(|(field, value)| (Key::new(field), value.into())).collect();
        Self(Some(Arc::new(Terms { labels, actor, latest: ArcSwapOption::empty() })))
    }

    /// Returns the scope under the policy of a plan; `None` if it covers everything. Patterns are matched once for each policy.
    pub(super) fn under(&self, policy: Option<&Arc<Policy>>) -> Option<PlanScope> {
        let terms = self.0.as_ref()?;
        let is_known = |latest: &Arc<RulesInScope>| policy.map(Arc::as_ptr) == Some(latest.policy.as_ptr());
        let in_scope = terms.latest.load_full().filter(is_known).unwrap_or_else(|| terms.resolve(policy));
        Some(PlanScope { terms: Arc::clone(terms), in_scope })
    }

    /// Whether a counter of the rule is in scope: the counter of `actor`, or at least one of them without an `actor`. `rule` is
    /// `None` if no rule in force has this label.
    pub(super) fn covers(&self, rule: Option<&Rule>, label: Option<&str>, actor: Option<&str>) -> bool {
        self.0.as_ref().is_none_or(|terms| terms.covers(rule, label, actor))
    }

    /// Returns the only actor of a rule in scope, in the form that hits give it. `None` if every actor is in scope.
    pub(super) fn own_actor(&self, rule: &Rule) -> Option<String> {
        self.0.as_ref()?.own_actor(rule)
    }

    /// Returns a filter for limits of actors, by the label and the actor of each.
    pub(super) fn limit_filter(&self, policy: Option<&Policy>) -> impl Fn(&str, &str) -> bool {
        let rules = policy.map_or(&[][..], |policy| policy.rules.rules());
        let in_scope = labels(rules).zip(rules).filter(|(_, rule)| self.covers(Some(rule), None, None));
        let own: HashMap<_, _> =
            in_scope.filter_map(|(label, rule)| Some((label?.to_owned(), self.own_actor(rule)?))).collect();
        move |label, actor| own.get(label).is_some_and(|own| own == actor) || self.covers(None, Some(label), None)
    }
}

impl Terms {
    #[cold]
    fn resolve(&self, policy: Option<&Arc<Policy>>) -> Arc<RulesInScope> {
        let rules = policy.map_or(&[][..], |policy| policy.rules.rules());
        let rules = rules.iter().map(|rule| self.covers(Some(rule), None, None)).collect();
        let resolved = Arc::new(RulesInScope { policy: policy.map_or_else(Weak::new, Arc::downgrade), rules });
        self.latest.store(Some(Arc::clone(&resolved)));
        resolved
    }

    fn covers(&self, rule: Option<&Rule>, label: Option<&str>, actor: Option<&str>) -> bool {
        let Some(rule) = rule else { return self.actor.is_empty() && self.covers_label(label) };
        let fields = &rule.actor_fields;
        let has_field = |(own, _): &(Key, Box<str>)| fields.iter().any(|field| field == own.as_str());
        let has_fields = self.actor.len() == fields.len() && self.actor.iter().all(has_field);
        let is_own = |actor| ActorFields::new(fields).canonical(actor) == self.own_actor(rule);
        self.covers_label(rule.label.as_deref()) && (self.actor.is_empty() || (has_fields && actor.is_none_or(is_own)))
    }

    fn covers_label(&self, label: Option<&str>) -> bool {
        let label = label.filter(|label| *label != DEFAULT_RULE);
        self.labels.iter().any(|pattern| *pattern == Pattern::Any || label.is_some_and(|label| pattern.matches(label)))
    }

    fn own_actor(&self, rule: &Rule) -> Option<String> {
        let operation: Operation = self.actor.iter().map(|(field, value)| (field.as_str(), &**value)).collect();
        let mut actor = Vec::new();
        ActorFields::new(&rule.actor_fields).write(&operation, &mut actor);
        (!self.actor.is_empty()).then(|| String::from_utf8(actor).ok())?
    }
}

impl PlanScope {
    /// Whether the rule with this index, which matches the operation, is in scope with the operation's actor.
    // A call, so that hits without a scope have the registers.
    #[inline(never)]
    pub fn covers(&self, rule: usize, operation: &Operation) -> bool {
        let is_own = |(field, own): &(Key, Box<str>)| operation.value(field).unwrap_or_default() == own.as_bytes();
        self.in_scope.rules.get(rule) == Some(&true) && self.terms.actor.iter().all(is_own)
    }

    /// Whether the counter of this actor is in scope. `rule` is `None` if no rule in force belongs to it.
    pub fn covers_counter(&self, rule: Option<&Rule>, actor: &str) -> bool {
        self.terms.covers(rule, None, Some(actor))
    }
}
