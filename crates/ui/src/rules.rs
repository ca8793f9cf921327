//! The event `rules`: the rules that a page shows, and their counts in the last second. A page shows the rules in the scope
//! of its user that contain the text of its search.

use std::collections::HashMap;
use std::sync::Arc;

use hyper::Uri;
use memchr::memmem;
use serde::Deserialize;
use serde_json::{Value, json};

use super::history::{Sample, Second};
use divvy_core::rules::{MatchPolicy, Rule};
use divvy_core::units::shorten;
use divvy_limiter::Scope;
use divvy_limiter::inspection::listed;
use divvy_server::http::page::{Problem, body};

/// Maximum number of rules in an event.
const MAX_COUNT: usize = 100;
/// Maximum length of a search, and of a rule's name (bytes).
const MAX_SEARCH: usize = 256;
/// Maximum length of an operation, a comment or a limit (bytes). Rules come from the operator, but an event must stay short.
const MAX_TEXT: usize = 2_048;
/// The value of `only` for rules that denied a hit in the last minute.
const DENIED: &str = "denied";

/// The rules that a page asks for: the query of its stream.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct View {
    /// Number of matching rules that the page skips.
    #[serde(default)]
    first: usize,
    #[serde(default = "default_count")]
    count: usize,
    /// Text that each rule must contain, in lower case.
    #[serde(default)]
    search: String,
    only: Option<String>,
    /// Name of the rule that the page shows in detail.
    rule: Option<String>,
}

fn default_count() -> usize {
    40
}

/// The rules that a page may show, under one set of rules and one scope.
#[derive(Debug)]
pub struct Candidates {
    /// Number of the set of rules.
    pub ruleset: Option<u64>,
    scope: Scope,
    /// Indexes of the rules in scope, in order.
    in_scope: Arc<[usize]>,
    /// Indexes of the rules in scope with the text, in order.
    matching: Arc<[usize]>,
    /// The rule that the page shows in detail, if it is in scope. `None` if the page asks for none.
    pub selected: Option<Option<usize>>,
}

/// The seconds of the last minute, by the index of the rule.
pub type Minutes = HashMap<usize, Vec<Second>>;

/// The rules in an event.
#[derive(Debug)]
pub struct ShownRules {
    matching: usize,
    /// Indexes of the rules, in order.
    pub indexes: Vec<usize>,
}

impl View {
    /// Reads the query, and checks its bounds.
    ///
    /// # Errors
    /// It is not valid.
    pub fn parse(uri: &Uri) -> Result<Self, Problem> {
        let view: Self = body::parse_query(uri)?;
        let Self { count, search, only, rule, .. } = &view;
        if *count > MAX_COUNT {
            return Err(Problem::bad_request(format!("count is {count}, but must be at most {MAX_COUNT}")));
        }
        if let Some(only) = only.as_ref().filter(|only| *only != DENIED) {
            return Err(Problem::bad_request(format!("only is '{only}', but must be {DENIED}")));
        }
        if search.len().max(rule.as_ref().map_or(0, String::len)) > MAX_SEARCH {
            let detail = format!("a search or a rule's name is longer than {MAX_SEARCH} bytes");
            return Err(Problem::bad_request(detail));
        }
        Ok(Self { search: search.to_lowercase(), ..view })
    }

    /// Returns the rules that the page may show under the sample's rules, within the scope. Looks at every rule, so it may
    /// take milliseconds.
    pub fn find_candidates(&self, sample: &Sample, scope: Scope) -> Candidates {
        let Some(policy) = &sample.policy else {
            let (in_scope, matching) = Default::default();
            return Candidates { ruleset: None, scope, in_scope, matching, selected: None };
        };
        let finder = memmem::Finder::new(&self.search);
        let with_text = |(index, rule): (usize, &Rule)| has_text(rule, index, &finder).then_some(index);
        let select = |name: &String| {
            let index = policy.rules().find_by_name(name)?;
            sample.rules().get(index).filter(|rule| scope.covers(Some(rule), None, None)).map(|_| index)
        };
        let in_scope: Arc<[usize]> = listed(policy, &scope).map(|(index, _)| index).collect();
        let matching = match self.search.is_empty() {
            true => Arc::clone(&in_scope),
            false => listed(policy, &scope).filter_map(with_text).collect(),
        };
        let selected = self.rule.as_ref().map(select);
        Candidates { ruleset: sample.ruleset(), in_scope, matching, selected, scope }
    }

    /// Returns the rules that the page shows of the candidates.
    pub fn choose(&self, candidates: &Candidates, sample: &Sample) -> ShownRules {
        // With hidden counts, the list of rules that denied a hit would reveal some of them.
        if self.only.is_none() || candidates.hides_counts() {
            return self.page(&candidates.matching);
        }
        let is_matching = |index: &usize| candidates.matching.binary_search(index).is_ok();
        self.page(&sample.denying.iter().copied().filter(is_matching).collect::<Vec<_>>())
    }

    fn page(&self, indexes: &[usize]) -> ShownRules {
        let shown = indexes.iter().skip(self.first).take(self.count).copied().collect();
        ShownRules { matching: indexes.len(), indexes: shown }
    }

    /// Writes the event's data. `minutes` has the last minutes of the shown rules, and `file` is the name of the rules file.
    pub fn write(
        &self,
        candidates: &Candidates,
        sample: &Sample,
        shown: &ShownRules,
        (minutes, file): (&Minutes, Option<&str>),
    ) -> String {
        let describe_rule = |&index: &usize| {
            let mut event = describe(sample.rules().get(index)?, index, file);
            if !candidates.hides_counts() {
                let Second { hits, denied } = sample.second(index);
                add(&mut event, "hits", json!(hits));
                add(&mut event, "denied", json!(denied));
                let minute = minutes.get(&index).into_iter().flatten();
                let (hits, denied): (Vec<_>, Vec<_>) = minute.map(|second| (second.hits, second.denied)).unzip();
                add(&mut event, "history", json!({"hits": hits, "denied": denied}));
            }
            Some(event)
        };
        let mut event = json!({
            // Changes with the rules.
            "version": candidates.ruleset,
            "total": candidates.in_scope.len(),
            "matching": shown.matching,
            "first": self.first,
            "rules": shown.indexes.iter().filter_map(describe_rule).collect::<Vec<_>>(),
        });
        if let Some(selected) = candidates.selected {
            add(&mut event, "selected", selected.as_ref().and_then(describe_rule).unwrap_or_default());
        }
        if !candidates.hides_counts() {
            candidates.add_sums(sample, &mut event);
        }
        event.to_string()
    }
}

impl Candidates {
    /// Returns whether these are the rules under the sample's rules, within the scope.
    pub fn are_of(&self, sample: &Sample, scope: &Scope) -> bool {
        self.ruleset == sample.ruleset() && self.scope.is_same(scope)
    }

    /// Returns whether the scope has one actor. The counts of a rule are those of all actors, so none of them is in scope.
    fn hides_counts(&self) -> bool {
        self.scope.has_one_actor()
    }

    /// Adds to an event the counts of all rules in scope, and the number of rules that denied a hit in the last minute,
    /// without canaries.
    fn add_sums(&self, sample: &Sample, event: &mut Value) {
        let is_canary = |index: usize| sample.rules().get(index).is_some_and(is_canary);
        let (mut all_hits, mut all_denied, mut canary_denied) = (0, 0, 0);
        for &index in &*self.in_scope {
            let Second { hits, denied } = sample.second(index);
            all_hits += u64::from(hits);
            if denied > 0 {
                *if is_canary(index) { &mut canary_denied } else { &mut all_denied } += u64::from(denied);
            }
        }
        let is_denying = |index: &&usize| self.in_scope.binary_search(index).is_ok() && !is_canary(**index);
        add(event, "denying", json!(sample.denying.iter().filter(is_denying).count()));
        add(event, "sum", json!({"hits": all_hits, "denied": all_denied, "canaryDenied": canary_denied}));
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

fn is_canary(rule: &Rule) -> bool {
    rule.match_policy == MatchPolicy::Canary
}

/// Returns the part of a rule that changes only with the rules.
fn describe(rule: &Rule, index: usize, file: Option<&str>) -> Value {
    json!({
        "index": index,
        "name": rule.name(index),
        "operation": shorten(rule.to_string(), MAX_TEXT),
        "limit": shorten(rule.settings.to_string(), MAX_TEXT),
        "algorithm": rule.settings.algorithm().name(),
        "actorField": rule.actor_field(),
        // The settings `networks` and `list`.
        "conditions": rule.conditions().map(|condition| shorten(condition.to_string(), MAX_TEXT)).collect::<Vec<_>>(),
        "actorPrefix": rule.actor_prefix.as_ref().map(ToString::to_string),
        // The blocks of actors that the rule keeps denying.
        "penalty": rule.penalty.as_ref().map(ToString::to_string),
        "stack": rule.match_policy == MatchPolicy::And,
        "canary": is_canary(rule),
        "comment": rule.comment.clone().map(|comment| shorten(comment, MAX_TEXT)),
        "line": rule.line,
        "file": file,
    })
}

/// Adds a member to an object.
fn add(object: &mut Value, name: &str, value: Value) {
    object.as_object_mut().map(|members| members.insert(name.to_owned(), value));
}
