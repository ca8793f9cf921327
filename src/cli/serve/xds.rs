//! Flags of the client that receives ratelimit's configuration from a management server, and its start.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, ensure};
use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};
use tokio_util::sync::CancellationToken;

use super::in_force::{Load, Part, RulesInForce};
use super::store::StoreChoice;
use crate::cli::values::{Pair, pair};
use divvy_access::audit::{AuditLog, Caller};
use divvy_core::config::ratelimit::options::Options;
use divvy_core::units::{self, Bytes};
use divvy_limiter::Limiter;
use divvy_server::keep_running;
use divvy_server::xds::{DEFAULT_MAX_MESSAGE, LoadedDomains, Pings, XdsClient, XdsServer, XdsSettings, XdsTls};
use divvy_telemetry::metrics::Task;

/// Upper bound for a response: gRPC's messages cannot be larger.
const MAX_MESSAGE: u64 = u32::MAX as u64;
/// Name of the cache in a data directory.
const CACHE: &str = "ratelimit-xds";

#[derive(clap::Args)]
#[command(next_help_heading = "Management server of ratelimit")]
pub struct XdsArgs {
    /// Receive ratelimit's configuration over xDS from this management server: HOST:PORT, http://HOST:PORT, or
    /// https://HOST:PORT for TLS
    #[arg(long, value_name = "URL", conflicts_with_all = ["ratelimit_config", "grpc_atomic"])]
    pub ratelimit_xds: Option<XdsServer>,
    /// Name of this server for the management server
    #[arg(long, value_name = "ID", default_value = "default", requires = "ratelimit_xds")]
    ratelimit_xds_node: String,
    /// Metadata about this server, separated by commas
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',', value_parser = pair, requires = "ratelimit_xds")]
    ratelimit_xds_node_metadata: Vec<Pair>,
    /// Header to send to the management server. May be repeated
    #[arg(long, value_name = "NAME:VALUE", value_parser = header, requires = "ratelimit_xds", hide_env_values = true)]
    ratelimit_xds_header: Vec<(HeaderName, HeaderValue)>,
    /// Trust the certificate authorities in this PEM file instead of the system's
    #[arg(long, value_name = "FILE", requires = "ratelimit_xds")]
    ratelimit_xds_ca: Option<PathBuf>,
    /// Client certificate (PEM), for a management server that requires one
    #[arg(long, value_name = "FILE", requires_all = ["ratelimit_xds", "ratelimit_xds_key"])]
    ratelimit_xds_cert: Option<PathBuf>,
    /// Private key of --ratelimit-xds-cert (PEM)
    #[arg(long, value_name = "FILE", requires_all = ["ratelimit_xds", "ratelimit_xds_cert"])]
    ratelimit_xds_key: Option<PathBuf>,
    /// Name in the management server's certificate [default: the host of the URL]
    #[arg(long, value_name = "NAME", requires = "ratelimit_xds")]
    ratelimit_xds_server_name: Option<String>,
    /// Maximum size of a response of the management server
    #[arg(long, value_name = "BYTES", default_value_t = Bytes(DEFAULT_MAX_MESSAGE as u64),
          value_parser = units::bytes(1..=MAX_MESSAGE))]
    ratelimit_xds_max_message: Bytes,
    /// File that keeps the last good configuration, for a start while the management server is away [default: in
    /// --data-dir; none with other stores]
    #[arg(long, value_name = "FILE", requires = "ratelimit_xds")]
    ratelimit_cache: Option<PathBuf>,
}

impl XdsArgs {
    /// Returns the settings of the client. `None` if there is no management server.
    ///
    /// # Errors
    /// There are certificates, but the server does not speak TLS.
    pub fn settings(&self, store: &StoreChoice, options: &Options) -> anyhow::Result<Option<XdsSettings>> {
        let Some(server) = self.ratelimit_xds.clone() else { return Ok(None) };
        let tls = XdsTls {
            ca: self.ratelimit_xds_ca.clone(),
            client: self.ratelimit_xds_cert.clone().zip(self.ratelimit_xds_key.clone()),
            server_name: self.ratelimit_xds_server_name.clone(),
        };
        let has_tls_flag = tls.ca.is_some() || tls.client.is_some() || tls.server_name.is_some();
        ensure!(
            server.is_tls || !has_tls_flag,
            "the URL of --ratelimit-xds does not use TLS, so --ratelimit-xds-ca, -cert, -key and -server-name have no effect: \
             write https://, or leave them out"
        );
        let mut headers = HeaderMap::new();
        for (name, value) in &self.ratelimit_xds_header {
            headers.append(name, value.clone());
        }
        Ok(Some(XdsSettings {
            server,
            tls,
            node: self.ratelimit_xds_node.clone(),
            node_metadata: self.ratelimit_xds_node_metadata.iter().cloned().collect(),
            headers,
            max_message: self.ratelimit_xds_max_message.in_memory(),
            cache: self.ratelimit_cache.clone().or_else(|| Some(store.data_dir()?.join(CACHE))),
            merges_domains: options.merges_domains,
            pings: Pings::default(),
        }))
    }
}

fn header(argument: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) = argument.split_once(':').ok_or("expected NAME:VALUE")?;
    let name = name.trim().parse().map_err(|_| "the name is not that of a header")?;
    let mut value =
        HeaderValue::from_str(value.trim()).map_err(|_| "the value has characters that a header has not")?;
    value.set_sensitive(true);
    Ok((name, value))
}

/// Puts the cached configuration in force, and starts the client, which runs until `draining` is cancelled. Returns a token that is
/// cancelled once a configuration is in force.
///
/// # Errors
/// The cache cannot be read because of a bug.
pub async fn start(
    settings: XdsSettings,
    in_force: &Arc<RulesInForce>,
    limiter: &Arc<Limiter>,
    audit: &Arc<AuditLog>,
    draining: CancellationToken,
) -> anyhow::Result<CancellationToken> {
    let source = settings.server.address.clone();
    // Weak, because it may wait for the audit log, and must not keep the store open.
    let (in_force, limited, audit) = (Arc::clone(in_force), Arc::downgrade(limiter), Arc::clone(audit));
    let apply = move |loaded: LoadedDomains| {
        let loaded = loaded.map(|(domains, warnings)| (Part::Domains(domains), warnings));
        let load = Load { source: &source, caller: Caller::other("xds"), is_ratelimit: true, is_asked: false };
        in_force.replace(&load, loaded, &limited, &audit)
    };
    let metrics = Arc::clone(limiter.metrics());
    let client = XdsClient::new(settings, Box::new(apply), &metrics);
    let starting = Arc::clone(&client);
    tokio::task::spawn_blocking(move || starting.start_from_cache()).await.context("cannot read --ratelimit-cache")?;
    let configured = client.configured();
    tokio::spawn(async move {
        let running = keep_running(Task::Xds, &metrics, || client.run(tokio::time::sleep));
        draining.run_until_cancelled(running).await;
    });
    Ok(configured)
}
