//! Reloads the rules, the users and the TLS certificate of a running server when their files change, and on SIGHUP.
//!
//! Three threads load and validate whole files, so that no request waits, and no kind of file waits for another. All later batches
//! then use the new rules, all later requests have the new users, and new connections the new certificate. If a file has an
//! error, its previous content stays in force.

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
use super::tls;
use divvy_access::audit::AuditLog;
use divvy_core::units::{self, MAX_SECONDS, Time};
use divvy_limiter::Limiter;
use divvy_server::tls::Reloader;
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

/// The files that are kept up to date.
pub struct ReloadedFiles {
    pub rules: Option<RulesFile>,
    pub access: Option<WatchedAccess>,
    pub tls: Option<Reloader>,
}

/// Starts to handle SIGHUP, which would otherwise end the process.
///
/// # Errors
/// The system refuses it.
pub fn hangups() -> anyhow::Result<Signal> {
    signal(SignalKind::hangup()).context("cannot listen to SIGHUP")
}

impl ReloadArgs {
    /// Keeps the limiter's rules, the users and the certificate up to date with these files until `draining` is cancelled.
    /// Reloads are recorded in `audit`.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn start(
        &self,
        files: ReloadedFiles,
        limiter: &Arc<Limiter>,
        audit: &Arc<AuditLog>,
        hangups: Signal,
        draining: CancellationToken,
    ) -> anyhow::Result<()> {
        let ReloadedFiles { rules, access, tls } = files;
        let metrics = Arc::clone(limiter.metrics());
        // Without an interval, only SIGHUP reloads the files.
        let interval = Some(self.reload_interval.0).filter(|interval| !interval.is_zero());
        let mut asks = Vec::new();
        let mut spawn = |name: &str, mut reload: Box<dyn FnMut(Reason) + Send>| {
            let (ask, asked) = mpsc::channel();
            let run = move || keep_loaded(&mut reload, &asked, interval);
            asks.push(ask);
            thread::Builder::new().name(name.into()).spawn(run).context("cannot start a thread")
        };
        if let Some(mut files) = tls {
            let (metrics, audit) = (Arc::clone(&metrics), Arc::clone(audit));
            let reload =
                move |reason| survive(Task::Tls, &metrics, || tls::reload(&mut files, reason, &audit, &metrics));
            spawn("divvy-tls", Box::new(reload))?;
        }
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
