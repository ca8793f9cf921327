//! The rules that a user may use, and the counters that result.

use std::collections::BTreeMap;
use std::fmt;

use divvy::access::Category;

use crate::users::line;

pub const APIS: [&str; 6] = ["a", "b", "both", "watched", "plain", "other"];
pub const USERS: [&str; 3] = ["ann", "bob", "eve"];

/// A user of the access file.
#[derive(Debug)]
pub struct User {
    pub name: String,
    pub categories: Vec<Category>,
    pub covers_everything: bool,
    pub labels: Vec<&'static str>,
    /// The only actor in scope, by the field `user`.
    pub actor: Option<&'static str>,
}

#[derive(Debug, Clone, Copy)]
pub struct Operation {
    pub api: &'static str,
    pub user: &'static str,
}

#[derive(Debug, Clone, Copy)]
pub enum Action {
    Hit,
    Peek,
    Charge,
    Refund,
    Reset,
}

/// Whether a user may do something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Granted,
    NoCategory,
    OutOfScope,
}

/// A rule that an operation matches.
struct Rule {
    name: &'static str,
    label: Option<&'static str>,
    counts_by_user: bool,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "api={} user={}", self.api, self.user)
    }
}

impl Operation {
    fn rules(self) -> Vec<Rule> {
        let labeled = |label| Rule { name: label, label: Some(label), counts_by_user: true };
        match self.api {
            "a" => vec![labeled("a-user")],
            "b" => vec![labeled("b-user")],
            "both" => vec![labeled("a-first"), labeled("b-second")],
            "watched" => vec![labeled("c-canary"), labeled("a-watched")],
            "plain" => vec![Rule { name: "rule-8", label: None, counts_by_user: true }],
            _ => vec![Rule { name: "default", label: None, counts_by_user: false }],
        }
    }
}

impl Action {
    pub fn category(self) -> Category {
        if let Self::Reset = self { Category::Forget } else { Category::Hit }
    }

    pub fn command(self) -> &'static str {
        match self {
            Self::Hit => "DIVVY.HIT",
            Self::Peek => "DIVVY.PEEK",
            Self::Charge => "DIVVY.CHARGE",
            Self::Refund => "DIVVY.REFUND",
            Self::Reset => "DIVVY.RESET",
        }
    }
}

impl User {
    /// Returns the line of the access file.
    pub fn line(&self) -> String {
        let mut words: Vec<_> = self.categories.iter().map(|category| format!("+@{category}")).collect();
        if self.covers_everything {
            words.push("~*".to_owned());
        } else {
            words.extend(self.labels.iter().map(|label| format!("~label:{label}")));
            words.extend(self.actor.map(|actor| format!("~actor:user={actor}")));
        }
        line(&self.name, &words.join(" "))
    }

    pub fn has(&self, category: Category) -> bool {
        self.categories.contains(&category)
    }

    /// Returns whether every rule that the operation matches is in scope.
    pub fn covers(&self, operation: Operation) -> bool {
        self.covers_everything || operation.rules().iter().all(|rule| self.covers_rule(rule, operation.user))
    }

    fn covers_rule(&self, rule: &Rule, user: &str) -> bool {
        // An actor without labels is in scope in all rules.
        let labels: &[&str] = if self.labels.is_empty() && self.actor.is_some() { &["*"] } else { &self.labels };
        let has_label = labels.iter().any(|pattern| {
            *pattern == "*" || rule.label.is_some_and(|label| label.starts_with(pattern.trim_end_matches('*')))
        });
        has_label && self.actor.is_none_or(|actor| rule.counts_by_user && actor == user)
    }
}

/// The counters.
#[derive(Default)]
pub struct Model {
    /// Used credits, by rule and actor.
    counters: BTreeMap<(&'static str, &'static str), i64>,
    pub served: usize,
    pub refused: usize,
}

impl Model {
    /// Applies a request if the user may send it.
    pub fn apply(&mut self, user: &User, action: Action, operation: Operation) -> Access {
        let access = match (user.has(action.category()), user.covers(operation)) {
            (false, _) => Access::NoCategory,
            (true, false) => Access::OutOfScope,
            (true, true) => Access::Granted,
        };
        if access != Access::Granted {
            self.refused += 1;
            return access;
        }
        self.served += 1;
        for rule in operation.rules() {
            let actor = if rule.counts_by_user { operation.user } else { "" };
            let used = self.counters.entry((rule.name, actor)).or_default();
            *used = match action {
                Action::Hit | Action::Charge => *used + 1,
                Action::Peek => *used,
                Action::Refund => (*used - 1).max(0),
                Action::Reset => 0,
            };
        }
        access
    }

    /// Returns the used credits of each counter that is not full.
    pub fn used(&self) -> Vec<(String, String, i64)> {
        let used = self.counters.iter().filter(|(_, used)| **used > 0);
        let mut used: Vec<_> =
            used.map(|((rule, actor), used)| ((*rule).to_owned(), (*actor).to_owned(), *used)).collect();
        used.sort();
        used
    }
}
