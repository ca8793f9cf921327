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
use crate::refusal::{AdminError, MAX_ACTOR, Refusal};
use divvy_core::rules::{ActorFields, Misspelling, Network, NetworkError, Operation, Rule, Scope, Spellings, header};

/// Maximum number of characters of a name that an error repeats. A client may have sent a very long one.
const SHOWN: usize = 200;

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

    /// Finds the rule as [`RuleName::find`] does, for a change of its counters. The rule must not be named by its
    /// position, because the change would apply to another rule if the file was reordered.
    pub(super) fn find_for_change(self, active: &ActiveRules) -> Result<(&Rule, &RuleCounter), AdminError> {
        let found = self.find(active)?;
        if let Self::Name(name) = self {
            lasting_name(name, found.0)?;
        }
        Ok(found)
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

/// Returns the actor in the form that checks give it, to find an exception of the rule with this label.
pub(super) fn spelled(label: &str, rule: &Rule, actor: &str, active: &ActiveRules) -> Result<String, AdminError> {
    let actor = canonical(label, rule, actor)?;
    ActorFields::of(rule).respell(&actor, |field, value| {
        let spelled = active.rules.spellings().of(field).and_then(|spelling| spelling.read(value).ok());
        Ok(spelled.map_or(value.to_owned(), Cow::into_owned))
    })
}

/// Returns the actor in the form that hits give it, for an exception of the rule with this name. Values that checks normalize
/// are in their spelling. An exception of an actor that no hit has would never apply.
///
/// # Errors
/// Same as [`canonical_actor`], or no hit has this actor.
pub(super) fn possible(name: &str, rule: &Rule, actor: &str, active: &ActiveRules) -> Result<String, AdminError> {
    if let [field] = rule.actor_fields.as_slice()
        && let Some(value) = actor.strip_prefix(field.as_str()).and_then(|rest| rest.strip_prefix('='))
    {
        let (rule, field, actor) = (name.to_owned(), field.clone(), shown(value));
        return Err(AdminError::NamesField { rule, field, actor });
    }
    let actor = canonical(name, rule, actor)?;
    // A rule without a counter has no exceptions, and was not found.
    let compared =
        RuleName::Name(name).index(active).ok().and_then(|index| active.rules.normalized().rules().get(index));
    let compared = compared.unwrap_or(rule);
    ActorFields::of(rule)
        .respell(&actor, |field, value| possible_value(compared, field, value, active.rules.spellings()))
}

/// Returns a value of an actor's field in the spelling of checks. `rule` has its patterns in this spelling, too.
///
/// # Errors
/// No hit of the rule has the value.
fn possible_value(rule: &Rule, field: &str, value: &str, spellings: &Spellings) -> Result<String, AdminError> {
    let rule_name = || rule.lasting_name().unwrap_or_default().to_owned();
    let other = |value: &str, condition: String| AdminError::OtherValue {
        rule: rule_name(),
        field: field.to_owned(),
        condition,
        value: shown(value),
    };
    let conditions = || rule.conditions().filter(|condition| condition.field == field);
    let has_prefix = rule.actor_prefix.as_ref().is_some_and(|prefix| prefix.field == field);
    if value.contains('/')
        && let Ok(network) | Err(NetworkError::HostBits { masked: network }) = Network::parse(value)
    {
        if !has_prefix && field != MASKED_ADDRESS {
            return Err(AdminError::NoNetworks { rule: rule_name(), field: field.to_owned(), network });
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
    let value = spelled.map_err(|Misspelling { what, fix }| AdminError::NoCheck {
        field: field.to_owned(),
        value: shown(value),
        what,
        fix,
    })?;
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

/// Returns the start of a text, for an error.
pub(super) fn shown(text: &str) -> String {
    text.chars().take(SHOWN).collect()
}

/// Envoy's descriptor for the network of a client's address: its values are networks.
const MASKED_ADDRESS: &str = "masked_remote_address";

/// Returns the actor in the form that hits give it, for the rule with this name.
///
/// # Errors
/// The rule has no actors, or the actor has other fields or is a network of another length.
pub(super) fn canonical_actor(name: &str, rule: &Rule, actor: &str) -> Result<String, AdminError> {
    match rule.actor_fields.as_slice() {
        [] if actor.is_empty() => Ok(String::new()),
        [] => Err(AdminError::NoActors { rule: name.to_owned() }),
        fields => ActorFields::of(rule).canonical(actor).ok_or_else(|| match &rule.actor_prefix {
            Some(prefix) if fields.len() == 1 => {
                AdminError::OtherNetwork { rule: name.to_owned(), prefix: prefix.clone() }
            }
            _ => AdminError::OtherActor { rule: name.to_owned(), fields: fields.to_vec() },
        }),
    }
}
