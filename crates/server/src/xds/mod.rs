//! The client of a management server, which sends the configuration of envoyproxy/ratelimit over xDS: aggregated discovery, state
//! of the world.
//!
//! | module | contains |
//! |---|---|
//! | [`mod@connection`] | the server's address, TLS |
//! | [`mod@stream`] | messages in both directions, pings |
//! | [`exchange`] | requests, ACKs and NACKs |
//! | [`resources`] | a response as domains |
//! | [`backoff`] | pauses between streams |
//! | [`cache`] | the file with the last response that was applied |
//! | [`messages`] | what `proto` defines |
//!
//! A response is applied as a whole or refused as a whole. The client is one task. Work that may block runs on other threads.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::{HeaderMap, StatusCode};
use prost::{DecodeError, Message};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use self::backoff::Backoff;
pub use self::connection::{XdsServer, XdsTls};
use self::messages::DiscoveryResponse;
pub use self::stream::Pings;
use super::net::tls::TlsError;
use divvy_core::config::ratelimit::model::Domains;
use divvy_core::config::{Problem, Report};
use divvy_telemetry::logging::Escaped;
use divvy_telemetry::metrics::Metrics;

mod backoff;
mod cache;
mod connection;
mod exchange;
mod messages;
mod resources;
mod stream;

/// Default maximum size of a response, as in other clients of gRPC (bytes).
pub const DEFAULT_MAX_MESSAGE: usize = 4 << 20;

/// Settings of the client.
#[derive(Debug, Clone)]
pub struct XdsSettings {
    /// The management server.
    pub server: XdsServer,
    /// Its certificates.
    pub tls: XdsTls,
    /// The name of this client for the server.
    pub node: String,
    /// Data about this client for the server.
    pub node_metadata: BTreeMap<String, String>,
    /// Headers of the call.
    pub headers: HeaderMap,
    /// Maximum size of a response (bytes).
    pub max_message: usize,
    /// The file that keeps the last response that was applied.
    pub cache: Option<PathBuf>,
    /// Whether several resources may have one domain.
    pub merges_domains: bool,
    /// Pings to the server.
    pub pings: Pings,
}

/// Domains and warnings about them, or the problems of a configuration.
pub type LoadedDomains = Result<(Domains, Vec<Problem>), Report>;

/// Puts domains in force, or reports why that is impossible, and logs what is wrong. It may block.
pub type Apply = Box<dyn Fn(LoadedDomains) -> Result<(), Report> + Send + Sync>;

/// Keeps the domains as the management server says.
pub struct XdsClient {
    settings: XdsSettings,
    apply: Apply,
    metrics: Arc<Metrics>,
    /// Cancelled once domains are in force.
    configured: CancellationToken,
    /// The last message that was applied, for the cache.
    applied: watch::Sender<Bytes>,
}

/// Reason why there is no stream.
#[derive(Debug, thiserror::Error)]
pub(crate) enum XdsError {
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    #[error("cannot connect in time")]
    Late,
    #[error("{0}")]
    Tls(#[from] TlsError),
    #[error("{0}")]
    Http2(#[from] h2::Error),
    #[error("the server answered with HTTP status {0}")]
    Http(StatusCode),
    #[error("the server ended the stream: {}: {}", .0.code(), .0.message())]
    Refused(Box<Status>),
    #[error("the server ended the stream")]
    Ended,
    #[error("the server does not answer")]
    Silent,
    #[error("a response has {length} bytes, more than --ratelimit-xds-max-message allows ({max})")]
    TooLong { length: usize, max: usize },
    #[error("a response is compressed, which was not asked for")]
    Compressed,
    #[error("a response cannot be decoded: {0}")]
    Malformed(#[from] DecodeError),
}

impl XdsClient {
    /// Creates a client that passes each configuration to `apply`.
    pub fn new(settings: XdsSettings, apply: Apply, metrics: &Arc<Metrics>) -> Arc<Self> {
        let (configured, applied) = Default::default();
        Arc::new(Self { settings, apply, metrics: Arc::clone(metrics), configured, applied })
    }

    /// Returns a token that is cancelled once a configuration is in force.
    pub fn configured(&self) -> CancellationToken {
        self.configured.clone()
    }

    /// Puts the configuration in the cache in force. Without a usable one, nothing changes.
    pub fn start_from_cache(&self) {
        let Some(path) = &self.settings.cache else { return };
        let file = path.display();
        let decode = |message: Vec<u8>| DiscoveryResponse::decode(message.as_slice()).map_err(io::Error::other);
        let message = cache::read(path, self.settings.max_message);
        let response = match message.and_then(|message| message.map(decode).transpose()) {
            Ok(None) => return,
            Ok(Some(response)) => response,
            Err(error) => return tracing::warn!(%error, "{file}: ignoring the cached configuration"),
        };
        match self.put_in_force(&response) {
            Ok(domains) => {
                let version = Escaped::error(&response.version_info);
                tracing::info!(%version, domains, "{file}: the cached configuration is in force");
            }
            Err(_) => tracing::warn!("{file}: ignoring the cached configuration, which has problems"),
        }
    }

    /// Follows the server. Never returns. Calls `pause` to wait.
    pub async fn run<F: Future<Output = ()>>(self: &Arc<Self>, pause: impl Fn(Duration) -> F) {
        tokio::join!(self.follow(&pause), self.keep_cache());
    }

    #[expect(clippy::disallowed_methods, reason = "how long a stream lasts")]
    async fn follow<F: Future<Output = ()>>(self: &Arc<Self>, pause: &impl Fn(Duration) -> F) {
        let (mut backoff, mut is_failing) = (Backoff::default(), false);
        let server = &self.settings.server.address;
        loop {
            let begun = Instant::now();
            let Err(error) = self.exchange(&mut is_failing, pause).await;
            self.metrics.xds.connected.set(0);
            let error = error.to_string();
            let error = Escaped::error(&error);
            if is_failing {
                tracing::debug!(%server, %error, "still cannot follow the management server");
            } else {
                tracing::warn!(%server, %error, "cannot follow the management server; the last configuration stays in force");
            }
            is_failing = true;
            let mut random = [0; 4];
            // Without randomness, the pause is short.
            let _ = getrandom::getrandom(&mut random);
            pause(backoff.pause(begun.elapsed(), u32::from_ne_bytes(random))).await;
        }
    }

    /// Reads a response, and puts its domains in force. Returns their number.
    fn put_in_force(&self, response: &DiscoveryResponse) -> Result<usize, Report> {
        let loaded = resources::read(response, self.settings.merges_domains);
        let count = loaded.as_ref().map_or(0, |(domains, _)| domains.iter().count());
        (self.apply)(loaded)?;
        self.configured.cancel();
        Ok(count)
    }

    /// Writes each message that was applied to the cache, or the newest one if the disk is slow. A failure has no other effect
    /// than a warning.
    async fn keep_cache(&self) {
        let Some(path) = &self.settings.cache else { return };
        let (mut applied, mut is_failing) = (self.applied.subscribe(), false);
        // This never fails, because the sender is in `self`.
        while applied.changed().await.is_ok() {
            let (message, target) = (applied.borrow_and_update().clone(), path.clone());
            let written = tokio::task::spawn_blocking(move || cache::write(&target, &message)).await;
            let written = written.map_err(io::Error::other).flatten();
            let file = path.display();
            match &written {
                Err(error) if !is_failing => tracing::warn!(%error, "{file}: cannot keep the configuration"),
                Ok(()) if is_failing => tracing::info!("{file}: the configuration is kept again"),
                _ => {}
            }
            is_failing = written.is_err();
        }
    }
}

#[cfg(test)]
mod tests;
