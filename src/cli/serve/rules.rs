//! The rules file of a running server: loads it, and logs the changes.

use std::fmt::Display;
use std::mem;
use std::path::{self, Path};
use std::sync::{Arc, Weak};

use tokio::runtime::Handle;

use super::watch::{Reason, Watch, log_problems};
use divvy_access::audit::{self, Action, AuditLog, State};
use divvy_core::clock::Timestamp;
use divvy_core::config::{self, Loaded, Report, Serving};
use divvy_core::rules::diff::{Change, CounterChange, diff, find_abandoned};
use divvy_core::rules::{RuleSet, Spellings};
use divvy_limiter::exceptions::ExceptionKind;
use divvy_limiter::{ActiveRules, CounterNames, Limiter};
use divvy_server::{RecentReloads, RulesReload};
use divvy_telemetry::metrics::Metrics;

/// Maximum number of changes that are logged individually at a load. The summary counts all of them.
const MAX_LOGGED_CHANGES: usize = 1_000;
/// Number of a rule's abandoned counters after which no more are counted.
const MAX_COUNTED: usize = 100_000;

/// The rules file, and the result of the last load.
#[derive(Debug)]
pub struct RulesFile {
    watch: Watch,
    names: CounterNames,
    serving: Serving,
    /// Whether the last load failed.
    has_failed: bool,
    /// Reloads for the live page.
    pub reloads: Option<Arc<RecentReloads>>,
    /// Counts abandoned counters, which takes longer than a reload. Without it, they are not counted.
    pub runtime: Option<Handle>,
}

impl RulesFile {
    /// Loads the file at `path`. `names` determines how the counters are named, and `spellings` which values checks
    /// normalize. Returns `None` if the file has errors, which are logged.
    pub fn load(path: &Path, names: CounterNames, spellings: Spellings) -> Option<(Self, RuleSet)> {
        let serving = Serving { redis_cluster: names == CounterNames::InSlots, spellings };
        let mut file =
            Self { watch: Watch::new(path), names, serving, has_failed: false, reloads: None, runtime: None };
        let loaded = file.read(Reason::Asked)?;
        log_problems(&loaded, |loaded| &loaded.warnings);
        let rules = loaded.ok()?.rules;
        log_rules(&rules);
        Some((file, rules))
    }

    /// Returns the policy for these rules, and publishes them in the metrics.
    pub fn put_in_force(&self, rules: RuleSet, metrics: &Metrics, now: Timestamp) -> ActiveRules {
        let hash = config::fingerprint(rules.rules());
        metrics.config.loaded(&hash, rules.rules().len(), now.as_nanos());
        ActiveRules::new(rules, metrics, self.names)
    }

    fn read(&mut self, reason: Reason) -> Option<Result<Loaded, Report>> {
        self.watch.load(reason, |path| config::load_for(path, &self.serving), |loaded| &loaded.lists)
    }

    /// Loads the file if it has changed, or if an operator asks for it. Puts the result in force, or logs why it failed. A load
    /// that the audit log refuses is not tried again until the file changes, or an operator asks for it.
    pub fn reload(&mut self, reason: Reason, limiter: &Weak<Limiter>, audit: &Arc<AuditLog>) {
        let Some(loaded) = self.read(reason) else { return };
        // The limiter is gone if the server has stopped.
        let Some(limiter) = limiter.upgrade() else { return };
        let Some(before) = limiter.active_rules() else { return };
        let was_bad = mem::replace(&mut self.has_failed, loaded.is_err());
        let change = || audit::Change::new(Action::RulesReload).with("file", self.watch.path.to_string_lossy());
        let file = self.watch.path.display();
        if loaded.as_ref().is_ok_and(|loaded| loaded.rules.rules() == before.rules().rules()) {
            limiter.metrics().config.confirmed(limiter.now().as_nanos());
            if was_bad || reason == Reason::Asked {
                let state = Some(describe(before.rules()));
                audit.begin_unconditionally(reason.caller(), change()).complete(state.clone(), state);
                self.show(RulesReload::succeeded(limiter.now().as_secs(), ["unchanged"].iter()));
                tracing::info!("{file}: reloaded, unchanged");
            }
            return;
        }
        log_problems(&loaded, |loaded| &loaded.warnings);
        let rules = match loaded {
            Ok(Loaded { rules, .. }) => rules,
            Err(report) => {
                let first = report.errors.first().map(ToString::to_string).unwrap_or_default();
                audit.begin_unconditionally(reason.caller(), change()).refuse(first);
                self.refuse(&limiter, &report.errors);
                return tracing::error!("{file}: not loaded; the previous rules stay in force");
            }
        };
        let pending = match audit.begin_blocking(reason.caller(), change()) {
            Ok(pending) => pending,
            Err(error) => {
                self.refuse(&limiter, &[&error]);
                tracing::error!("{file}: not loaded; the previous rules stay in force: {error}");
                self.has_failed = true;
                return;
            }
        };
        limiter.replace_rules(self.put_in_force(rules, limiter.metrics(), limiter.now()));
        let Some(now) = limiter.active_rules() else { return };
        pending.complete(Some(describe(before.rules())), Some(describe(now.rules())));
        let differences = diff(before.rules().rules(), now.rules().rules(), |rule| self.names.are_apart(rule));
        log_changes(&file, &differences);
        let abandoned = find_abandoned(before.rules().rules(), now.rules().rules(), |rule| self.names.are_apart(rule));
        if let Some(runtime) = self.runtime.as_ref().filter(|_| !abandoned.is_empty()) {
            let (limiter, file) = (Arc::downgrade(&limiter), file.to_string());
            runtime.spawn(warn_of_abandoned(limiter, Arc::clone(&before), abandoned, file));
        }
        self.show(RulesReload::succeeded(limiter.now().as_secs(), differences.iter().map(with_sign)));
        let orphaned = limiter.orphaned_exceptions(ExceptionKind::Limit);
        if orphaned > 0 {
            tracing::warn!(
                orphaned,
                "{file}: some limits of single actors are not in force: no rule that counts has their label; `divvy limit \
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
async fn warn_of_abandoned(limiter: Weak<Limiter>, before: Arc<ActiveRules>, abandoned: Vec<usize>, file: String) {
    for index in abandoned.into_iter().take(MAX_LOGGED_CHANGES) {
        // The limiter is gone if the server has stopped.
        let (Some(limiter), Some(rule)) = (limiter.upgrade(), before.rules().rules().get(index)) else { return };
        match limiter.counters_in_use(&before, index, MAX_COUNTED).await {
            Ok(0) => {}
            Ok(counters) => tracing::warn!(
                counters,
                at_least = counters >= MAX_COUNTED,
                "{file}: the usage under [{rule}] is abandoned, and its actors start afresh; `counter = {}` in a rule keeps what \
                 they used when its limit changes",
                rule.counter_name()
            ),
            Err(error) => {
                tracing::warn!(%error, "{file}: the usage under [{rule}] is abandoned; its counters cannot be counted");
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
fn log_changes(file: &path::Display<'_>, changes: &[Change<'_>]) {
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
        "{file}: reloaded; the new rules are in force"
    );
    for change in changes.iter().take(MAX_LOGGED_CHANGES) {
        tracing::info!("{file}: {change}");
    }
    if let Some(more) = changes.len().checked_sub(MAX_LOGGED_CHANGES).filter(|more| *more > 0) {
        tracing::info!("{file}: and {more} more changes");
    }
}

/// Logs the rules in force at debug level (`DEBUG=divvy`).
fn log_rules(rules: &RuleSet) {
    for rule in rules.rules() {
        let (label, comment) = (rule.label.as_deref(), rule.comment.as_deref());
        tracing::debug!(label, comment, "line {}: [{rule}] {}", rule.line, rule.summary());
    }
}

#[cfg(test)]
mod tests;
