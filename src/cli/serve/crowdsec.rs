//! CrowdSec: the flags, and the task that follows the decisions of a CrowdSec server.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio_util::sync::CancellationToken;
use url::Url;

use crate::cli::access::{authorities, client_config};
use crate::cli::public_file;
use divvy_core::files;
use divvy_core::units::{self, MAX_SECONDS, Time};
use divvy_limiter::Limiter;
use divvy_server::crowdsec::{Follower, Upstream};
use divvy_server::keep_running;
use divvy_telemetry::metrics::Task;

/// Maximum size of the key file in bytes, far more than a key needs.
const MAX_KEY_FILE: u64 = 4 << 10;
/// Default time between two requests, that of CrowdSec's own bouncers.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "CrowdSec")]
pub struct CrowdsecArgs {
    /// Block the addresses that this CrowdSec server bans: the URL of its Local API, such as http://127.0.0.1:8080
    #[arg(long, value_name = "URL")]
    crowdsec_url: Option<String>,
    /// File that contains the key of --crowdsec-url and nothing else. `cscli bouncers add divvy` makes one
    #[arg(long, value_name = "FILE")]
    crowdsec_key_file: Option<PathBuf>,
    /// Field of the clients' addresses. Its blocks are decisions for CrowdSec's bouncers, and bans of CrowdSec become
    /// blocks of it
    #[arg(long, value_name = "FIELD", default_value = "ip", value_parser = field)]
    crowdsec_field: String,
    /// Time between two requests to CrowdSec [default: 10s]
    #[arg(long, value_name = "SECONDS", value_parser = units::seconds(1..=MAX_SECONDS))]
    crowdsec_interval: Option<Time>,
    /// CrowdSec's certificate must come from an authority in this file (PEM) instead of the system's
    #[arg(long, value_name = "FILE")]
    crowdsec_ca: Option<PathBuf>,
}

impl CrowdsecArgs {
    /// Returns the field that contains the clients' addresses.
    pub fn field(&self) -> Arc<str> {
        self.crowdsec_field.as_str().into()
    }

    /// Reads the key, and returns the CrowdSec server to follow, if any.
    ///
    /// # Errors
    /// The URL or a file cannot be used, or a flag has no effect.
    pub fn read(&self) -> anyhow::Result<Option<Upstream>> {
        let Some(url) = &self.crowdsec_url else { return self.without_url() };
        let Some(path) = &self.crowdsec_key_file else {
            bail!("--crowdsec-url needs --crowdsec-key-file: a file with the key from `cscli bouncers add divvy`");
        };
        // The address may contain a password, although it must not.
        let url: Url = url.parse().map_err(divvy_server::crowdsec::InvalidUpstream::from).context("--crowdsec-url")?;
        let tls = match url.scheme() {
            "https" => Some(Arc::new(client_config(authorities(self.crowdsec_ca.as_deref(), "--crowdsec-ca")?)?)),
            _ if self.crowdsec_ca.is_some() => {
                bail!("--crowdsec-ca has no effect: --crowdsec-url does not begin with https")
            }
            _ => None,
        };
        let key = key_in(path).context("--crowdsec-key-file")?;
        Upstream::new(&url, &key, tls).context("--crowdsec-url, --crowdsec-key-file").map(Some)
    }

    fn without_url(&self) -> anyhow::Result<Option<Upstream>> {
        let flags = [
            ("--crowdsec-key-file", self.crowdsec_key_file.is_some()),
            ("--crowdsec-interval", self.crowdsec_interval.is_some()),
            ("--crowdsec-ca", self.crowdsec_ca.is_some()),
        ];
        match flags.iter().find(|(_, is_given)| *is_given) {
            Some((flag, _)) => bail!("{flag} (or its DIVVY_ variable) has no effect without --crowdsec-url: add it"),
            None => Ok(None),
        }
    }

    /// Follows the decisions of this CrowdSec server until `draining` is cancelled.
    pub fn start(&self, upstream: Option<Upstream>, limiter: &Arc<Limiter>, draining: CancellationToken) {
        let Some(upstream) = upstream else { return };
        let interval = self.crowdsec_interval.map_or(DEFAULT_INTERVAL, |Time(interval)| interval);
        let follower = Follower::new(upstream, Arc::clone(limiter), self.field(), interval);
        let limiter = Arc::clone(limiter);
        tokio::spawn(async move {
            tokio::select! {
                () = keep_running(Task::Crowdsec, limiter.metrics(), || follower.run()) => {}
                () = draining.cancelled() => {}
            }
        });
    }
}

fn key_in(path: &Path) -> anyhow::Result<String> {
    let file = path.display();
    let bytes = files::read(path, MAX_KEY_FILE).with_context(|| format!("cannot read {file}"))?;
    let text = String::from_utf8(bytes).with_context(|| format!("{file} is not a text"))?;
    public_file::log(path);
    Ok(text.trim_ascii().to_owned())
}

fn field(text: &str) -> Result<String, String> {
    let is_field =
        !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || c.is_control() || "=&*".contains(c));
    if is_field { Ok(text.to_owned()) } else { Err("must be the name of a field, such as ip".to_owned()) }
}
