//! Loading the rules again while they are served: when the file changes, and on SIGHUP.
//!
//! The file is checked in full by a thread of its own, which nobody waits for; then the new rules are put in force for
//! all batches from then on. A file with a mistake leaves the rules as they are.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::notify;
use super::rules::RulesFile;
use crate::cli::units::{self, MAX_SECONDS, Time};
use crate::limiter::Limiter;

/// Between two looks at the files.
const DEFAULT_INTERVAL: Time = Time(Duration::from_secs(1));

#[derive(Debug, clap::Args)]
pub struct ReloadArgs {
    /// Seconds between two looks at the rules file and TLS's, which are loaded again once they changed; 0: only on SIGHUP
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
        let (ask, asked) = mpsc::channel();
        let has_file = file.is_some();
        if let Some(file) = file {
            let interval = self.interval();
            // Weak: the thread, which may hang in a read from a network, shall not keep the store open.
            let limiter = Arc::downgrade(limiter);
            let run = move || keep_loaded(file, &limiter, &asked, interval);
            thread::Builder::new().name("divvy-reload".into()).spawn(run).context("cannot start a thread")?;
        }
        tokio::spawn(async move {
            tokio::select! {
                () = pass_on(hangups, ask, has_file) => {}
                () = draining.cancelled() => {}
            }
        });
        Ok(())
    }
}

/// Passes SIGHUPs on to the thread that loads, which ends when this does.
async fn pass_on(mut hangups: Signal, ask: Sender<()>, has_file: bool) {
    while hangups.recv().await.is_some() {
        if !has_file {
            notify::reloading();
            notify::ready();
            tracing::info!("SIGHUP: there is no rules file to load again; the server was started without CONFIG");
        } else if ask.send(()).is_err() {
            return;
        }
    }
}

fn keep_loaded(mut file: RulesFile, limiter: &Weak<Limiter>, asked: &Receiver<()>, interval: Option<Duration>) {
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
                file.load_again(limiter);
                notify::ready();
            }
            Err(RecvTimeoutError::Timeout) => file.look(limiter),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
