//! The part of the rules that a page shows: those in the scope of its user that contain the text of its search.

use memchr::memmem;
use serde::Deserialize;

use super::history::Sample;
use crate::http::response::Problem;
use divvy_core::rules::{MatchPolicy, Rule};
use divvy_limiter::Scope;
use divvy_limiter::inspection::listed;

/// Default number of rules.
const DEFAULT_COUNT: usize = 40;
/// Maximum number of rules in an event.
const MAX_COUNT: usize = 100;
/// Maximum length of a search, and of a rule's name (bytes).
const MAX_TEXT: usize = 256;
/// The value of `only` for rules that denied a hit in the last minute.
const DENIED: &str = "denied";

/// The query of a stream.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ViewQuery {
    #[serde(default)]
    first: usize,
    count: Option<usize>,
    #[serde(default)]
    search: String,
    only: Option<String>,
    rule: Option<String>,
}

/// The rules that a page asks for.
#[derive(Debug, Clone)]
pub struct View {
    /// Number of matching rules that the page skips.
    pub first: usize,
    count: usize,
    /// Text that each rule must contain, in lower case.
    search: String,
    only_denied: bool,
    /// Name of the rule that the page shows in detail.
    rule: Option<String>,
}

/// The rules that a page may show, under one set of rules and one scope.
#[derive(Debug, Default)]
pub struct Candidates {
    /// Rules in scope, in order; `None` if all are.
    in_scope: Option<Vec<usize>>,
    /// Rules in scope with the text, in order; `None` if all are.
    matching: Option<Vec<usize>>,
    /// Number of rules.
    rules: usize,
    /// Whether the scope has one actor. The counts of a rule are those of all actors, so none of them is in scope.
    pub hides_counts: bool,
    /// The rule that the page shows in detail, if it is in scope. `None` if the page asks for none.
    pub selected: Option<Option<usize>>,
}

/// The rules in an event.
#[derive(Debug, PartialEq, Eq)]
pub struct Shown {
    pub matching: usize,
    /// Indexes of the rules, in order.
    pub indexes: Vec<usize>,
}

/// The counts of all rules in scope.
#[derive(Debug, Default)]
pub struct Sums {
    pub hits: u64,
    pub denied: u64,
    pub canary_denied: u64,
    /// Number of rules that denied a hit in the last minute, without canaries.
    pub denying: usize,
}

impl ViewQuery {
    /// Checks the bounds of a view.
    ///
    /// # Errors
    /// It exceeds one.
    pub fn check(self) -> Result<View, Problem> {
        let Self { first, count, search, only, rule } = self;
        let count = count.unwrap_or(DEFAULT_COUNT);
        if count > MAX_COUNT {
            return Err(Problem::bad_request(format!("count is {count}, but must be at most {MAX_COUNT}")));
        }
        if let Some(only) = only.as_ref().filter(|only| *only != DENIED) {
            return Err(Problem::bad_request(format!("only is '{only}', but must be {DENIED}")));
        }
        if search.len() > MAX_TEXT || rule.as_ref().is_some_and(|rule| rule.len() > MAX_TEXT) {
            return Err(Problem::bad_request(format!("a search or a rule's name is longer than {MAX_TEXT} bytes")));
        }
        Ok(View { first, count, search: search.to_lowercase(), only_denied: only.is_some(), rule })
    }
}

impl View {
    /// Returns the rules that the page may show under the sample's rules, within the scope. Looks at every rule, so it may
    /// take milliseconds.
    pub fn find_candidates(&self, sample: &Sample, scope: &Scope) -> Candidates {
        let Some(policy) = &sample.policy else { return Candidates::default() };
        let rules = policy.rules();
        let in_scope = || listed(policy, scope);
        let finder = memmem::Finder::new(&self.search);
        let with_text = || in_scope().filter(|(index, rule)| has_text(rule, *index, &finder)).map(|(index, _)| index);
        let own = (!scope.covers_everything()).then(|| in_scope().map(|(index, _)| index).collect::<Vec<_>>());
        let select = |name: &String| {
            let index = rules.find_by_name(name)?;
            rules.rules().get(index).filter(|rule| scope.covers(Some(rule), None, None)).map(|_| index)
        };
        Candidates {
            matching: if self.search.is_empty() { own.clone() } else { Some(with_text().collect()) },
            in_scope: own,
            rules: rules.rules().len(),
            hides_counts: scope.has_one_actor(),
            selected: self.rule.as_ref().map(select),
        }
    }

    /// Returns the rules that the page shows of the candidates.
    pub fn choose(&self, candidates: &Candidates, sample: &Sample) -> Shown {
        let page = |matching: &mut dyn Iterator<Item = usize>| {
            matching.skip(self.first).take(self.count).collect::<Vec<usize>>()
        };
        let (matching, indexes) = match &candidates.matching {
            // With hidden counts, the list of rules that denied a hit would reveal some of them.
            matching if self.only_denied && !candidates.hides_counts => {
                let is_candidate =
                    |index: &&usize| matching.as_ref().is_none_or(|matching| matching.binary_search(index).is_ok());
                let denying = || sample.denying.iter().filter(is_candidate).copied();
                (denying().count(), page(&mut denying()))
            }
            None => (candidates.rules, page(&mut (0..candidates.rules))),
            Some(matching) => (matching.len(), page(&mut matching.iter().copied())),
        };
        Shown { matching, indexes }
    }
}

impl Candidates {
    /// Returns the number of rules in scope.
    pub fn total(&self) -> usize {
        self.in_scope.as_ref().map_or(self.rules, Vec::len)
    }

    /// Adds the counts of all rules in scope; `None` if they are hidden.
    pub fn sum(&self, sample: &Sample) -> Option<Sums> {
        if self.hides_counts {
            return None;
        }
        let rules = sample.policy.as_ref().map_or(&[][..], |policy| policy.rules().rules());
        let is_canary = |index: usize| rules.get(index).is_some_and(|rule| rule.match_policy == MatchPolicy::Canary);
        let is_in_scope =
            |index: &usize| self.in_scope.as_ref().is_none_or(|in_scope| in_scope.binary_search(index).is_ok());
        let denying = sample.denying.iter().filter(|index| is_in_scope(index) && !is_canary(**index)).count();
        let mut sums = Sums { denying, ..Sums::default() };
        let mut add = |index: usize| {
            let second = sample.second(index);
            sums.hits += u64::from(second.hits);
            if second.denied > 0 {
                *if is_canary(index) { &mut sums.canary_denied } else { &mut sums.denied } += u64::from(second.denied);
            }
        };
        match &self.in_scope {
            None => (0..self.rules).for_each(&mut add),
            Some(in_scope) => in_scope.iter().copied().for_each(&mut add),
        }
        Some(sums)
    }
}

/// Returns whether the rule's name, label, operation or comment contains the text, in any case.
fn has_text(rule: &Rule, index: usize, finder: &memmem::Finder<'_>) -> bool {
    let has = |text: &str| finder.find(text.to_lowercase().as_bytes()).is_some();
    has(&rule.name(index))
        || rule.label.as_deref().is_some_and(has)
        || has(&rule.to_string())
        || rule.comment.as_deref().is_some_and(has)
}
