//! Flags for the audit log.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::audit::AuditLog;
use crate::clock::Clock;
use crate::metrics::Metrics;

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Metrics and logs")]
pub struct AuditArgs {
    /// File for the lines about changes by operators, one JSON object each. Without it, they are in the log
    #[arg(long, value_name = "FILE")]
    audit_log: Option<PathBuf>,
    /// Whether operators can change something while the audit log cannot be written
    #[arg(long, value_enum, default_value_t = Need::Optional, requires_if("required", "audit_log"))]
    audit: Need,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Need {
    /// They can, and the lost lines are counted
    Optional,
    /// They cannot. Each change waits until a line about it is on disk. Needs --audit-log
    Required,
}

/// How often refused attempts without a line are reported.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Reports refused attempts that have no line, a second after the last one, until `draining` is cancelled.
pub fn report_omitted(audit: Arc<AuditLog>, clock: Clock, draining: CancellationToken) {
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval(REPORT_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => audit.report_omitted(clock.now()),
                () = draining.cancelled() => return,
            }
        }
    });
}

impl AuditArgs {
    /// Starts the audit log. A file that cannot be written is reported, and does not stop the server.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn start(&self, clock: Clock, metrics: &Arc<Metrics>) -> anyhow::Result<Arc<AuditLog>> {
        let metrics = Arc::clone(metrics);
        match &self.audit_log {
            None => Ok(AuditLog::in_log(clock, metrics)),
            Some(path) => {
                let is_required = self.audit == Need::Required;
                AuditLog::in_file(path.clone(), is_required, clock, metrics).context("cannot start a thread")
            }
        }
    }
}
