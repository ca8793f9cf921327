//! Flags for TLS, and the task that reloads its files.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;
use parking_lot::Mutex;
use tokio::signal::unix::Signal;
use tokio::sync::Mutex as AsyncMutex;
use tokio::task::spawn_blocking;

use divvy_access::audit::{Action, AuditLog, Caller, Change};
use divvy_server::tls::{Files, Reloader};
use divvy_server::{Secured, keep_running};
use divvy_telemetry::metrics::{Metrics, Task};

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "TLS and access")]
pub struct TlsArgs {
    /// Server certificate (PEM), followed by its intermediate certificates
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key of --tls-cert (PEM, not encrypted)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Accept only clients with a certificate from one of the authorities in this file (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,
    /// Listeners that accept only TLS, separated by commas [default: all]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "FRONTS", requires = "tls_cert")]
    tls_fronts: Vec<TlsFront>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TlsFront {
    Line,
    Resp,
    Http,
    Grpc,
}

impl TlsArgs {
    /// Loads the files; `None` if TLS is not configured.
    ///
    /// # Errors
    /// A file cannot be used.
    pub fn load(&self, metrics: &Metrics) -> anyhow::Result<Option<Reloader>> {
        let (Some(certificate), Some(key)) = (&self.tls_cert, &self.tls_key) else { return Ok(None) };
        let client_ca = self.tls_client_ca.clone();
        let files = Files { certificate: certificate.clone(), key: key.clone(), client_ca };
        Ok(Some(Reloader::start(files, metrics.access.tls_handshakes_failed.clone()).context("cannot serve TLS")?))
    }

    /// Returns whether clients are asked for a certificate.
    pub fn asks_for_certificates(&self) -> bool {
        self.tls_client_ca.is_some()
    }

    /// Returns the TLS settings of each listener.
    pub fn secured(&self, reloader: Option<&Reloader>) -> Secured {
        let tls = reloader.map(Reloader::tls);
        let on =
            |front| if self.tls_fronts.is_empty() || self.tls_fronts.contains(&front) { tls.clone() } else { None };
        Secured {
            line: on(TlsFront::Line),
            resp: on(TlsFront::Resp),
            http: on(TlsFront::Http),
            grpc: on(TlsFront::Grpc),
        }
    }
}

/// Checks the files every `interval` and at each SIGHUP, until the process ends. New files are recorded in `audit`, and put in
/// use even if that fails, because an expired certificate would stop hits.
pub fn keep_up_to_date(
    reloader: Reloader,
    interval: Option<Duration>,
    hangups: Signal,
    audit: Arc<AuditLog>,
    metrics: Arc<Metrics>,
) {
    let (reloader, hangups) = (Arc::new(Mutex::new(reloader)), Arc::new(AsyncMutex::new(hangups)));
    tokio::spawn(async move {
        let look_on = || keep_checking(Arc::clone(&reloader), interval, Arc::clone(&hangups), &audit, &metrics);
        keep_running(Task::Tls, &metrics, look_on).await;
    });
}

async fn keep_checking(
    reloader: Arc<Mutex<Reloader>>,
    interval: Option<Duration>,
    hangups: Arc<AsyncMutex<Signal>>,
    audit: &Arc<AuditLog>,
    metrics: &Metrics,
) {
    let mut hangups = hangups.lock().await;
    loop {
        let at_once = tokio::select! {
            _ = hangups.recv() => true,
            () = pause(interval) => false,
        };
        let change = Change::new(Action::TlsReload).with_file(reloader.lock().certificate());
        let caller = if at_once { Caller::signal() } else { Caller::file() };
        let reloader = Arc::clone(&reloader);
        match spawn_blocking(move || reloader.lock().reload_if_changed(at_once)).await {
            Ok(None) => {}
            Ok(Some(Ok(()))) => {
                audit.pend(caller, change).complete(None, None);
                tracing::info!("loaded the new TLS certificate: new connections use it");
            }
            Ok(Some(Err(reason))) => {
                audit.pend(caller, change).refuse(&reason);
                metrics.access.tls_reloads_failed.inc();
                tracing::error!(reason, "cannot load the new TLS files: the old ones stay in use");
            }
            Err(_) => {
                metrics.tasks.count_restart(Task::Tls);
                tracing::error!("cannot check the TLS files: the old ones stay in use");
            }
        }
    }
}

async fn pause(interval: Option<Duration>) {
    match interval {
        Some(interval) => tokio::time::sleep(interval).await,
        None => std::future::pending().await,
    }
}
