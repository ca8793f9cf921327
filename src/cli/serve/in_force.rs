//! The rules in force on a running server: its rules file's, and ratelimit's domains. Each source replaces its part, and
//! the change is audited, logged and shown.

use std::collections::HashSet;
use std::fmt::Display;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::runtime::Handle;

use super::watch::log_problems;
use divvy_access::audit::{self, Action, AuditLog, Caller, State};
use divvy_core::clock::Timestamp;
use divvy_core::config::ratelimit::compile::compile;
use divvy_core::config::ratelimit::model::Domains;
use divvy_core::config::ratelimit::options::Options;
use divvy_core::config::{self, Problem, Report};
use divvy_core::rules::diff::{Change, CounterChange, diff, find_abandoned};
use divvy_core::rules::{RuleSet, RuleSetError};
use divvy_limiter::exceptions::ExceptionKind;
use divvy_limiter::{ActiveRules, CounterNames, Limiter};
use divvy_server::{RecentReloads, RulesReload};
use divvy_telemetry::metrics::Metrics;

/// Maximum number of changes that are logged individually at a load. The summary counts all of them.
const MAX_LOGGED_CHANGES: usize = 1_000;
/// Number of a rule's abandoned counters after which no more are counted.
const MAX_COUNTED: usize = 100_000;

/// Puts rules in force.
#[derive(Debug)]
pub struct RulesInForce {
    names: CounterNames,
    options: Arc<Options>,
    /// Ratelimit's domains in force. The lock is held while rules are replaced, so that no source undoes the change of another.
    domains: Mutex<Domains>,
    /// Reloads for the live page.
    reloads: Option<Arc<RecentReloads>>,
    /// Counts abandoned counters, which takes longer than a reload.
    runtime: Handle,
}

/// The part of the rules that a source replaces.
#[derive(Debug)]
pub enum Part {
    /// The rules of the file.
    File(RuleSet),
    /// All of ratelimit's domains.
    Domains(Domains),
}

/// A load of a source.
pub struct Load<'a> {
    /// The file, the directory or the server.
    pub source: &'a dyn Display,
    pub caller: Caller,
    /// Whether it is ratelimit's configuration.
    pub is_ratelimit: bool,
    /// Whether the load is news even if nothing has changed.
    pub is_asked: bool,
}

impl RulesInForce {
    /// Creates it with the first `domains`. `names` determines how the counters are named.
    pub fn new(
        names: CounterNames,
        options: Arc<Options>,
        domains: Domains,
        reloads: Option<Arc<RecentReloads>>,
        runtime: Handle,
    ) -> Self {
        Self { names, options, domains: Mutex::new(domains), reloads, runtime }
    }

    /// Returns the policy of a server that starts with the rules of this file, and publishes it in the metrics.
    ///
    /// # Errors
    /// There are too many rules.
    pub fn first(&self, file: RuleSet, metrics: &Metrics, now: Timestamp) -> Result<ActiveRules, RuleSetError> {
        let domains = compile(&self.domains.lock(), &self.options, &file)?;
        let rules = file.with_domains(domains)?;
        if rules.domains().is_some() {
            metrics.ratelimit.config_loaded(true);
        }
        log_rules(&rules);
        Ok(self.activate(rules, metrics, now))
    }

    fn activate(&self, rules: RuleSet, metrics: &Metrics, now: Timestamp) -> ActiveRules {
        let hash = config::fingerprint(rules.rules());
        metrics.config.loaded(&hash, rules.rules().len(), now.as_nanos());
        ActiveRules::new(rules, metrics, self.names)
    }

    /// Puts what a source has loaded in force, or logs why it was refused. The warnings are about what was loaded.
    ///
    /// # Errors
    /// It has errors, or the audit log refuses the change. The previous rules stay in force.
    pub fn replace(
        &self,
        load: &Load<'_>,
        loaded: Result<(Part, Vec<Problem>), Report>,
        limiter: &Weak<Limiter>,
        audit: &Arc<AuditLog>,
    ) -> Result<(), Report> {
        // The limiter is gone if the server has stopped.
        let Some(limiter) = limiter.upgrade() else { return Ok(()) };
        let mut domains = self.domains.lock();
        let Some(before) = limiter.active_rules() else { return Ok(()) };
        let source = load.source;
        let change = || audit::Change::new(Action::RulesReload).with("file", source.to_string());
        if load.is_ratelimit {
            limiter.metrics().ratelimit.config_loaded(loaded.is_ok());
        }
        let loaded = loaded.and_then(|(part, warnings)| {
            let replaced = self.combine(part, &domains, before.rules());
            replaced.map(|replaced| (replaced, warnings)).map_err(|error| Report::of(source, &error))
        });
        if let Ok(((rules, _), _)) = &loaded
            && rules.is_same(before.rules())
        {
            limiter.metrics().config.confirmed(limiter.now().as_nanos());
            if load.is_asked {
                let state = Some(describe(before.rules()));
                audit.begin_unconditionally(load.caller.clone(), change()).complete(state.clone(), state);
                self.show(RulesReload::succeeded(limiter.now().as_secs(), ["unchanged"].iter()));
                tracing::info!("{source}: reloaded, unchanged");
            }
            return Ok(());
        }
        log_problems(&loaded, |(_, warnings)| warnings);
        let (rules, replacement) = match loaded {
            Ok((replaced, _)) => replaced,
            Err(report) => {
                let first = report.errors.first().map(ToString::to_string).unwrap_or_default();
                audit.begin_unconditionally(load.caller.clone(), change()).refuse(first);
                self.refuse(&limiter, &report.errors);
                tracing::error!("{source}: not loaded; the previous rules stay in force");
                return Err(report);
            }
        };
        let pending = audit.begin_blocking(load.caller.clone(), change()).map_err(|error| {
            self.refuse(&limiter, &[&error]);
            tracing::error!("{source}: not loaded; the previous rules stay in force: {error}");
            Report::of(source, &error)
        })?;
        limiter.replace_rules(self.activate(rules, limiter.metrics(), limiter.now()));
        if let Some(replacement) = replacement {
            *domains = replacement;
        }
        drop(domains);
        let Some(now) = limiter.active_rules() else { return Ok(()) };
        pending.complete(Some(describe(before.rules())), Some(describe(now.rules())));
        self.report(source, &limiter, &before, &now);
        Ok(())
    }

    /// Returns the rules with the replaced part, and the domains that are then in force if they are others.
    fn combine(
        &self,
        part: Part,
        domains: &Domains,
        before: &RuleSet,
    ) -> Result<(RuleSet, Option<Domains>), RuleSetError> {
        match part {
            Part::File(file) => {
                let domains = compile(domains, &self.options, &file)?;
                Ok((file.with_domains(domains)?, None))
            }
            Part::Domains(domains) => {
                let rules = before.replace_domains(compile(&domains, &self.options, before)?)?;
                Ok((rules, Some(domains)))
            }
        }
    }

    /// Logs and shows what has changed.
    fn report(&self, source: &dyn Display, limiter: &Arc<Limiter>, before: &Arc<ActiveRules>, now: &ActiveRules) {
        let (old, new) = (before.rules().rules(), now.rules().rules());
        let differences = diff(old, new, |rule| self.names.are_apart(rule));
        log_changes(source, &differences);
        let abandoned = find_abandoned(old, new, |rule| self.names.are_apart(rule));
        if !abandoned.is_empty() {
            let source = source.to_string();
            self.runtime.spawn(warn_of_abandoned(Arc::downgrade(limiter), Arc::clone(before), abandoned, source));
        }
        self.show(RulesReload::succeeded(limiter.now().as_secs(), differences.iter().map(with_sign)));
        let orphaned = limiter.orphaned_exceptions(ExceptionKind::Limit);
        if orphaned > 0 {
            tracing::warn!(
                orphaned,
                "{source}: some limits of single actors are not in force: no rule that counts has their label; `divvy limit \
                 list` shows them"
            );
        }
        log_rules(now.rules());
    }

    /// Counts and shows that the previous rules stay in force for these reasons.
    fn refuse(&self, limiter: &Limiter, reasons: &[impl Display]) {
        limiter.metrics().config.refused(limiter.now().as_nanos());
        self.show(RulesReload::refused(limiter.now().as_secs(), reasons.iter()));
    }

    /// Shows a reload on the live page.
    fn show(&self, reload: RulesReload) {
        if let Some(reloads) = &self.reloads {
            reload.add_to(reloads);
        }
    }
}

/// Warns of each rule that had counters in use which no rule uses anymore.
async fn warn_of_abandoned(limiter: Weak<Limiter>, before: Arc<ActiveRules>, abandoned: Vec<usize>, source: String) {
    let mut counted = HashSet::new();
    for index in abandoned.into_iter().take(MAX_LOGGED_CHANGES) {
        // The limiter is gone if the server has stopped.
        let (Some(limiter), Some(rule)) = (limiter.upgrade(), before.rules().rules().get(index)) else { return };
        // Rules may share their counters.
        if !counted.insert(rule.identity()) {
            continue;
        }
        match limiter.counters_in_use(&before, index, MAX_COUNTED).await {
            Ok(0) => {}
            Ok(counters) => {
                let advice = match rule.counter {
                    Some(_) => String::new(),
                    None => format!(
                        "; `counter = {}` in a rule keeps what they used when its limit changes",
                        rule.counter_name()
                    ),
                };
                tracing::warn!(
                    counters,
                    at_least = counters >= MAX_COUNTED,
                    "{source}: the usage under [{rule}] is abandoned, and its actors start afresh{advice}"
                );
            }
            Err(error) => {
                tracing::warn!(%error, "{source}: the usage under [{rule}] is abandoned; its counters cannot be counted");
            }
        }
    }
}

/// Returns a change with a sign, as the lines of a difference have: `+` for a new rule, `-` for a removed one.
fn with_sign(change: &Change<'_>) -> String {
    match change {
        Change::Added { .. } => format!("+ {change}"),
        Change::Removed(_) => format!("- {change}"),
        Change::Changed { .. } | Change::Moved(_) => change.to_string(),
    }
}

fn describe(rules: &RuleSet) -> State {
    State::of("rules", rules.rules().len()).with("hash", config::fingerprint(rules.rules()))
}

/// Logs a summary, then a line for each change.
fn log_changes(source: &dyn Display, changes: &[Change<'_>]) {
    let count = |kind: fn(&Change<'_>) -> bool| changes.iter().filter(|change| kind(change)).count();
    tracing::info!(
        added = count(|change| matches!(change, Change::Added { .. })),
        removed = count(|change| matches!(change, Change::Removed(_))),
        changed = count(|change| matches!(change, Change::Changed { .. })),
        start_afresh = count(|change| {
            let Change::Changed { counters, .. } = change else { return false };
            matches!(counters, CounterChange::Reset | CounterChange::KeptForSameValues)
        }),
        moved = count(|change| matches!(change, Change::Moved(_))),
        "{source}: reloaded; the new rules are in force"
    );
    for change in changes.iter().take(MAX_LOGGED_CHANGES) {
        tracing::info!("{source}: {change}");
    }
    if let Some(more) = changes.len().checked_sub(MAX_LOGGED_CHANGES).filter(|more| *more > 0) {
        tracing::info!("{source}: and {more} more changes");
    }
}

/// Logs the rules in force at debug level (`DEBUG=divvy`).
fn log_rules(rules: &RuleSet) {
    for rule in rules.rules() {
        let (label, comment) = (rule.label.as_deref(), rule.comment.as_deref());
        tracing::debug!(label, comment, "line {}: [{rule}] {}", rule.line, rule.summary());
    }
}
