//! Converts the limits of limitador into rules that apply to the same requests. All limits that match a request apply together, so
//! the rules form a stack. [`super::kuadrant`] makes limits of Kuadrant's policies, as Kuadrant itself does.
//!
//! The format is defined in `limitador/src/limit.rs` and `limitador-server/src/main.rs` of <https://github.com/Kuadrant/limitador>;
//! the resource `Limitador`, whose `spec.limits` is the same list, in <https://github.com/Kuadrant/limitador-operator>.

use std::collections::HashMap;
use std::time::Duration;

use indexmap::IndexMap;

use super::Problems;
use super::labels::Labels;
use super::yaml::Node;
use super::yaml::fields::{LeftOut, fields, items, number, required, text};
use crate::rules::operation::DOMAIN;
use crate::rules::{MatchPolicy, Pattern, Quota, QuotaError, Rule, Seconds, Settings};

mod condition;

/// The comment of converted files.
pub const DIFFERENCE: &str = "Converted from limits of limitador or policies of Kuadrant. A rule applies to each descriptor of a \
                              request. docs/migrating.md lists all differences.";

/// Maximum number of rules for one limit.
const MAX_RULES: usize = 256;

/// A limit.
#[derive(Debug)]
pub struct Limit {
    /// The line where the limit begins.
    pub line: usize,
    /// The domains of requests.
    pub namespace: Pattern,
    /// The keys that a descriptor must have, and patterns. Each value must match one of them.
    pub keys: IndexMap<String, Vec<Pattern>>,
    /// The keys whose values have a counter each.
    pub variables: Vec<String>,
    /// The credits of a window.
    pub max_value: u64,
    /// The length of a window, which starts with the first hit.
    pub window: Duration,
    /// The name for people.
    pub name: String,
}

/// Reads a list of limits, and reports those that no rule can express.
pub fn read(limits: Option<&Node<'_>>, problems: &mut Problems) -> Vec<Limit> {
    let limits = items(limits).map(|limits| limits.iter().map(|node| read_limit(node, problems)).collect());
    let results: Vec<_> = limits.unwrap_or_else(|error| vec![Err(error)]);
    let mut report = |LeftOut { line, what, fix }| problems.error(line, format!("{what}: the limit is left out"), fix);
    results.into_iter().filter_map(|limit| limit.map_err(&mut report).ok()).collect()
}

fn read_limit(node: &Node<'_>, problems: &mut Problems) -> Result<Limit, LeftOut> {
    let keys = ["id", "namespace", "max_value", "seconds", "name", "conditions", "variables"];
    let [id, namespace, max_value, seconds, name, conditions, variables] = fields(node, keys)?;
    let namespace = required(node, "namespace", namespace)?;
    let domain = text(namespace)?;
    if domain.is_empty() || domain.contains('*') {
        let what = format!("the namespace is {domain:?}");
        return Err(LeftOut::new(namespace.line, what, "give it a name without `*`, here and in the gateway"));
    }
    let mut limit = Limit {
        line: node.line,
        namespace: Pattern::Literal(domain.to_owned()),
        keys: IndexMap::new(),
        variables: Vec::new(),
        max_value: number(required(node, "max_value", max_value)?)?,
        window: Duration::from_secs(number(required(node, "seconds", seconds)?)?),
        name: name.or(id).map_or(Ok(domain), text)?.to_owned(),
    };
    for condition in items(conditions)? {
        let source = text(condition)?;
        let added = condition::read(source).and_then(|tests| condition::require(&mut limit.keys, tests));
        added.ok_or_else(|| LeftOut::new(condition.line, format!("no rule can say {source:?}"), condition::ADVICE))?;
    }
    for variable in items(variables)? {
        let source = text(variable)?;
        let key = condition::read_key(source).ok_or_else(|| {
            let what = format!("the variable {source:?} is no key of `descriptors[0]`");
            LeftOut::new(variable.line, what, "let the gateway send the value under a key of its own")
        })?;
        limit.count_by(key);
    }
    limit.check_keys()?;
    let mut sources = items(conditions)?.iter().chain(items(variables)?);
    if let Some(old) = sources.find(|source| source.scalar().is_some_and(|source| !source.text.contains("descriptors")))
    {
        let what = "this key is not in `descriptors[0]`, so limitador 2 never applies the limit, but the rule applies";
        problems.warning(old.line, what, "check that the limit is meant to apply");
    }
    Ok(limit)
}

impl Limit {
    /// Gives each value of a key its own counter. Descriptors need the key.
    pub fn count_by(&mut self, key: String) {
        if !self.variables.contains(&key) {
            self.keys.entry(key.clone()).or_insert_with(|| vec![Pattern::Any]);
            self.variables.push(key);
        }
    }

    /// Checks that rules can have these keys.
    pub fn check_keys(&self) -> Result<(), LeftOut> {
        if self.keys.contains_key(DOMAIN) {
            let what = format!("the key {DOMAIN:?} is the domain of the request in a rule");
            return Err(LeftOut::new(self.line, what, "send the entry under another key"));
        }
        let rules = self.keys.values().fold(1_usize, |rules, patterns| rules.saturating_mul(patterns.len()));
        if rules > MAX_RULES {
            let what =
                format!("it needs {rules} rules, one for each combination of values, and {MAX_RULES} are the most");
            return Err(LeftOut::new(self.line, what, "let the gateway send one key for all of them"));
        }
        Ok(())
    }

    /// Returns the operations of its rules. No request matches two of them.
    fn operations(&self) -> Vec<Vec<(String, Pattern)>> {
        let mut operations = vec![vec![(DOMAIN.to_owned(), self.namespace.clone())]];
        for (key, patterns) in &self.keys {
            let extended = |operation: &Vec<_>| {
                let pairs = patterns.iter().map(|pattern| (key.clone(), pattern.clone()));
                pairs.map(|pair| operation.iter().cloned().chain([pair]).collect()).collect::<Vec<_>>()
            };
            operations = operations.iter().flat_map(extended).collect();
        }
        operations
    }

    /// Returns a text that is the same for limits that differ only in their number and name.
    fn identity(&self) -> String {
        let (mut keys, mut variables) = (self.keys.clone(), self.variables.clone());
        keys.sort_keys();
        variables.sort();
        format!("{:?} {keys:?} {variables:?} {:?}", self.namespace, self.window)
    }
}

/// The rules of limits that apply together.
#[derive(Debug, Default)]
pub struct Stack {
    /// The rules, in the order of their limits.
    pub rules: Vec<Rule>,
    /// The places of the limits, by their identities.
    places: HashMap<String, String>,
}

impl Stack {
    /// Adds the rules of a limit that was read from `file`.
    pub fn add(&mut self, limit: &Limit, file: &str, labels: &mut Labels, problems: &mut Problems) {
        let (line, place) = (limit.line, format!("{file}:{}", limit.line));
        let first = self.places.entry(limit.identity()).or_insert_with(|| place.clone());
        if *first != place {
            let what = format!(
                "the limit at {first} has the same conditions, variables and window, and limitador applies only that one: the limit \
                 is left out"
            );
            return problems.error(line, what, "remove one of them");
        }
        let settings =
            Settings { credit_limit: limit.max_value, reset_seconds: Seconds(limit.window), ..Settings::default() };
        let quota = match settings.quota() {
            Ok(quota) => quota,
            Err(errors) => {
                let report = |error: QuotaError| {
                    problems.error(line, format!("`{error}`: the limit is left out"), error.fix);
                };
                return errors.into_iter().for_each(report);
            }
        };
        let (operations, mut counter) = (limit.operations(), None);
        for operation in &operations {
            let label = labels.make(&limit.name);
            let mut rule = Rule::new(operation.clone(), settings, quota, line);
            if matches!(quota, Quota::Limited(_)) {
                // A pattern stands for several namespaces, and each has its own limits.
                let domain = (limit.namespace.as_str().contains('*')).then(|| DOMAIN.to_owned());
                rule.actor_fields = domain.into_iter().chain(limit.variables.iter().cloned()).collect();
                if operations.len() > 1 {
                    rule.counter = Some(counter.get_or_insert_with(|| label.clone()).clone());
                }
            }
            rule.match_policy = MatchPolicy::And;
            rule.label = Some(label);
            rule.comment = Some(place.clone());
            self.rules.push(rule);
        }
    }
}

#[cfg(test)]
pub mod tests;
