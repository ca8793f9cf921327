//! A rule: a validated section of the rules file.

use std::borrow::Cow;
use std::fmt;

use super::{ActorPrefix, Condition, NOT, Operation, Pattern, Penalty, Quota, Settings, operation_text};
use crate::algorithm::Limit;

/// A `costField` that names no field: every hit takes one credit, regardless of the cost that the request gives.
pub const NO_COST_FIELD: &str = "none";

/// The effect of a match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MatchPolicy {
    /// The rule answers.
    #[default]
    Stop,
    /// The rule counts the hit and takes credit, but does not answer; matching continues. Canaries try out limits.
    Canary,
    /// The rule must allow the request, and so must all other matching rules up to the one that stops; matching
    /// continues. Either all of them take credit or none does.
    And,
}

/// The effect of a hit that costs more credits than are left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Overrun {
    /// The hit is denied.
    #[default]
    Refuse,
    /// The hit is allowed as long as any credit is left, and takes its full cost. The balance may become negative.
    Debt,
}

impl Overrun {
    /// All values, in the order of declaration.
    pub const ALL: [Self; 2] = [Self::Refuse, Self::Debt];

    /// Returns its word in a rules file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Refuse => "refuse",
            Self::Debt => "debt",
        }
    }
}

/// Maximum number of rules that must allow one request together.
pub const MAX_STACK: usize = 16;

impl MatchPolicy {
    /// Returns its word in a rules file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Canary => "canary",
            Self::And => "and",
        }
    }
}

/// A rule. Displays as its header in a rules file, without brackets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The keys that a request must have, each once, and the patterns of their values. Empty for the default rule.
    pub operation: Vec<(String, Pattern)>,
    /// The networks that a field's value must be in, or must not.
    pub networks: Option<Condition>,
    /// The list that a field's value must be in, or must not.
    pub list: Option<Condition>,
    /// The settings as written. `quota` is their meaning.
    pub settings: Settings,
    /// The credits that a match grants.
    pub quota: Quota,
    /// Each value of this field, or each combination of these fields' values, has its own counter. If empty, the rule
    /// has one counter.
    pub actor_fields: Vec<String>,
    /// The actor field whose addresses are counted by their networks.
    pub actor_prefix: Option<ActorPrefix>,
    /// The field that holds the cost of a request. Requests without it cost 1, as all do if this is `None` or
    /// [`NO_COST_FIELD`].
    pub cost_field: Option<String>,
    /// The answer when the cost exceeds what is left.
    pub overrun: Overrun,
    /// For concurrency limits, the request field that names the lease of a gateway's request.
    pub hold_field: Option<String>,
    /// The name under which usage is kept, so that other rules may share it and the limit may change.
    pub counter: Option<String>,
    /// The blocks of actors that the rule keeps denying.
    pub penalty: Option<Penalty>,
    /// The effect of a match on later rules.
    pub match_policy: MatchPolicy,
    /// A name for metrics and commands, unique among the rules.
    pub label: Option<String>,
    /// The operator's text for people. divvy does not interpret it.
    pub comment: Option<String>,
    /// Line of the file where the rule begins, from 1.
    pub line: usize,
}

impl Rule {
    /// Returns a rule with this operation and limit that stops, and has no other settings.
    pub fn new(operation: Vec<(String, Pattern)>, settings: Settings, quota: Quota, line: usize) -> Self {
        Self {
            operation,
            networks: None,
            list: None,
            settings,
            quota,
            actor_fields: Vec::new(),
            actor_prefix: None,
            cost_field: None,
            overrun: Overrun::default(),
            hold_field: None,
            counter: None,
            penalty: None,
            match_policy: MatchPolicy::default(),
            label: None,
            comment: None,
            line,
        }
    }

    /// Returns whether this rule matches every request.
    pub fn is_default(&self) -> bool {
        self.operation.is_empty()
    }

    /// Returns the pattern for the value of `key`; `None` if the rule does not name the key.
    pub fn pattern(&self, key: &str) -> Option<&Pattern> {
        self.operation.iter().find(|(candidate, _)| candidate == key).map(|(_, pattern)| pattern)
    }

    /// Returns the patterns of a key. In a normalized rule, a key may have several, and a value matches any of them.
    pub fn patterns(&self, key: &str) -> impl Iterator<Item = &Pattern> {
        self.operation.iter().filter(move |(candidate, _)| candidate == key).map(|(_, pattern)| pattern)
    }

    /// Returns whether `operation` has every key that this rule names, with a matching value.
    pub fn matches(&self, operation: &Operation) -> bool {
        self.operation.iter().all(|(key, pattern)| operation.get(key).is_some_and(|value| pattern.matches(value)))
            && self.conditions().all(|condition| {
                operation.get(&condition.field).is_some_and(|value| condition.is_met_by(value.as_bytes()))
            })
    }

    /// Returns its conditions: `networks`, then `list`. Their fields are in its operation.
    pub fn conditions(&self) -> impl Iterator<Item = &Condition> {
        self.networks.iter().chain(&self.list)
    }

    /// Returns the fields and texts that determine which requests it matches, sorted: its pairs, and for each condition
    /// another pair with the same key, which no operation has.
    pub fn match_pairs(&self) -> Vec<(&str, Cow<'_, str>)> {
        let conditions = self.conditions().map(|condition| (condition.field.as_str(), condition.key_text().into()));
        let mut pairs: Vec<_> = self.pairs().map(|(key, text)| (key, text.into())).chain(conditions).collect();
        pairs.sort_unstable();
        pairs
    }

    /// Returns whether every request that `other` matches meets this rule's conditions. Only checks whether a condition or
    /// an exact value of `other` implies each of them.
    pub(super) fn conditions_contain(&self, other: &Self) -> bool {
        self.conditions().all(|condition| other.implies(condition))
    }

    /// Returns whether one of the rule's conditions, or an exact value, implies the condition.
    pub(super) fn implies(&self, condition: &Condition) -> bool {
        match self.pattern(&condition.field) {
            Some(Pattern::Literal(text)) => condition.is_met_by(text.as_bytes()),
            _ => self.conditions().any(|own| condition.contains(own)),
        }
    }

    /// Describes the grant for people: `allows 10 in 60 s, by ip, at the cost in bytes, with debt, from the counter
    /// usage`.
    pub fn summary(&self) -> String {
        let mut text = self.settings.to_string();
        if !self.actor_fields.is_empty() {
            text.push_str(&format!(", by {}", self.actor_fields.join(" and ")));
        }
        if let Some(prefix) = &self.actor_prefix {
            text.push_str(&format!(", with {} as /{} and /{}", prefix.field, prefix.lengths.v4, prefix.lengths.v6));
        }
        for condition in self.conditions() {
            let (word, entries) = (if condition.is_inverted { "not in" } else { "in" }, condition.entries());
            let entries = entries.strip_prefix(NOT).unwrap_or(&entries);
            text.push_str(&format!(", for {} {word} {entries}", condition.field));
        }
        for words in self.cost_words() {
            text.push_str(&format!(", {words}"));
        }
        if let Some(field) = &self.hold_field {
            text.push_str(&format!(", held by {field}"));
        }
        if let Some(counter) = &self.counter {
            text.push_str(&format!(", from the counter {counter}"));
        }
        if let Some(penalty) = &self.penalty {
            text.push_str(&format!(", and {penalty}"));
        }
        text
    }

    /// Same as [`Rule::summary`], with the match policy: `allows 10 in 60 s, as a canary`.
    pub fn full_summary(&self) -> String {
        let policy = match self.match_policy {
            MatchPolicy::Stop => "",
            MatchPolicy::Canary => ", as a canary",
            MatchPolicy::And => ", with others",
        };
        self.summary() + policy
    }

    /// Returns whether its counters are leases, which only reservations take.
    pub fn is_concurrency_limit(&self) -> bool {
        matches!(self.quota, Quota::Limited(Limit::Concurrency(_)))
    }

    /// Returns `actorField` as a rules file writes it.
    pub fn actor_field(&self) -> Option<String> {
        (!self.actor_fields.is_empty()).then(|| self.actor_fields.join(", "))
    }

    /// Returns the field names that are part of its counters' identity: all names if there are several. A single
    /// field's name is not, because an actor is its value alone, as in Button's Divvy.
    pub fn names_in_actors(&self) -> &[String] {
        if self.actor_fields.len() > 1 { &self.actor_fields } else { &[] }
    }

    /// Returns a name for its counters: its own, or a proposal.
    pub fn counter_name(&self) -> &str {
        self.counter.as_deref().or(self.label.as_deref()).unwrap_or("NAME")
    }

    /// Returns the pairs of the operation as text, with patterns as written.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.operation.iter().map(|(key, pattern)| (key.as_str(), pattern.as_str()))
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&header(self.pairs()))
    }
}

/// Returns the text that names an operation for people: `default`, or its pairs.
///
/// If the text form cannot express a pair, its strings are escaped; such a header cannot be parsed.
pub fn header<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let pairs: Vec<_> = pairs.collect();
    if pairs.is_empty() {
        return "default".to_owned();
    }
    operation_text::write(pairs.iter().copied()).unwrap_or_else(|_unwritable| {
        let escaped: Vec<_> = pairs.iter().map(|(key, value)| format!("{key:?}={value:?}")).collect();
        escaped.join(" ")
    })
}
