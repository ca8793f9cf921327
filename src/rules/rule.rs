//! A rule: what the operator wrote, validated.

use std::fmt;

use super::{Operation, Pattern, Quota, Settings, operation_text};
use crate::algorithm::Limit;

/// A `costField` that is no field: every hit takes one credit, regardless of the cost that the request gives.
pub const NO_COST_FIELD: &str = "none";

/// What happens after a rule matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MatchPolicy {
    /// The rule answers.
    #[default]
    Stop,
    /// The rule counts the hit and takes credit; matching continues. A trial of a limit.
    Canary,
    /// The rule must allow, and so must all that match up to and including the one that stops; matching continues. All of
    /// them take, or none does.
    And,
}

/// What becomes of a hit that costs more than is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Overrun {
    /// It is denied.
    #[default]
    Refuse,
    /// It is allowed as long as anything is left, and counts in full: what is left may be below 0 afterwards.
    Debt,
}

impl Overrun {
    pub const ALL: [Self; 2] = [Self::Refuse, Self::Debt];

    /// The word for it in a rules file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Refuse => "refuse",
            Self::Debt => "debt",
        }
    }
}

/// Rules that must allow one request, at most.
pub const MAX_STACK: usize = 16;

impl MatchPolicy {
    /// The word for it in a rules file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Canary => "canary",
            Self::And => "and",
        }
    }
}

/// One rule. Displays as the header that a rules file would give it, without brackets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The keys that a request must have, each once, and the patterns of their values. Empty: the default rule.
    pub operation: Vec<(String, Pattern)>,
    /// The numbers as written; `quota` is their meaning.
    pub settings: Settings,
    pub quota: Quota,
    /// Each value of this field, or each combination of these fields' values, has its own counter. None: the rule has one
    /// counter.
    pub actor_fields: Vec<String>,
    /// The field that holds the cost of a request. `None`, or a request without it: 1. [`NO_COST_FIELD`]: always 1.
    pub cost_field: Option<String>,
    pub overrun: Overrun,
    /// The field by which a gateway names the lease that a request holds; for a rule about what runs at once.
    pub hold_field: Option<String>,
    /// Under which name what its actors have used is kept, so that other rules may share it and the limit may change.
    pub counter: Option<String>,
    pub match_policy: MatchPolicy,
    /// A name for metrics, unique among the rules.
    pub label: Option<String>,
    pub comment: Option<String>,
    /// Where the rule begins in its file, from 1.
    pub line: usize,
}

impl Rule {
    /// The name of the header in [`Rule::described`].
    pub(super) const HEADER: &str = "rule";

    /// Does this rule match every request?
    pub fn is_default(&self) -> bool {
        self.operation.is_empty()
    }

    /// The pattern for the value of `key`; `None` if the rule does not name the key.
    pub fn pattern(&self, key: &str) -> Option<&Pattern> {
        self.operation.iter().find(|(candidate, _)| candidate == key).map(|(_, pattern)| pattern)
    }

    /// Does `operation` have every key that this rule names, with a matching value?
    pub fn matches(&self, operation: &Operation) -> bool {
        self.operation.iter().all(|(key, pattern)| operation.get(key).is_some_and(|value| pattern.matches(value)))
    }

    /// What it grants, for people: `allows 10 in 60 s, by ip, at the cost in bytes, with debt, from the counter usage`.
    pub fn summary(&self) -> String {
        let mut text = self.settings.to_string();
        if !self.actor_fields.is_empty() {
            text.push_str(&format!(", by {}", self.actor_fields.join(" and ")));
        }
        match self.cost_field.as_deref() {
            None => {}
            Some(NO_COST_FIELD) => text.push_str(", at a cost of 1 each"),
            Some(field) => text.push_str(&format!(", at the cost in {field}")),
        }
        if self.overrun == Overrun::Debt {
            text.push_str(", with debt");
        }
        if let Some(field) = &self.hold_field {
            text.push_str(&format!(", held by {field}"));
        }
        if let Some(counter) = &self.counter {
            text.push_str(&format!(", from the counter {counter}"));
        }
        text
    }

    /// Its settings under their names in a rules file, after its header as `rule`. The algorithm and the match policy
    /// are always there; others that were not given are left out.
    pub fn described(&self) -> Vec<(&'static str, String)> {
        let optional = |name, value: &Option<String>| value.clone().map(|value| (name, value));
        let mut settings = vec![(Self::HEADER, self.to_string())];
        settings.extend(self.settings.described());
        settings.extend(optional("actorField", &self.actor_field()));
        settings.extend(optional("costField", &self.cost_field));
        settings.extend(self.overrun_word().map(|word| ("overrun", word.to_owned())));
        settings.extend(optional("holdField", &self.hold_field));
        settings.extend(optional("counter", &self.counter));
        settings.push(("matchPolicy", self.match_policy.as_str().to_owned()));
        settings.extend(optional("label", &self.label));
        settings.extend(optional("comment", &self.comment));
        settings
    }

    /// Its counters are leases, which only reservations take.
    pub fn limits_what_runs(&self) -> bool {
        matches!(self.quota, Quota::Limited(Limit::Concurrency(_)))
    }

    /// `overrun` as a rules file writes it; `None` where it goes without saying.
    pub fn overrun_word(&self) -> Option<&'static str> {
        (self.overrun != Overrun::default()).then(|| self.overrun.as_str())
    }

    /// `actorField` as a rules file writes it.
    pub fn actor_field(&self) -> Option<String> {
        (!self.actor_fields.is_empty()).then(|| self.actor_fields.join(", "))
    }

    /// The names of fields that are part of its counters' identity: those of several. A single one's is not, as in Button's
    /// Divvy, which knows an actor by its value alone.
    pub fn names_in_actors(&self) -> &[String] {
        if self.actor_fields.len() > 1 { &self.actor_fields } else { &[] }
    }

    /// The operation as texts, patterns as written.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.operation.iter().map(|(key, pattern)| (key.as_str(), pattern.as_str()))
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&header(self.pairs()))
    }
}

/// The text that names an operation to people: `default`, or its pairs.
///
/// A pair that the text form cannot hold is shown with its strings escaped; such a header cannot be read back.
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
