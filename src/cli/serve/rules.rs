//! The sources of a running server's rules on disk: the rules file, and ratelimit's configuration. Each is loaded again when it has
//! changed.

use std::mem;
use std::path::Path;
use std::sync::{Arc, Weak};

use super::in_force::{Load, Part, RulesInForce};
use super::watch::{Reason, Watch, log_problems};
use divvy_access::audit::AuditLog;
use divvy_core::config::ratelimit::files::{self, DomainFiles};
use divvy_core::config::ratelimit::model::Domains;
use divvy_core::config::{self, Loaded, Report, Serving};
use divvy_core::rules::{RuleSet, Spellings};
use divvy_limiter::{CounterNames, Limiter};

/// The rules file, and the result of the last load.
#[derive(Debug)]
pub struct RulesFile {
    watch: Watch,
    serving: Serving,
    /// Whether the last load failed.
    has_failed: bool,
}

impl RulesFile {
    /// Loads the file at `path`. `names` determines how the counters are named, and `spellings` which values checks
    /// normalize. Returns `None` if the file has errors, which are logged.
    pub fn load(path: &Path, names: CounterNames, spellings: Spellings) -> Option<(Self, RuleSet)> {
        let serving = Serving { redis_cluster: names == CounterNames::InSlots, spellings };
        let mut file = Self { watch: Watch::new(path), serving, has_failed: false };
        let loaded = file.read(Reason::Asked)?;
        log_problems(&loaded, |loaded| &loaded.warnings);
        Some((file, loaded.ok()?.rules))
    }

    fn read(&mut self, reason: Reason) -> Option<Result<Loaded, Report>> {
        self.watch.load(reason, |path| config::load_for(path, &self.serving), |loaded| &loaded.lists)
    }

    /// Loads the file if it has changed, or if an operator asks for it. Puts the result in force, or logs why it failed. A load
    /// that the audit log refuses is not tried again until the file changes, or an operator asks for it.
    pub fn reload(&mut self, reason: Reason, rules: &RulesInForce, limiter: &Weak<Limiter>, audit: &Arc<AuditLog>) {
        let Some(loaded) = self.read(reason) else { return };
        let loaded = loaded.map(|loaded| (Part::File(loaded.rules), loaded.warnings));
        put(&self.watch, &mut self.has_failed, (reason, false), |load| rules.replace(load, loaded, limiter, audit));
    }
}

/// Ratelimit's configuration: a file, or all files in a directory.
#[derive(Debug)]
pub struct RatelimitFiles {
    watch: Watch,
    /// Whether descriptors of a domain may be in several documents.
    merges: bool,
    /// Whether the last load failed.
    has_failed: bool,
}

impl RatelimitFiles {
    /// Loads the file or the directory at `path`. Returns `None` if it has errors, which are logged.
    pub fn load(path: &Path, merges: bool) -> Option<(Self, Domains)> {
        let mut files = Self { watch: Watch::new(path), merges, has_failed: false };
        let loaded = files.read(Reason::Asked)?;
        log_problems(&loaded, |loaded| &loaded.warnings);
        Some((files, loaded.ok()?.domains))
    }

    fn read(&mut self, reason: Reason) -> Option<Result<DomainFiles, Report>> {
        self.watch.load(reason, |path| files::load(path, self.merges), |loaded| &loaded.paths)
    }

    /// Loads the files if they have changed, or if an operator asks for it. See [`RulesFile::reload`].
    pub fn reload(&mut self, reason: Reason, rules: &RulesInForce, limiter: &Weak<Limiter>, audit: &Arc<AuditLog>) {
        let Some(loaded) = self.read(reason) else { return };
        let loaded = loaded.map(|loaded| (Part::Domains(loaded.domains), loaded.warnings));
        put(&self.watch, &mut self.has_failed, (reason, true), |load| rules.replace(load, loaded, limiter, audit));
    }
}

/// Puts a load of the watched file in force with `replace`. The reason comes with whether the file is ratelimit's.
fn put(
    watch: &Watch,
    has_failed: &mut bool,
    (reason, is_ratelimit): (Reason, bool),
    replace: impl FnOnce(&Load<'_>) -> Result<(), Report>,
) {
    let was_bad = mem::replace(has_failed, false);
    let is_asked = was_bad || reason == Reason::Asked;
    let (source, caller) = (&watch.path.display(), reason.caller());
    *has_failed = replace(&Load { source, caller, is_ratelimit, is_asked }).is_err();
}

#[cfg(test)]
mod tests;
