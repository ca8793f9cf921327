//! Compiles domains into the rules that serve them: for each limit a rule, which the domain's tree finds.
//!
//! A rule counts by all entries of a descriptor, in windows of the clock, and also what it denies. All rules of a domain with the
//! same unit share their counters, so that a changed limit, or a limit for a single value, continues the count.

use std::sync::Arc;

use super::entries::settings;
use super::model::{Domain, Domains, Entry, Limit, Rate};
use super::options::Options;
use crate::calendar::Unit;
use crate::config::labels::Labels;
use crate::rules::descriptor::{DescriptorKind, DescriptorLevel, DescriptorNode};
use crate::rules::operation::DOMAIN;
use crate::rules::{Descriptor, DescriptorRules, Overrun, Pattern, Quota, Rule, RuleSet, RuleSetError, Settings};

/// Returns the rules of all domains, whose labels differ from those in `file`.
///
/// # Errors
/// There are too many rules or patterns.
pub fn compile(domains: &Domains, options: &Options, file: &RuleSet) -> Result<DescriptorRules, RuleSetError> {
    let mut rules = DescriptorRules::default();
    rules.near_limit_ratio = options.near_limit_ratio;
    let mut labels = Labels::default();
    file.file_rules().iter().filter_map(|rule| rule.label.as_deref()).for_each(|label| labels.reserve(label));
    for domain in domains.iter() {
        let mut compiler = Compiler { domain, options, labels: &mut labels, path: Vec::new() };
        let nodes = compiler.nodes(&domain.entries);
        rules.add(&domain.name, nodes, compiler.no_limit())?;
    }
    Ok(rules)
}

/// Returns the rules of a server that has only these domains. All other requests are allowed.
///
/// # Errors
/// There are too many rules or patterns.
pub fn compile_alone(domains: &Domains, options: &Options) -> Result<RuleSet, RuleSetError> {
    let file = without_file()?;
    let domains = compile(domains, options, &file)?;
    file.with_domains(domains)
}

/// Returns the rules of a server without a rules file, which deny nothing.
///
/// # Errors
/// None: one rule can be compiled.
pub fn without_file() -> Result<RuleSet, RuleSetError> {
    RuleSet::new(vec![unlimited(Vec::new(), 1)])
}

fn unlimited(operation: Vec<(String, Pattern)>, line: usize) -> Rule {
    let settings = Settings::unlimited();
    Rule::new(operation, settings, settings.quota().unwrap_or_default(), line)
}

/// Returns the name of the counters of a domain's limits with this unit.
pub fn counter_name(options: &Options, domain: &str, unit: Unit) -> String {
    format!("{}{domain}/{}", options.key_prefix, unit.name())
}

struct Compiler<'a> {
    domain: &'a Domain,
    options: &'a Options,
    labels: &'a mut Labels,
    /// The entries on the path to the current one.
    path: Vec<&'a Entry>,
}

impl<'a> Compiler<'a> {
    fn nodes(&mut self, entries: &'a [Entry]) -> Vec<DescriptorNode> {
        let mut nodes = Vec::with_capacity(entries.len());
        for entry in entries {
            self.path.push(entry);
            let limit = entry.limit.as_ref().map(|limit| self.rule(entry, limit));
            nodes.push(DescriptorNode { name: entry.name(), limit, nodes: self.nodes(&entry.entries) });
            self.path.pop();
        }
        nodes
    }

    fn rule(&mut self, entry: &Entry, limit: &Limit) -> Rule {
        let names: Vec<_> = self.path.iter().map(|entry| entry.name()).collect();
        let full_key = names.join(".");
        let settings = settings(limit);
        // A number of 32 bits and a unit are valid in every setting.
        let quota = match settings.quota().unwrap_or(Quota::Never) {
            // Nothing is left, and nothing is denied.
            Quota::Never if limit.shadow_mode => Quota::Always { credit: 0 },
            quota => quota,
        };
        let overrun = if limit.shadow_mode { Overrun::Annotate } else { Overrun::Count };
        let overrun = if matches!(quota, Quota::Limited(_)) { overrun } else { Overrun::Refuse };
        let label = if limit.name.value.is_empty() {
            self.labels.make(&format!("{}.{full_key}", self.domain.name))
        } else {
            self.labels.make(&limit.name.value)
        };
        let mut actor_fields: Vec<String> = Vec::new();
        for entry in self.path.iter().filter(|_| matches!(quota, Quota::Limited(_))) {
            if !actor_fields.contains(&entry.key) {
                actor_fields.push(entry.key.clone());
            }
        }
        let counter = settings.calendar.map(|calendar| counter_name(self.options, &self.domain.name, calendar.unit()));
        let descriptor = Descriptor {
            domain: self.domain.name.clone(),
            full_key,
            name: limit.name.value.clone(),
            replaces: limit.replaces.iter().map(|name| name.value.clone()).collect(),
            kind: if limit.rate == Rate::Unlimited { DescriptorKind::Unlimited } else { DescriptorKind::Limit },
            is_quota: limit.quota_mode.value,
            is_shadow: limit.shadow_mode,
            metadata: limit.metadata.as_ref().map(|metadata| metadata.value.clone()).unwrap_or_default(),
            is_detailed: entry.detailed_metric.value,
            levels: self.path.iter().map(|entry| level(entry)).collect(),
        };
        let mut operation = self.domain_pair();
        let pattern = |entry: &&Entry| (entry.key.clone(), entry.value.as_deref().map_or(Pattern::Any, Pattern::parse));
        operation.extend(self.path.iter().map(pattern));
        Rule {
            overrun,
            actor_fields,
            counter: counter.filter(|_| matches!(quota, Quota::Limited(_))),
            label: Some(label),
            comment: Some(entry.place.to_string()),
            descriptor: Some(Arc::new(descriptor)),
            ..Rule::new(operation, settings, quota, entry.place.line)
        }
    }

    /// Returns the rule for descriptors without a limit.
    fn no_limit(&mut self) -> Rule {
        let label = self.labels.make(&self.domain.name);
        let comment = self.domain.place.to_string();
        let rule = unlimited(self.domain_pair(), self.domain.place.line);
        let descriptor = Descriptor { kind: DescriptorKind::Nothing, ..Descriptor::default() };
        Rule { label: Some(label), comment: Some(comment), descriptor: Some(Arc::new(descriptor)), ..rule }
    }

    fn domain_pair(&self) -> Vec<(String, Pattern)> {
        vec![(DOMAIN.to_owned(), Pattern::Literal(self.domain.name.clone()))]
    }
}

fn level(entry: &Entry) -> DescriptorLevel {
    // A pattern in the key matches other keys, too, and stands for the whole name.
    let pattern = if entry.key.contains('*') { entry.name() } else { entry.value.clone().unwrap_or_default() };
    let shared = Some(pattern).filter(|pattern| entry.share_threshold && pattern.contains('*'));
    DescriptorLevel { shared, name: entry.name(), shows_value: entry.value_to_metric.value }
}
