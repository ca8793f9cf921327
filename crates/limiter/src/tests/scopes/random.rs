//! Random rules, scopes and requests, compared with the definition of a scope.

use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::counters::{CountersOf, RuleName};
use divvy_core::rules::{MatchPolicy, Pattern, Quota, Rule, RuleSet, Seconds, Settings};

type Pairs = Vec<(&'static str, &'static str)>;

/// The terms of a scope.
#[derive(Debug, Clone)]
struct Terms {
    labels: Vec<&'static str>,
    actor: Pairs,
}

/// One step: a request, within a scope.
#[derive(Debug, Clone)]
struct Step {
    terms: Terms,
    pairs: Pairs,
    action: Action,
}

#[derive(Debug, Clone, Copy)]
enum Action {
    Ask(Intent),
    AskOnce(Intent),
    Reserve,
    /// Reserves without a scope, and settles within the scope.
    Settle(Settlement),
    /// Hits together with another operation.
    Together,
}

impl Terms {
    fn scope(&self) -> Scope {
        Scope::new(self.labels.iter().copied(), self.actor.iter().copied())
    }

    /// Whether a request with these pairs may use the rule.
    fn covers(&self, rule: &Rule, pairs: &Pairs) -> bool {
        let has_pattern = self.labels.iter().any(|pattern| match (pattern.strip_suffix('*'), rule.label.as_deref()) {
            (Some(""), _) => true,
            (_, None | Some("default")) => false,
            (Some(start), Some(label)) => label.starts_with(start),
            (None, Some(label)) => label == *pattern,
        });
        let value = |field: &str| pairs.iter().find(|(key, _)| *key == field).map_or("", |(_, value)| value);
        let mut fields: Vec<_> = self.actor.iter().map(|(field, _)| (*field).to_owned()).collect();
        let mut of_rule = rule.actor_fields.clone();
        fields.sort();
        of_rule.sort();
        let is_own = self.actor.iter().all(|(field, own)| value(field) == *own);
        has_pattern && (self.actor.is_empty() || (fields == of_rule && is_own))
    }
}

fn rules() -> impl Strategy<Value = Vec<Rule>> {
    let pattern = select(vec![("k", "a"), ("k", "*"), ("l", "b"), ("l", "*")]);
    let operation = prop::collection::vec(pattern, 1..3);
    let label = select(vec![None, Some("a"), Some("ab"), Some("b"), Some("default")]);
    let fields = select(vec![vec![], vec!["k"], vec!["l"], vec!["k", "l"], vec!["l", "k"]]);
    let policy = select(vec![MatchPolicy::Stop, MatchPolicy::And, MatchPolicy::Canary]);
    let rule = (operation, label, fields, policy, 0..5_u64);
    prop::collection::vec(rule, 1..9).prop_map(|rules| {
        let rule = |(index, (operation, label, fields, match_policy, kind)): (
            usize,
            (Pairs, Option<&str>, Vec<&str>, _, _),
        )| {
            // Different limits, so that each rule has counters of its own.
            let settings = Settings {
                credit_limit: if kind == 0 { 0 } else { 4 + index as u64 },
                reset_seconds: Seconds::whole(if kind == 1 { 0 } else { 3600 }),
                ..Settings::default()
            };
            let quota = settings.quota().unwrap_or(Quota::Never);
            let operation: std::collections::BTreeMap<_, _> = operation.into_iter().collect();
            Rule {
                operation: operation.into_iter().map(|(key, value)| (key.to_owned(), Pattern::parse(value))).collect(),
                settings,
                quota,
                actor_fields: fields.into_iter().map(str::to_owned).collect(),
                match_policy,
                // A label is unique.
                label: label.map(|label| if label == "default" { label.to_owned() } else { format!("{label}{index}") }),
                ..Rule::new(vec![], Settings::default(), Quota::Never, 1)
            }
        };
        let mut rules: Vec<Rule> = rules.into_iter().enumerate().map(rule).collect();
        let mut has_default = false;
        rules.retain(|rule| rule.label.as_deref() != Some("default") || !std::mem::replace(&mut has_default, true));
        rules
    })
}

fn pairs() -> impl Strategy<Value = Pairs> {
    let value = select(vec!["a", "b", ""]);
    (prop::option::of(value.clone()), prop::option::of(value))
        .prop_map(|(k, l)| [k.map(|value| ("k", value)), l.map(|value| ("l", value))].into_iter().flatten().collect())
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let labels = prop::collection::vec(select(vec!["*", "a*", "ab*", "b*", "a1", "default", "d*"]), 0..3);
    let actor = prop_oneof![3 => Just(Pairs::new()), 1 => pairs()];
    let terms = (labels, actor).prop_map(|(labels, actor)| Terms { labels, actor });
    let intents =
        vec![Intent::Hit, Intent::Peek, Intent::Forget, Intent::Charge, Intent::Refund, Intent::Enter, Intent::Leave];
    let settlements =
        vec![Settlement::Commit { cost: 1 }, Settlement::Release, Settlement::Renew { ttl_seconds: None }];
    let action = prop_oneof![
        select(intents).prop_map(Action::Ask),
        select(vec![Intent::Hit, Intent::Charge]).prop_map(Action::AskOnce),
        Just(Action::Reserve),
        select(settlements).prop_map(Action::Settle),
        Just(Action::Together),
    ];
    prop::collection::vec(
        (terms, pairs(), action).prop_map(|(terms, pairs, action)| Step { terms, pairs, action }),
        1..12,
    )
}

/// Returns the credits left of each counter, by the index of its rule and its actor.
fn counters(limiter: &Limiter) -> Vec<(usize, String, u64)> {
    let active = limiter.active_rules().unwrap();
    let rules = active.rules().rules().iter().enumerate().filter(|(index, _)| active.counter(*index).is_some());
    let of_rule = |(index, rule): (usize, &Rule)| {
        let name = rule.name(index);
        let of = CountersOf { rule: RuleName::Name(&name), actor: None, cursor: None, count: 1000 };
        let page = run(limiter.counters(of, &Scope::EVERYTHING)).unwrap();
        page.content.into_iter().map(|counter| (index, counter.actor, counter.credit)).collect::<Vec<_>>()
    };
    let mut counters: Vec<_> = rules.flat_map(of_rule).collect();
    counters.sort();
    counters
}

/// Returns the indexes of the rules that match, up to the one that stops.
fn matches(rules: &[Rule], pairs: &Pairs) -> Vec<usize> {
    let operation: Operation = pairs.iter().copied().collect();
    let mut matches = Vec::new();
    for (index, rule) in rules.iter().enumerate().filter(|(_, rule)| rule.matches(&operation)) {
        matches.push(index);
        if rule.match_policy == MatchPolicy::Stop {
            break;
        }
    }
    matches
}

/// Takes a step. Returns the counters before it, the plan, and whether it was refused by its scope.
fn take(limiter: &Limiter, step: &Step, number: usize) -> (Vec<(usize, String, u64)>, Plan, bool) {
    let operation: Operation = step.pairs.iter().copied().collect();
    let mut builder = PlanBuilder::default();
    let id = if let Action::Settle(_) = step.action {
        limiter.begin(&mut builder, &Scope::EVERYTHING);
        builder.add_reservation(&operation, Reserve { credits: 1, ttl_seconds: Some(60), id: None });
        let applied = applied(limiter, builder.build());
        applied.report().reserved(0).ok().and_then(|reserved| reserved.id)
    } else {
        None
    };
    let before = counters(limiter);
    limiter.begin(&mut builder, &step.terms.scope());
    let mut is_refused = false;
    match step.action {
        Action::Ask(intent) => builder.add(&operation, intent, None),
        Action::AskOnce(intent) => builder.add_idempotent(&operation, intent, None, format!("{number}").as_bytes()),
        Action::Reserve => {
            builder.add_reservation(&operation, Reserve { credits: 1, ttl_seconds: Some(60), id: None });
        }
        Action::Settle(settlement) => {
            if let Some(id) = id {
                builder.settle(&id, settlement);
            }
        }
        Action::Together => {
            let together = add_together(&mut builder, Together::Summed, |builder| {
                builder.add(&super::operation("k=a l=b"), Intent::Hit, None);
                builder.add(&operation, Intent::Hit, None);
            });
            is_refused = together.is_err_and(|refused| matches!(refused.refusal, Refusal::OutOfScope));
        }
    }
    is_refused |= builder.refusals().any(|(_, refusal)| matches!(refusal, Refusal::OutOfScope));
    let applied = applied(limiter, builder.build());
    (before, applied, is_refused)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn requests_touch_only_rules_in_scope_and_refused_ones_touch_nothing(rules in rules(), steps in steps()) {
        let metrics = Metrics::new();
        let active = ActiveRules::new(RuleSet::new(rules.clone()).unwrap(), &metrics, CounterNames::Usual);
        let limiter = Limiter::new(Some(active), Backend::Memory(MemoryStore::default()), Clock::system(), metrics);
        for (number, step) in steps.iter().enumerate() {
            let (before, plan, is_refused) = take(&limiter, step, number);
            let after = counters(&limiter);
            let covers = |index: &usize, pairs| step.terms.covers(&rules[*index], pairs);
            let both = vec![("k", "a"), ("l", "b")];
            let mut expected = matches(&rules, &step.pairs).iter().all(|index| covers(index, &step.pairs));
            match step.action {
                Action::Together => expected &= matches(&rules, &both).iter().all(|index| covers(index, &both)),
                // An id names rules that have set credits aside. It may be that these alone are in scope.
                Action::Settle(_) if !expected => expected = !is_refused,
                _ => {}
            }
            prop_assert_eq!(is_refused, !expected, "{:?}", step);
            if is_refused {
                prop_assert_eq!(&before, &after, "{:?}", step);
                prop_assert!(plan.batch.is_empty() && plan.members.is_empty() && plan.settled.is_empty());
            }
            let is_in_scope = |index: &usize| covers(index, &step.pairs) || covers(index, &both);
            for member in &plan.members {
                prop_assert!(is_in_scope(&member.rule), "{:?}", step);
            }
            for record in &plan.settled {
                prop_assert!(record.rule.is_none_or(|rule| covers(&rule, &step.pairs)), "{:?}", step);
            }
            // Only counters of rules in scope have changed.
            let changed = before.iter().filter(|counter| !after.contains(counter))
                .chain(after.iter().filter(|counter| !before.contains(counter)));
            for (index, ..) in changed {
                prop_assert!(is_in_scope(index), "{:?}", step);
            }
        }
    }
}
