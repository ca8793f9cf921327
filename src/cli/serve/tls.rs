//! Flags for TLS, and the reload of its files.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;

use super::rules::Reason;
use divvy_access::audit::{Action, AuditLog, Change};
use divvy_server::Secured;
use divvy_server::tls::{Files, Reloader};
use divvy_telemetry::metrics::Metrics;

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
    #[arg(long, value_parser = ["line", "resp", "http", "grpc"], value_delimiter = ',', value_name = "FRONTS",
          requires = "tls_cert")]
    tls_fronts: Vec<String>,
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
        let is_on = |front: &str| self.tls_fronts.is_empty() || self.tls_fronts.iter().any(|on| on == front);
        let on = |front| tls.clone().filter(|_| is_on(front));
        Secured { line: on("line"), resp: on("resp"), http: on("http"), grpc: on("grpc") }
    }
}

/// Loads the files if they have changed, or if an operator asks for it. New files are recorded in `audit`, and put in use even
/// if that fails, because an expired certificate would stop hits.
pub fn reload(reloader: &mut Reloader, reason: Reason, audit: &Arc<AuditLog>, metrics: &Metrics) {
    let Some(loaded) = reloader.reload_if_changed(reason == Reason::Asked) else { return };
    let change = Change::new(Action::TlsReload).with("file", reloader.certificate().to_string_lossy());
    match loaded {
        Ok(()) => {
            audit.pend(reason.caller(), change).complete(None, None);
            tracing::info!("loaded the new TLS certificate: new connections use it");
        }
        Err(error) => {
            audit.pend(reason.caller(), change).refuse(&error);
            metrics.access.tls_reloads_failed.inc();
            tracing::error!(reason = error, "cannot load the new TLS files: the old ones stay in use");
        }
    }
}
