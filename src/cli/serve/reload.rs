//! Reloads the rules of a running server: when the file changes, and on SIGHUP.
//!
//! The file is checked in full by a thread of its own, which no request waits for; then the new rules are put in force for
//! all batches from then on. A file with a mistake leaves the rules as they are.

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
use crate::cli::units::{self, MAX_SECONDS, Time};
use crate::limiter::Limiter;
use crate::metrics::{Metrics, Task};
use crate::server::{keep_running, survive};

/// Between two looks at the files.
const DEFAULT_INTERVAL: Time = Time(Duration::from_secs(1));

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Rules")]
pub struct ReloadArgs {
    /// How often to check the rules file and the TLS files; divvy reloads those that changed. 0: reload only on SIGHUP
    #[arg(long, env = "DIVVY_RELOAD_INTERVAL", value_name = "SECONDS", default_value_t = DEFAULT_INTERVAL,
          value_parser = units::seconds(0..=MAX_SECONDS))]
    reload_interval: Time,
}

/// Takes SIGHUP, which ends a process that does not.
///
/// # Errors
/// The system's.
pub fn hangups() -> anyhow::Result<Signal> {
    signal(SignalKind::hangup()).context("cannot listen to SIGHUP")
}

impl ReloadArgs {
    /// Between two looks at the files; `None`: only on SIGHUP.
    pub fn interval(&self) -> Option<Duration> {
        Some(self.reload_interval.0).filter(|interval| !interval.is_zero())
    }

    /// Keeps the limiter's rules as `file` has them, until `draining` is cancelled.
    ///
    /// # Errors
    /// The system's, when it refuses a thread.
    pub fn start(
        &self,
        file: Option<RulesFile>,
        limiter: &Arc<Limiter>,
        hangups: Signal,
        draining: CancellationToken,
    ) -> anyhow::Result<()> {
        let metrics = Arc::clone(limiter.metrics());
        let (ask, asked) = mpsc::channel();
        let ask = file.is_some().then_some(ask);
        if let Some(file) = file {
            let interval = self.interval();
            // Weak: the thread, which may hang in a read from a network, shall not keep the store open.
            let (limiter, metrics) = (Arc::downgrade(limiter), Arc::clone(&metrics));
            let run = move || keep_loaded(file, &limiter, &metrics, &asked, interval);
            thread::Builder::new().name("divvy-reload".into()).spawn(run).context("cannot start a thread")?;
        }
        let hangups = Arc::new(Mutex::new(hangups));
        tokio::spawn(async move {
            let pass_on = || pass_on(Arc::clone(&hangups), ask.clone());
            tokio::select! {
                () = keep_running(Task::Rules, &metrics, pass_on) => {}
                () = draining.cancelled() => {}
            }
        });
        Ok(())
    }
}

/// Passes SIGHUPs on to the thread that loads, if there is one; it ends when this does.
async fn pass_on(hangups: Arc<Mutex<Signal>>, ask: Option<Sender<()>>) {
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

fn keep_loaded(
    mut file: RulesFile,
    limiter: &Weak<Limiter>,
    metrics: &Metrics,
    asked: &Receiver<()>,
    interval: Option<Duration>,
) {
    loop {
        let wake = match interval {
            Some(interval) => asked.recv_timeout(interval),
            None => asked.recv().map_err(RecvTimeoutError::from),
        };
        match wake {
            Ok(()) => {
                // One load does for all who asked before it.
                asked.try_iter().for_each(drop);
                notify::reloading();
                survive(Task::Rules, metrics, || file.load_again(limiter));
                notify::ready();
            }
            Err(RecvTimeoutError::Timeout) => survive(Task::Rules, metrics, || file.look(limiter)),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
