//! Restarts of the tasks that the process depends on.

use prometheus::IntCounter;

use super::registry::Registry;

/// The number of restarts of each task.
pub struct Tasks {
    restarts: [IntCounter; Task::ALL.len()],
}

/// A task that runs as long as the process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// Accepts connections. Each front has one.
    Accept,
    /// Reloads the users and the keys of tokens.
    Access,
    /// Follows the decisions of a CrowdSec server.
    Crowdsec,
    /// Keeps the limits of single actors up to date.
    Limits,
    /// Samples the counts of the rules for the live page.
    Page,
    /// Counts denials, and blocks actors that a rule keeps denying.
    Penalties,
    /// Checks whether the store can answer hits.
    Probe,
    /// Reloads the rules.
    Rules,
    /// Keeps the key for reservation ids up to date.
    Seal,
    /// Waits for the signals that end the process.
    Signals,
    /// Reloads the TLS files.
    Tls,
}

impl Task {
    const ALL: [Self; 11] = [
        Self::Accept,
        Self::Access,
        Self::Crowdsec,
        Self::Limits,
        Self::Page,
        Self::Penalties,
        Self::Probe,
        Self::Rules,
        Self::Seal,
        Self::Signals,
        Self::Tls,
    ];

    /// Returns the label of the metric.
    pub fn name(self) -> &'static str {
        match self {
            Self::Accept => "accept",
            Self::Access => "access",
            Self::Crowdsec => "crowdsec",
            Self::Limits => "limits",
            Self::Page => "page",
            Self::Penalties => "penalties",
            Self::Probe => "probe",
            Self::Rules => "rules",
            Self::Seal => "seal",
            Self::Signals => "signals",
            Self::Tls => "tls",
        }
    }
}

impl Tasks {
    pub(super) fn new(registry: &Registry) -> Self {
        let help = "Restarts of background tasks after a bug in divvy.";
        let by_task = registry.counters("divvy_task_restarts_total", help, &["task"]);
        Self { restarts: Task::ALL.map(|task| by_task.with_label_values(&[task.name()])) }
    }

    /// Counts a restart of this task.
    pub fn count_restart(&self, task: Task) {
        // The counters are in the order of declaration.
        if let Some(restarts) = self.restarts.get(task as usize) {
            restarts.inc();
        }
    }
}
