//! Reloads the rules, ratelimit's configuration, the users and the TLS certificate of a running server when their files change, and on SIGHUP.
//!
//! Threads load and validate whole files, so that no request waits, and no kind of file waits for another. All later batches
//! then use the new rules, all later requests have the new users, and new connections the new certificate. If a file has an
//! error, its previous content stays in force.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use tokio::signal::unix::Signal;
use tokio_util::sync::CancellationToken;

use super::access::WatchedAccess;
use super::in_force::RulesInForce;
use super::listen::AskedReload;
use super::rules::{RatelimitFiles, RulesFile};
use super::watch::Reason;
use divvy_access::audit::{Action, AuditLog, Change};
use divvy_limiter::Limiter;
use divvy_server::survive;
use divvy_server::tls::Reloader;
use divvy_telemetry::metrics::{Metrics, Task};

/// The files that are kept up to date.
pub struct ReloadedFiles {
    pub rules: Option<RulesFile>,
    pub ratelimit: Option<RatelimitFiles>,
    pub access: Option<WatchedAccess>,
    pub tls: Option<Reloader>,
}

/// Loads the files of one kind if they have changed, or if an operator asks for it.
type Reload = dyn FnMut(Reason, &Arc<AuditLog>, &Metrics) + Send;

/// Checks the files at each interval: keeps the limiter's rules, the users and the certificate up to date with these files until `draining` is cancelled.
/// Reloads are recorded in `audit`.
///
/// # Errors
/// The system refuses a thread.
pub fn start(
    files: ReloadedFiles,
    interval: Duration,
    in_force: &Arc<RulesInForce>,
    limiter: &Arc<Limiter>,
    audit: &Arc<AuditLog>,
    hangups: Signal,
    draining: CancellationToken,
) -> anyhow::Result<()> {
    let ReloadedFiles { rules, ratelimit, access, tls } = files;
    let metrics = Arc::clone(limiter.metrics());
    // Without an interval, only SIGHUP reloads the files.
    let interval = Some(interval).filter(|interval| !interval.is_zero());
    let mut asks = Vec::new();
    // Each kind of file has its own thread: a user who loses rights must not keep them while new rules wait for the audit log.
    let mut spawn = |name: &str, task: Task, mut reload: Box<Reload>| {
        let (ask, asked) = mpsc::channel();
        let (metrics, audit) = (Arc::clone(&metrics), Arc::clone(audit));
        let mut reload = move |reason| survive(task, &metrics, || reload(reason, &audit, &metrics));
        asks.push(ask);
        let run = move || keep_loaded(&mut reload, &asked, interval);
        thread::Builder::new().name(name.into()).spawn(run).context("cannot start a thread")
    };
    if let Some(mut files) = tls {
        let reload = move |reason, audit: &_, metrics: &_| reload_tls(&mut files, reason, audit, metrics);
        spawn("divvy-tls", Task::Tls, Box::new(reload))?;
    }
    if let Some(mut access) = access {
        let reload = move |reason, audit: &_, metrics: &_| access.reload(reason, audit, metrics);
        spawn("divvy-access", Task::Access, Box::new(reload))?;
    }
    // These are weak, because the threads may hang while they read from a network file system, and must not keep the store
    // open.
    if let Some(mut rules) = rules {
        let (in_force, limiter) = (Arc::clone(in_force), Arc::downgrade(limiter));
        let reload = move |reason, audit: &_, _: &Metrics| rules.reload(reason, &in_force, &limiter, audit);
        spawn("divvy-reload", Task::Rules, Box::new(reload))?;
    }
    if let Some(mut files) = ratelimit {
        let (in_force, limiter) = (Arc::clone(in_force), Arc::downgrade(limiter));
        let reload = move |reason, audit: &_, _: &Metrics| files.reload(reason, &in_force, &limiter, audit);
        spawn("divvy-domains", Task::Rules, Box::new(reload))?;
    }
    // The loading threads end with it.
    tokio::spawn(async move { draining.run_until_cancelled(forward_hangups(hangups, asks)).await });
    Ok(())
}

/// Passes each SIGHUP on to the loading threads. Ends with one of them.
async fn forward_hangups(mut hangups: Signal, asks: Vec<Sender<Arc<AskedReload>>>) {
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

/// Loads the files if they have changed, or if an operator asks for it. New files are recorded in `audit`, and put in use even
/// if that fails, because an expired certificate would stop hits.
fn reload_tls(reloader: &mut Reloader, reason: Reason, audit: &Arc<AuditLog>, metrics: &Metrics) {
    let Some(loaded) = reloader.reload_if_changed(reason == Reason::Asked) else { return };
    let change = Change::new(Action::TlsReload).with("file", reloader.certificate().to_string_lossy());
    match loaded {
        Ok(()) => {
            audit.begin_unconditionally(reason.caller(), change).complete(None, None);
            tracing::info!("loaded the new TLS certificate: new connections use it");
        }
        Err(error) => {
            audit.begin_unconditionally(reason.caller(), change).refuse(&error);
            metrics.access.tls_reloads_failed.inc();
            tracing::error!(reason = error, "cannot load the new TLS files: the old ones stay in use");
        }
    }
}
