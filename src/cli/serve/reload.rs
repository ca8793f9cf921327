//! Reloads the rules and the users of a running server when their files change, and on SIGHUP.
//!
//! Two threads load and validate whole files, one the rules and one the users, so that no request waits. All later batches then use the new
//! rules, and all later requests have the new users. If a file has an error, its previous content stays in force.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::access_files::WatchedAccess;
use super::rules::{Reason, RulesFile};
use super::service_manager::AskedReload;
use divvy_access::audit::AuditLog;
use divvy_core::units::{self, MAX_SECONDS, Time};
use divvy_limiter::Limiter;
use divvy_server::{keep_running, survive};
use divvy_telemetry::metrics::Task;

/// Default interval for checking the files.
const DEFAULT_INTERVAL: Time = Time(Duration::from_secs(1));

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Rules")]
pub struct ReloadArgs {
    /// How often to check the rules file with its lists, the access file, the token key file and the TLS files for
    /// changes. 0: reload only on SIGHUP
    #[arg(long, value_name = "SECONDS", default_value_t = DEFAULT_INTERVAL,
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
        let mut asks = Vec::new();
        let mut spawn = |name: &str, mut reload: Box<dyn FnMut(Reason) + Send>| {
            let (ask, asked) = mpsc::channel();
            let interval = self.interval();
            let run = move || keep_loaded(&mut reload, &asked, interval);
            asks.push(ask);
            thread::Builder::new().name(name.into()).spawn(run).context("cannot start a thread")
        };
        // On a thread of their own: a user who loses rights must not keep them while new rules wait for the audit log.
        if let Some(mut access) = access {
            let (metrics, audit) = (Arc::clone(&metrics), Arc::clone(audit));
            let reload = move |reason| survive(Task::Access, &metrics, || access.reload(reason, &audit, &metrics));
            spawn("divvy-access", Box::new(reload))?;
        }
        if let Some(mut rules) = rules {
            // This is weak, because the thread may hang while it reads from a network file system, and must not keep the store
            // open.
            let (limiter, metrics, audit) = (Arc::downgrade(limiter), Arc::clone(&metrics), Arc::clone(audit));
            let reload = move |reason| survive(Task::Rules, &metrics, || rules.reload(reason, &limiter, &audit));
            spawn("divvy-reload", Box::new(reload))?;
        }
        let hangups = Arc::new(Mutex::new(hangups));
        tokio::spawn(async move {
            let forward_hangups = || forward_hangups(Arc::clone(&hangups), asks.clone());
            tokio::select! {
                () = keep_running(Task::Rules, &metrics, forward_hangups) => {}
                () = draining.cancelled() => {}
            }
        });
        Ok(())
    }
}

/// Passes each SIGHUP on to the loading threads. Ends with one of them.
async fn forward_hangups(hangups: Arc<Mutex<Signal>>, asks: Vec<Sender<Arc<AskedReload>>>) {
    let mut hangups = hangups.lock().await;
    while hangups.recv().await.is_some() {
        let reload = Arc::new(AskedReload::begin());
        if asks.is_empty() {
            tracing::info!("SIGHUP: there is no rules file to reload; the server was started without CONFIG");
        }
        if asks.iter().any(|ask| ask.send(Arc::clone(&reload)).is_err()) {
            tracing::error!("SIGHUP: cannot reload all files: a reload thread has ended");
        }
    }
}

fn keep_loaded(reload: &mut dyn FnMut(Reason), asked: &Receiver<Arc<AskedReload>>, interval: Option<Duration>) {
    loop {
        let wake = match interval {
            Some(interval) => asked.recv_timeout(interval),
            None => asked.recv().map_err(RecvTimeoutError::from),
        };
        match wake {
            Ok(first) => {
                // One load serves all requests for a load that came before it.
                let _served: Vec<_> = std::iter::once(first).chain(asked.try_iter()).collect();
                reload(Reason::Asked);
            }
            Err(RecvTimeoutError::Timeout) => reload(Reason::Changed),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
