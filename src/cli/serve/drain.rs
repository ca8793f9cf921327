//! Shutdown: its flags, and the signals that start it.

use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::service_manager;
use divvy_core::units::{self, MAX_SECONDS, Time};
use divvy_server::{self as server, Drain, keep_running};
use divvy_telemetry::metrics::{Metrics, Task};

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Stopping")]
pub struct DrainArgs {
    /// How long to keep accepting connections after SIGTERM, while /readyz answers 503
    #[arg(long, value_name = "SECONDS", default_value_t = Time(Duration::ZERO),
          value_parser = units::seconds(0..=MAX_SECONDS))]
    drain_delay: Time,
    /// Maximum time for answering the requests received by then. Busy connections are closed afterwards
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = Time(server::DEFAULT_DRAIN_TIMEOUT),
        value_parser = units::seconds(0..=MAX_SECONDS)
    )]
    drain_timeout: Time,
}

impl DrainArgs {
    pub fn drain(&self) -> Drain {
        Drain { delay: self.drain_delay.0, timeout: self.drain_timeout.0 }
    }
}

/// Requests to stop, from SIGTERM and SIGINT.
#[derive(Debug, Clone)]
pub struct StopSignals {
    /// Cancelled by the first signal, which asks for an orderly shutdown.
    pub draining: CancellationToken,
    /// Cancelled by the second signal, which asks for an immediate exit.
    pub at_once: CancellationToken,
}

impl StopSignals {
    /// Starts to listen for the signals.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn on_signal(metrics: &Arc<Metrics>) -> anyhow::Result<Self> {
        let stop = Self { draining: CancellationToken::new(), at_once: CancellationToken::new() };
        let signals = Arc::new(Mutex::new([signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?]));
        // A write beyond the limit of a file's size fails then, as it does when the disk is full. The signal would end the
        // server. Its handler stays.
        drop(signal(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw()))?);
        let (waiting, metrics) = (stop.clone(), Arc::clone(metrics));
        tokio::spawn(async move {
            let wait = || waiting.clone().wait(Arc::clone(&signals));
            keep_running(Task::Signals, &metrics, wait).await;
        });
        Ok(stop)
    }

    /// Waits for signals. Each takes effect before it is logged.
    async fn wait(self, signals: Arc<Mutex<[Signal; 2]>>) {
        let mut signals = signals.lock().await;
        if !self.draining.is_cancelled() {
            receive_either(&mut signals).await;
            self.draining.cancel();
            service_manager::stopping();
            tracing::info!(
                "stopping: answering requests already received; a second signal stops the process immediately"
            );
        }
        receive_either(&mut signals).await;
        self.at_once.cancel();
        tracing::warn!("stopping immediately: closing all connections");
    }
}

async fn receive_either([one, other]: &mut [Signal; 2]) {
    tokio::select! {
        _ = one.recv() => {}
        _ = other.recv() => {}
    }
}
