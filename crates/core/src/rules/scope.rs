//! The part of the rules that a user may use, and its only actor if it has one.

use std::sync::{Arc, LazyLock};

use arc_swap::ArcSwapOption;

use super::{ActorFields, DEFAULT_RULE, Key, Operation, Pattern, Rule, RuleSet};

/// The rules, and the actor, that a user may use. It is cheap to clone.
#[derive(Debug, Clone)]
pub struct Scope(Option<Arc<Bounds>>);

/// The bounds of a scope that does not cover everything. It never covers limits that clients bring themselves.
#[derive(Debug)]
struct Bounds {
    labels: Vec<Pattern>,
    /// Whether rules without a label, and the label `default`, are in scope, too.
    covers_unlabeled: bool,
    /// The fields of the only actor in scope, and their values. Empty if every actor is in scope.
    actor: Vec<(Key, Box<str>)>,
    /// The scope under the rules that were last asked for.
    latest: ArcSwapOption<RulesInScope>,
}

/// The rules of one set that are in a scope.
#[derive(Debug)]
struct RulesInScope {
    /// [`RuleSet::number`] of the set.
    ruleset: u64,
    /// Whether each rule is in scope, at least with the scope's actor.
    rules: Box<[bool]>,
}

/// A scope under one set of rules.
#[derive(Debug)]
pub struct ResolvedScope {
    bounds: Arc<Bounds>,
    in_scope: Arc<RulesInScope>,
}

impl Scope {
    /// The scope of users who may use everything.
    pub const EVERYTHING: Self = Self(None);

    /// Creates the scope of the rules whose labels match one of these patterns. Rules without a label, and the label
    /// `default`, need exactly the pattern `*`. With the fields and values of an `actor`, only this actor is in scope, and only
    /// rules whose `actorField`s are exactly these fields.
    pub fn new<'a>(
        labels: impl IntoIterator<Item = &'a str>,
        actor: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Self {
        let (mut patterns, mut covers_unlabeled) = (Vec::new(), false);
        for label in labels {
            covers_unlabeled |= label == "*";
            patterns.push(Pattern::parse(label));
        }
        let actor: Operation = actor.into_iter().collect();
        let actor = actor.iter().map(|(field, value)| (Key::new(field), value.into())).collect();
        Self(Some(Arc::new(Bounds { labels: patterns, covers_unlabeled, actor, latest: ArcSwapOption::empty() })))
    }

    /// Returns the scope that covers nothing.
    pub fn nothing() -> Self {
        static NOTHING: LazyLock<Scope> = LazyLock::new(|| Scope::new([], []));
        NOTHING.clone()
    }

    /// Returns the scope under these rules; `None` if it covers everything. Patterns are matched once for each set of rules.
    pub fn resolve(&self, rules: &RuleSet) -> Option<ResolvedScope> {
        let bounds = self.0.as_ref()?;
        let is_known = |latest: &Arc<RulesInScope>| latest.ruleset == rules.number();
        let in_scope = bounds.latest.load_full().filter(is_known).unwrap_or_else(|| bounds.resolve(rules));
        Some(ResolvedScope { bounds: Arc::clone(bounds), in_scope })
    }

    /// Returns whether `resolved` was made of this scope. `None` stands for the scope that covers everything.
    #[inline]
    pub fn is_resolved_as(&self, resolved: Option<&ResolvedScope>) -> bool {
        self.0.as_ref().map(Arc::as_ptr) == resolved.map(|resolved| Arc::as_ptr(&resolved.bounds))
    }

    /// Returns whether the scope covers everything.
    pub fn covers_everything(&self) -> bool {
        self.0.is_none()
    }

    /// Returns whether only one actor is in scope. Then sums over all actors are not.
    pub fn has_one_actor(&self) -> bool {
        self.0.as_ref().is_some_and(|bounds| !bounds.actor.is_empty())
    }

    /// Returns whether both are the scope of one user, or cover everything.
    pub fn is_same(&self, other: &Self) -> bool {
        self.0.as_ref().map(Arc::as_ptr) == other.0.as_ref().map(Arc::as_ptr)
    }

    /// Returns whether a counter of the rule is in scope: the counter of `actor`, or at least one of them without an
    /// `actor`. `rule` is `None` if no rule in force has this label.
    pub fn covers(&self, rule: Option<&Rule>, label: Option<&str>, actor: Option<&str>) -> bool {
        self.0.as_ref().is_none_or(|bounds| bounds.covers(rule, label, actor))
    }

    /// Returns the only actor of a rule in scope, in the form that hits give it. `None` if every actor is in scope.
    pub fn own_actor(&self, rule: &Rule) -> Option<String> {
        self.0.as_ref()?.own_actor(rule)
    }
}

impl Bounds {
    #[cold]
    fn resolve(&self, rules: &RuleSet) -> Arc<RulesInScope> {
        let in_scope = rules.rules().iter().map(|rule| self.covers(Some(rule), None, None)).collect();
        let resolved = Arc::new(RulesInScope { ruleset: rules.number(), rules: in_scope });
        self.latest.store(Some(Arc::clone(&resolved)));
        resolved
    }

    fn covers(&self, rule: Option<&Rule>, label: Option<&str>, actor: Option<&str>) -> bool {
        let Some(rule) = rule else { return self.actor.is_empty() && self.covers_label(label) };
        let fields = &rule.actor_fields;
        let has_field = |(own, _): &(Key, Box<str>)| fields.iter().any(|field| field == own.as_str());
        let has_fields = self.actor.len() == fields.len() && self.actor.iter().all(has_field);
        let is_own = |actor| ActorFields::of(rule).canonical(actor) == self.own_actor(rule);
        self.covers_label(rule.label.as_deref()) && (self.actor.is_empty() || (has_fields && actor.is_none_or(is_own)))
    }

    fn covers_label(&self, label: Option<&str>) -> bool {
        let label = label.filter(|label| *label != DEFAULT_RULE);
        match label {
            None => self.covers_unlabeled,
            Some(label) => self.labels.iter().any(|pattern| pattern.matches(label)),
        }
    }

    fn own_actor(&self, rule: &Rule) -> Option<String> {
        let operation: Operation = self.actor.iter().map(|(field, value)| (field.as_str(), &**value)).collect();
        let mut actor = Vec::new();
        ActorFields::of(rule).write(&operation, &mut actor);
        (!self.actor.is_empty()).then(|| String::from_utf8(actor).ok())?
    }
}

impl ResolvedScope {
    /// Returns whether the rule with this index, which matches the operation, is in scope with the operation's actor.
    // Not inlined, so that hits without a scope have the registers.
    #[inline(never)]
    pub fn covers(&self, rule: usize, operation: &Operation) -> bool {
        let is_own = |(field, own): &(Key, Box<str>)| operation.value(field).unwrap_or_default() == own.as_bytes();
        self.in_scope.rules.get(rule) == Some(&true) && self.bounds.actor.iter().all(is_own)
    }

    /// Returns whether the counter of this actor is in scope. `rule` is `None` if no rule in force belongs to it.
    pub fn covers_counter(&self, rule: Option<&Rule>, actor: &str) -> bool {
        self.bounds.covers(rule, None, Some(actor))
    }
}
