//! Reloads the rules and the users of a running server when their files change, and on SIGHUP.
//!
//! A separate thread loads and validates a whole file, so that no request waits. All later batches then use the new
//! rules, and all later requests have the new users. If a file has an error, its previous content stays in force.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::notify;
use super::rules::RulesFile;
use super::watched_access::WatchedAccess;
use crate::audit::AuditLog;
use crate::cli::units::{self, MAX_SECONDS, Time};
use crate::limiter::Limiter;
use crate::metrics::{Metrics, Task};
use crate::server::{keep_running, survive};

/// Default interval for checking the files.
const DEFAULT_INTERVAL: Time = Time(Duration::from_secs(1));

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Rules")]
pub struct ReloadArgs {
    /// How often to check the rules file with its lists, the access file, the token key file and the TLS files; divvy reloads those that changed. 0: reload only on SIGHUP
    #[arg(long, env = "DIVVY_RELOAD_INTERVAL", value_name = "SECONDS", default_value_t = DEFAULT_INTERVAL,
          value_parser = units::seconds(0..=MAX_SECONDS))]
    reload_interval: Time,
}

/// Starts to handle SIGHUP, which would otherwise end the process.
///
/// # Errors
/// The system refuses it.
pub fn hangups() -> anyhow::Result<Signal> {
    signal(SignalKind::hangup()).context("cannot listen to SIGHUP")
}

impl ReloadArgs {
    /// Returns the interval for checking the files; `None` if only SIGHUP reloads them.
    pub fn interval(&self) -> Option<Duration> {
        Some(self.reload_interval.0).filter(|interval| !interval.is_zero())
    }

    /// Keeps the limiter's rules and the users up to date with these files until `draining` is cancelled. Reloads are
    /// recorded in `audit`.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn start(
        &self,
        rules: Option<RulesFile>,
        access: Option<WatchedAccess>,
        limiter: &Arc<Limiter>,
        audit: &Arc<AuditLog>,
        hangups: Signal,
        draining: CancellationToken,
    ) -> anyhow::Result<()> {
        let metrics = Arc::clone(limiter.metrics());
        let (ask, asked) = mpsc::channel();
        let ask = (rules.is_some() || access.is_some()).then_some(ask);
        if ask.is_some() {
            let interval = self.interval();
            // These are weak, because the thread may hang while it reads from a network file system, and must not keep
            // the store open.
            let (limiter, metrics) = (Arc::downgrade(limiter), Arc::clone(&metrics));
            let audit = Arc::clone(audit);
            let mut files = Files { rules, access, limiter, audit };
            let run = move || keep_loaded(&mut files, &metrics, &asked, interval);
            thread::Builder::new().name("divvy-reload".into()).spawn(run).context("cannot start a thread")?;
        }
        let hangups = Arc::new(Mutex::new(hangups));
        tokio::spawn(async move {
            let forward_hangups = || forward_hangups(Arc::clone(&hangups), ask.clone());
            tokio::select! {
                () = keep_running(Task::Rules, &metrics, forward_hangups) => {}
                () = draining.cancelled() => {}
            }
        });
        Ok(())
    }
}

/// Passes each SIGHUP on to the loading thread, if there is one. Ends with that thread.
async fn forward_hangups(hangups: Arc<Mutex<Signal>>, ask: Option<Sender<()>>) {
    let mut hangups = hangups.lock().await;
    while hangups.recv().await.is_some() {
        match &ask {
            Some(ask) if ask.send(()).is_ok() => {}
            Some(_) => tracing::error!("SIGHUP: cannot reload the rules: the reload thread has ended"),
            None => {
                notify::reloading();
                notify::ready();
                tracing::info!("SIGHUP: there is no rules file to reload; the server was started without CONFIG");
            }
        }
    }
}

/// The files that are kept loaded.
struct Files {
    rules: Option<RulesFile>,
    access: Option<WatchedAccess>,
    limiter: Weak<Limiter>,
    audit: Arc<AuditLog>,
}

impl Files {
    /// Loads the files that have changed.
    fn reload_if_changed(&mut self, metrics: &Metrics) {
        // First: a user who loses rights must not keep them while new rules wait for the audit log.
        if let Some(access) = &mut self.access {
            survive(Task::Rules, metrics, || access.reload_if_changed(&self.audit, metrics));
        }
        if let Some(rules) = &mut self.rules {
            survive(Task::Rules, metrics, || rules.reload_if_changed(&self.limiter, &self.audit));
        }
    }

    /// Loads all files even if they have not changed.
    fn reload(&mut self, metrics: &Metrics) {
        if let Some(access) = &mut self.access {
            survive(Task::Rules, metrics, || access.reload(&self.audit, metrics));
        }
        if let Some(rules) = &mut self.rules {
            survive(Task::Rules, metrics, || rules.reload(&self.limiter, &self.audit));
        }
    }
}

fn keep_loaded(files: &mut Files, metrics: &Metrics, asked: &Receiver<()>, interval: Option<Duration>) {
    loop {
        let wake = match interval {
            Some(interval) => asked.recv_timeout(interval),
            None => asked.recv().map_err(RecvTimeoutError::from),
        };
        match wake {
            Ok(()) => {
                // One load serves all requests for a load that came before it.
                asked.try_iter().for_each(drop);
                notify::reloading();
                files.reload(metrics);
                notify::ready();
            }
            Err(RecvTimeoutError::Timeout) => files.reload_if_changed(metrics),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
