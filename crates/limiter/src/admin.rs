//! Operators' requests about the rules, the counters and the exceptions for single actors. A scope refuses what it does not
//! cover, and keeps it out of listings.
//!
//! Operators write the names of rules and the texts of actors in several ways. Exceptions and counters are found by the form
//! that hits give.

pub mod counters;
pub mod exceptions;
pub mod inspection;
mod listing;

use std::borrow::Cow;

use crate::active_rules::{ActiveRules, RuleCounter};
use crate::refusal::{AdminError, MAX_ACTOR, Refusal, shown};
use divvy_core::rules::{ActorFields, Network, NetworkError, Operation, Rule, Scope, Spellings, header};

/// A page of a listing. Even an empty page need not be the last one.
#[derive(Debug, Clone, Default)]
pub struct Page<T> {
    /// The entries of the page, or their number.
    pub content: T,
    /// The cursor of the next page; `None` on the last page.
    pub next: Option<String>,
}

/// The name of a rule.
#[derive(Debug, Clone, Copy)]
pub enum RuleName<'a> {
    /// The rule's name in answers and listings: see [`Rule::name`].
    Name(&'a str),
    /// The rule's operation as in the rules file, with pairs in any order.
    Operation(&'a Operation),
}

impl RuleName<'_> {
    /// Checks that the rule is in scope, with this actor if one is named. The answer about a rule out of scope does not
    /// depend on whether it exists.
    pub(super) fn check(self, active: Option<&ActiveRules>, actor: Option<&str>, scope: &Scope) -> Result<(), Refusal> {
        let rule = active.and_then(|active| active.rules.rules().get(self.index(active).ok()?));
        let label = if let Self::Name(name) = self { Some(name) } else { None };
        if scope.covers(rule, label, actor) { Ok(()) } else { Err(Refusal::OutOfScope) }
    }

    /// Finds the rule and its counter. The rule must have a counter.
    pub(super) fn find(self, active: &ActiveRules) -> Result<(&Rule, &RuleCounter), AdminError> {
        let found = self.index(active)?;
        let rule = active.rules.rules().get(found).zip(active.counter(found));
        rule.ok_or_else(|| AdminError::Uncounted(self.shown()))
    }

    /// Finds the index of the rule.
    pub(super) fn index(self, active: &ActiveRules) -> Result<usize, AdminError> {
        match self {
            Self::Name(name) => active.rules.find_by_name(name).ok_or_else(|| AdminError::NoSuchName(self.shown())),
            Self::Operation(operation) => {
                // A rule has each key once. So if there are as many pairs, and all of them are found, they are the same
                // pairs.
                let is_same = |(_, rule): &(usize, &Rule)| {
                    rule.operation.len() == operation.iter().len()
                        && rule.pairs().all(|(key, value)| operation.get(key) == Some(value))
                };
                let mut found = active.rules.rules().iter().enumerate().filter(is_same);
                match (found.next(), found.next()) {
                    (Some((index, _)), None) => Ok(index),
                    (Some(_), Some(_)) => Err(AdminError::AmbiguousOperation(self.shown())),
                    (None, _) => Err(AdminError::NoSuchOperation(self.shown())),
                }
            }
        }
    }

    /// Returns the start of the name, for an error.
    pub(super) fn shown(self) -> String {
        match self {
            Self::Name(name) => shown(name),
            Self::Operation(operation) => shown(&header(operation.iter())),
        }
    }
}

/// Returns the name of a rule that was found by `name`, unless that name depends on the order of the rules.
pub(super) fn lasting_name<'a>(name: &str, rule: &'a Rule) -> Result<&'a str, AdminError> {
    rule.lasting_name().ok_or_else(|| AdminError::Unlabeled(RuleName::Name(name).shown()))
}

/// Returns the actor in the form that hits give it, for an exception of the rule with this label.
pub(super) fn canonical(label: &str, rule: &Rule, actor: &str) -> Result<String, AdminError> {
    if actor.len() > MAX_ACTOR { Err(AdminError::LongActor) } else { canonical_actor(label, rule, actor) }
}

/// Returns the actor in the form that hits give it, for an exception of the rule with this name. Values that checks normalize
/// are in their spelling. An exception of an actor that no hit has would never apply.
///
/// # Errors
/// Same as [`canonical_actor`], or no hit has this actor.
pub(super) fn possible(name: &str, rule: &Rule, actor: &str, active: &ActiveRules) -> Result<String, AdminError> {
    // The actors of descriptors name their fields.
    if let [field] = rule.counter_fields()
        && let Some(value) = actor.strip_prefix(field.as_str()).and_then(|rest| rest.strip_prefix('='))
    {
        return Err(no_hit(rule, actor, format!("write it as '{}'", shown(value))));
    }
    let actor = canonical(name, rule, actor)?;
    let compared = active.rules.normalized().rules().get(RuleName::Name(name).index(active)?).unwrap_or(rule);
    ActorFields::of(rule)
        .respell(&actor, |field, value| possible_value(compared, field, value, active.rules.spellings()))
}

/// Returns a value of an actor's field in the spelling of checks. `rule` has its patterns in this spelling, too.
///
/// # Errors
/// No hit of the rule has the value.
fn possible_value(rule: &Rule, field: &str, value: &str, spellings: &Spellings) -> Result<String, AdminError> {
    let other = |value: &str, condition: String| no_hit(rule, value, format!("its {field} matches {condition}"));
    let conditions = || rule.conditions().filter(|condition| condition.field == field);
    let has_prefix = rule.actor_prefix.as_ref().is_some_and(|prefix| prefix.field == field);
    if value.contains('/')
        && let Ok(network) | Err(NetworkError::HostBits { masked: network }) = Network::parse(value)
    {
        if !has_prefix && field != MASKED_ADDRESS {
            let fix = format!(
                "it counts each {field} by itself; to block or allow a network, name all rules: '*' {field}={network}"
            );
            return Err(no_hit(rule, value, fix));
        }
        return match conditions().find(|condition| !condition.may_be_met_in(network)) {
            Some(condition) => Err(other(value, condition.to_string())),
            None => Ok(value.to_owned()),
        };
    }
    // The actor of a request without the field is empty.
    if value.is_empty() && rule.pattern(field).is_none() {
        return Ok(String::new());
    }
    let spelled = spellings.of(field).map_or(Ok(Cow::Borrowed(value)), |spelling| spelling.read(value));
    let value = spelled.map_err(|misspelling| AdminError::no_check(field, value, misspelling))?;
    let mut patterns = rule.patterns(field).peekable();
    if let Some(pattern) = patterns.peek().map(ToString::to_string)
        && !patterns.any(|pattern| pattern.matches(&value))
    {
        return Err(other(&value, pattern));
    }
    match conditions().find(|condition| !condition.is_met_by(value.as_bytes())) {
        Some(condition) => Err(other(&value, condition.to_string())),
        None => Ok(value.into_owned()),
    }
}

/// Returns the error for an actor that no hit of the rule has.
fn no_hit(rule: &Rule, actor: &str, fix: String) -> AdminError {
    AdminError::NoHit { rule: rule.lasting_name().unwrap_or_default().to_owned(), actor: shown(actor), fix }
}

/// Envoy's descriptor for the network of a client's address: its values are networks.
const MASKED_ADDRESS: &str = "masked_remote_address";

/// Returns the actor in the form that hits give it, for the rule with this name.
///
/// # Errors
/// The rule has no actors, or the actor has other fields or is a network of another length.
pub(super) fn canonical_actor(name: &str, rule: &Rule, actor: &str) -> Result<String, AdminError> {
    let expected = match (rule.actor_fields.as_slice(), &rule.actor_prefix) {
        ([], _) if actor.is_empty() => return Ok(String::new()),
        ([], _) => "has one counter for all: the actor must be empty".to_owned(),
        ([_], Some(prefix)) => {
            format!("counts by networks (`actorPrefix = {prefix}`): name an address, or its network")
        }
        (fields, _) => {
            let example: Vec<_> = fields.iter().map(|field| format!("{field}=…")).collect();
            format!("counts by {}: write the actor as '{}'", fields.join(" and "), example.join(" "))
        }
    };
    let canonical = ActorFields::of(rule).canonical(actor).filter(|_| !rule.actor_fields.is_empty());
    canonical.ok_or_else(|| AdminError::OtherActor { rule: name.to_owned(), expected })
}
