//! The flags, and the files that they name.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{CommandFactory, FromArgMatches, Parser, ValueEnum};
use divvy_core::units::{self, MAX_SECONDS, Time};
use tokio_rustls::TlsAcceptor;
use url::Url;

use crate::client::{Client, InvalidUrl, tls_for};
use crate::divvy_api::Divvy;
use crate::keys::{BouncerKeys, read_key};
use crate::server::tls_acceptor;
use crate::upstream::Upstream;

/// Default time between two requests, that of CrowdSec's own bouncers.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(10);
/// Common prefix of the flags' environment variables.
const PREFIX: &str = "DIVVY_CROWDSEC_";

/// Blocks in divvy what a CrowdSec server bans, and answers CrowdSec's bouncers with divvy's blocks
///
/// Each flag has an environment variable, such as DIVVY_CROWDSEC_LISTEN for --listen.
#[derive(Debug, Parser)]
#[command(name = "divvy-crowdsec", version, next_help_heading = "divvy")]
pub struct Args {
    /// URL of divvy's HTTP API
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8322")]
    divvy_url: String,
    /// File that contains a key for divvy and nothing else: the token of a user with the categories read and block and the scope
    /// ~*, or the server's password
    #[arg(long, value_name = "FILE")]
    divvy_key_file: Option<PathBuf>,
    /// divvy's certificate must come from an authority in this file (PEM) instead of the system's
    #[arg(long, value_name = "FILE")]
    divvy_ca: Option<PathBuf>,
    /// Field of the clients' addresses. Its blocks are decisions for bouncers, and bans of CrowdSec become blocks of it
    #[arg(long, value_name = "FIELD", default_value = "ip", value_parser = field)]
    field: String,

    /// Block the addresses that this CrowdSec server bans: the URL of its Local API, such as http://127.0.0.1:8080
    #[arg(long, value_name = "URL", help_heading = "CrowdSec server to follow")]
    url: Option<String>,
    /// File that contains the key of --url and nothing else. `cscli bouncers add divvy` makes one
    #[arg(long, value_name = "FILE", help_heading = "CrowdSec server to follow")]
    key_file: Option<PathBuf>,
    /// CrowdSec's certificate must come from an authority in this file (PEM) instead of the system's
    #[arg(long, value_name = "FILE", help_heading = "CrowdSec server to follow")]
    ca: Option<PathBuf>,
    /// Time between two requests to CrowdSec [default: 10s]
    #[arg(long, value_name = "SECONDS", value_parser = units::seconds(1..=MAX_SECONDS), help_heading = "CrowdSec server to follow")]
    interval: Option<Time>,

    /// Address for bouncers and for /metrics, such as 127.0.0.1:8325
    #[arg(long, value_name = "ADDRESS", help_heading = "Bouncers")]
    listen: Option<String>,
    /// File with the bouncers' keys: on each line a name, and what `divvy access hash --sha256` prints. Without it, any key will do
    #[arg(long, value_name = "FILE", help_heading = "Bouncers")]
    bouncer_keys: Option<PathBuf>,
    /// Certificate for --listen, followed by the intermediate ones (PEM)
    #[arg(long, value_name = "FILE", help_heading = "Bouncers")]
    tls_cert: Option<PathBuf>,
    /// Private key of --tls-cert (PEM)
    #[arg(long, value_name = "FILE", help_heading = "Bouncers")]
    tls_key: Option<PathBuf>,

    /// Format of log lines. RUST_LOG chooses the level
    #[arg(long, value_enum, default_value_t = LogFormat::Human, help_heading = "Log")]
    pub log_format: LogFormat,

    /// Print the manual page
    #[cfg(feature = "packaging")]
    #[arg(long, hide = true)]
    man: bool,
    /// Print a script that completes the flags in this shell
    #[cfg(feature = "packaging")]
    #[arg(long, hide = true, value_name = "SHELL")]
    completions: Option<clap_complete::Shell>,
}

/// The format of log lines.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum LogFormat {
    /// Text for people
    Human,
    /// One JSON object per line
    Json,
}

/// The settings in all flags and files.
pub struct Settings {
    pub divvy: Divvy,
    /// The CrowdSec server to follow.
    pub upstream: Option<Upstream>,
    pub bouncers: Option<Bouncers>,
    pub field: Arc<str>,
    pub interval: Duration,
}

/// How to serve bouncers.
pub struct Bouncers {
    pub listen: String,
    pub keys: Option<BouncerKeys>,
    pub tls: Option<TlsAcceptor>,
}

impl Args {
    /// Parses the command line and the environment of this process. Ends the process if they are invalid, or ask for help.
    pub fn from_command_line() -> Self {
        let matches = Self::with_variables().get_matches();
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }

    fn with_variables() -> clap::Command {
        Self::command().mut_args(|arg| match arg.get_long() {
            None | Some("man" | "completions" | "help" | "version") => arg,
            Some(name) => {
                let variable = format!("{PREFIX}{}", name.to_uppercase().replace('-', "_"));
                arg.env(variable).hide_env(true)
            }
        })
    }

    /// Prints the manual page or a script for a shell, if a flag asks for it. Returns whether one does.
    ///
    /// # Errors
    /// Standard output cannot be written.
    #[cfg(feature = "packaging")]
    pub fn print_package_file(&self) -> anyhow::Result<bool> {
        let (mut command, mut file) = (Self::command(), Vec::new());
        match self.completions {
            Some(shell) => clap_complete::generate(shell, &mut command, "divvy-crowdsec", &mut file),
            None if self.man => clap_mangen::Man::new(command).render(&mut file)?,
            None => return Ok(false),
        }
        std::io::Write::write_all(&mut std::io::stdout(), &file)?;
        Ok(true)
    }

    /// Reads the files.
    ///
    /// # Errors
    /// A URL or a file cannot be used, a flag has no effect, or there is nothing to do.
    pub fn read(&self) -> anyhow::Result<Settings> {
        let upstream = self.upstream()?;
        let bouncers = self.bouncers()?;
        if upstream.is_none() && bouncers.is_none() {
            bail!("nothing to do: add --url to follow a CrowdSec server, or --listen to serve bouncers");
        }
        let url = parse_url(&self.divvy_url).context("--divvy-url")?;
        let tls = tls_for(&url, self.divvy_ca.as_deref(), "--divvy-ca")?;
        let key = self.divvy_key_file.as_deref().map(|path| read_key(path, "Bearer ")).transpose();
        let divvy = Divvy::new(Client::new(&url, tls).context("--divvy-url")?, key.context("--divvy-key-file")?);
        let interval = self.interval.map_or(DEFAULT_INTERVAL, |Time(interval)| interval);
        Ok(Settings { divvy, upstream, bouncers, field: self.field.as_str().into(), interval })
    }

    fn upstream(&self) -> anyhow::Result<Option<Upstream>> {
        let Some(url) = &self.url else {
            let flags = [
                ("--key-file", self.key_file.is_some()),
                ("--interval", self.interval.is_some()),
                ("--ca", self.ca.is_some()),
            ];
            return no_effect(&flags, "--url").map(|()| None);
        };
        let Some(path) = &self.key_file else {
            bail!("--url needs --key-file: a file with the key from `cscli bouncers add divvy`");
        };
        let url = parse_url(url).context("--url")?;
        let tls = tls_for(&url, self.ca.as_deref(), "--ca")?;
        let key = read_key(path, "").context("--key-file")?;
        Upstream::new(&url, key, tls).context("--url").map(Some)
    }

    fn bouncers(&self) -> anyhow::Result<Option<Bouncers>> {
        let Some(listen) = &self.listen else {
            let flags = [
                ("--bouncer-keys", self.bouncer_keys.is_some()),
                ("--tls-cert", self.tls_cert.is_some()),
                ("--tls-key", self.tls_key.is_some()),
            ];
            return no_effect(&flags, "--listen").map(|()| None);
        };
        let keys = self.bouncer_keys.as_deref().map(BouncerKeys::read).transpose().context("--bouncer-keys")?;
        let tls = match (&self.tls_cert, &self.tls_key) {
            (Some(certificate), Some(key)) => Some(tls_acceptor(certificate, key)?),
            (None, None) => None,
            _ => bail!("--tls-cert and --tls-key need each other"),
        };
        Ok(Some(Bouncers { listen: listen.clone(), keys, tls }))
    }
}

/// Refuses flags that are given in vain.
fn no_effect(flags: &[(&str, bool)], needed: &str) -> anyhow::Result<()> {
    match flags.iter().find(|(_, is_given)| *is_given) {
        Some((flag, _)) => bail!("{flag} (or its {PREFIX} variable) has no effect without {needed}: add it"),
        None => Ok(()),
    }
}

/// Parses a URL. The error does not repeat it, because it may contain a password, although it must not.
fn parse_url(text: &str) -> Result<Url, InvalidUrl> {
    Ok(text.parse()?)
}

fn field(text: &str) -> Result<String, String> {
    let is_field =
        !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || c.is_control() || "=&*".contains(c));
    if is_field { Ok(text.to_owned()) } else { Err("must be the name of a field, such as ip".to_owned()) }
}
