//! The key file of a running server's tokens: loads it, and logs mistakes.

use std::collections::BTreeSet;
use std::mem;
use std::path::Path;
use std::sync::Arc;

use super::access_file::{log_first, unread};
use super::rules::Reason;
use super::watch::{self, Watch};
use crate::access::{Authority, Report, TokenKeys};
use crate::audit::{Action, AuditLog, Change, State};
use crate::cli::public_file;
use crate::metrics::Metrics;

/// The key file, and the result of the last load.
#[derive(Debug)]
pub struct TokenKeyFile {
    watch: Watch,
    in_force: TokenKeys,
    /// Whether the last load failed.
    has_failed: bool,
}

impl TokenKeyFile {
    /// Loads the file at `path`. `None` if it has mistakes, which are logged.
    pub fn load(path: &Path) -> Option<Self> {
        // Watched before it is read, so that a write during the read is seen as a change.
        let watch = Watch::new(path);
        match TokenKeys::load(path) {
            Ok(in_force) => {
                public_file::log(path);
                Some(Self { watch, in_force, has_failed: false })
            }
            Err(report) => {
                log(&report);
                None
            }
        }
    }

    /// Returns the keys of the last load that succeeded.
    pub fn keys(&self) -> &TokenKeys {
        &self.in_force
    }

    /// Loads the file if it has changed.
    pub fn reload_if_changed(&mut self, authority: &Authority, audit: &Arc<AuditLog>, metrics: &Metrics) {
        if let Some(loaded) = self.watch.read_if_changed(TokenKeys::load)
            && self.watch.record_read(unread(&loaded))
        {
            self.take(loaded, authority, audit, metrics, Reason::Changed);
        }
    }

    /// Loads the file even if it has not changed, once it is not being written.
    pub fn reload(&mut self, authority: &Authority, audit: &Arc<AuditLog>, metrics: &Metrics) {
        match self.watch.read_at_rest(TokenKeys::load, watch::pause) {
            Some(loaded) => {
                self.watch.record_read(unread(&loaded));
                self.take(loaded, authority, audit, metrics, Reason::Asked);
            }
            None => {
                self.has_failed = true;
                metrics.access.access_reloads_failed.inc();
                let file = self.watch.path().display();
                tracing::error!("{file}: not loaded, because it is being written; the previous keys stay in force");
            }
        }
    }

    /// Puts the result of a load in force, or logs why it failed.
    fn take(
        &mut self,
        loaded: Result<TokenKeys, Report>,
        authority: &Authority,
        audit: &Arc<AuditLog>,
        metrics: &Metrics,
        reason: Reason,
    ) {
        let was_bad = mem::replace(&mut self.has_failed, loaded.is_err());
        let change = Change::new(Action::TokensReload).with_file(self.watch.path());
        let file = self.watch.path().display().to_string();
        let before = State::keys(self.in_force.ids().count());
        if loaded.as_ref().is_ok_and(|keys| *keys == self.in_force) {
            if was_bad || reason == Reason::Asked {
                audit.pend(reason.caller(), change).complete(Some(before.clone()), Some(before));
                tracing::info!("{file}: reloaded, unchanged");
            }
            return;
        }
        match loaded {
            Ok(keys) => {
                // A customer may lose a right, so this does not wait for the audit log, even if it is required.
                let pending = audit.begin_at_once(reason.caller(), change);
                let count = keys.ids().count();
                let previous = mem::replace(&mut self.in_force, keys.clone());
                authority.replace_token_keys(keys);
                let ids = changed(&previous, &self.in_force);
                pending.complete(Some(before), Some(State::keys(count).with_changed(ids.into_iter())));
                public_file::log(self.watch.path());
                tracing::info!(keys = count, "{file}: reloaded; the new keys are in force");
            }
            Err(report) => {
                log(&report);
                let error = report.errors.first().map(ToString::to_string).unwrap_or_default();
                audit.pend(reason.caller(), change).refuse(&error);
                self.has_failed = true;
                metrics.access.access_reloads_failed.inc();
                tracing::error!(reason = error, "{file}: not loaded; the previous keys stay in force");
            }
        }
    }
}

/// Returns the ids of keys that are only in one of the files, in order.
fn changed<'a>(before: &'a TokenKeys, after: &'a TokenKeys) -> Vec<&'a str> {
    let (before, after): (BTreeSet<_>, BTreeSet<_>) = (before.ids().collect(), after.ids().collect());
    before.symmetric_difference(&after).copied().collect()
}

/// Logs the first mistakes, each on its own line.
fn log(report: &Report) {
    log_first(&report.errors, |problem| tracing::error!("{problem}"));
}

#[cfg(test)]
mod tests;
