//! The part of the rules that a page shows: those in the scope of its user that contain the text of its search.

use std::ops::Range;
use std::sync::Arc;

use memchr::memmem;
use serde::Deserialize;

use super::history::{RuleHistory, Sample};
use super::sampler::Sampler;
use crate::limiter::Scope;
use crate::limiter::rules::listed;
use crate::rules::Rule;
use crate::server::http::problem::Problem;

/// Default number of rules.
const DEFAULT_COUNT: usize = 40;
/// Maximum number of rules in an event.
const MAX_COUNT: usize = 100;
/// Maximum length of a search (bytes).
const MAX_SEARCH: usize = 256;

/// The query of a stream.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ViewQuery {
    #[serde(default)]
    first: usize,
    count: Option<usize>,
    #[serde(default)]
    search: String,
}

/// The rules that a page asks for.
#[derive(Debug, Clone)]
pub struct View {
    /// Number of matching rules that the page skips.
    pub first: usize,
    count: usize,
    /// Text that each rule must contain, in lower case.
    search: String,
}

/// The rules of a view, under one set of rules and one scope.
#[derive(Debug)]
pub struct VisibleRules {
    /// Number of rules in scope.
    pub total: usize,
    /// Number of rules in scope with the text.
    pub matching: usize,
    /// Indexes of the rules that the page shows, in order.
    pub indexes: Vec<usize>,
}

impl ViewQuery {
    /// Checks the bounds of a view.
    ///
    /// # Errors
    /// It exceeds one.
    pub fn check(self) -> Result<View, Problem> {
        let Self { first, count, search } = self;
        let count = count.unwrap_or(DEFAULT_COUNT);
        if count > MAX_COUNT {
            return Err(Problem::bad_request(format!("count is {count}, but must be at most {MAX_COUNT}")));
        }
        if search.len() > MAX_SEARCH {
            return Err(Problem::bad_request(format!("the search is longer than {MAX_SEARCH} bytes")));
        }
        Ok(View { first, count, search: search.to_lowercase() })
    }
}

impl View {
    /// Returns the rules that the page shows under these rules, if they are all in this scope. Looks at every rule, so it may
    /// take milliseconds.
    pub fn choose(&self, sample: &Sample, scope: &Scope) -> VisibleRules {
        let shown = self.shown();
        let mut visible = VisibleRules { total: 0, matching: 0, indexes: Vec::new() };
        let Some(policy) = &sample.policy else { return visible };
        let finder = memmem::Finder::new(&self.search);
        for (index, rule) in listed(policy, scope) {
            visible.total += 1;
            if !self.search.is_empty() && !has_text(rule, index, &finder) {
                continue;
            }
            if shown.contains(&visible.matching) {
                visible.indexes.push(index);
            }
            visible.matching += 1;
        }
        visible
    }

    fn shown(&self) -> Range<usize> {
        self.first..self.first.saturating_add(self.count)
    }
}

impl VisibleRules {
    /// Returns the histories of the rules that the page shows, in order.
    pub fn histories(&self, sampler: &Sampler, ruleset: Option<u64>) -> Vec<RuleHistory> {
        let history = sampler.history().lock();
        self.indexes.iter().map(|index| history.of_rule(ruleset, *index)).collect()
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

/// Chooses the rules of a view, on a thread that may take its time. See [`View::choose`].
pub fn choose_with_histories(
    view: &View,
    sampler: &Arc<Sampler>,
    sample: &Sample,
    scope: &Scope,
) -> (VisibleRules, Vec<RuleHistory>) {
    let visible = view.choose(sample, scope);
    let histories = visible.histories(sampler, sample.ruleset());
    (visible, histories)
}
