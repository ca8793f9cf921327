//! `divvy-crowdsec`: a client of divvy that follows a CrowdSec server, and serves CrowdSec's bouncers. This file has the flags, the
//! start, and the metrics of all parts.
//!
//! [`follower`] makes the bans of a CrowdSec server blocks of divvy: [`upstream`] asks for its decisions, and finds the bans among
//! them. [`server`] answers bouncers: it follows divvy's blocks, and [`journal`] has them in the order of their changes, and writes
//! the answers. [`decision`] has the messages of CrowdSec's Local API. Source: `pkg/models/localapi_swagger.yaml` in
//! <https://github.com/crowdsecurity/crowdsec>. [`divvy_api`] is the way to divvy, over the same [`client`] as to CrowdSec.
//! [`keys`] reads the files with secrets.
//!
//! Nothing is kept on disk: after a start, divvy says which blocks there are.

mod client;
mod decision;
mod divvy_api;
mod follower;
mod journal;
mod keys;
mod server;
mod upstream;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::Parser;
use divvy_core::clock::Clock;
use divvy_core::units::{self, MAX_SECONDS, Time};
use divvy_telemetry::logging::{self, Format};
use hyper::header::AUTHORIZATION;
use prometheus::{
    IntCounterVec, IntGauge, Registry, TextEncoder, register_int_counter_vec_with_registry,
    register_int_gauge_with_registry,
};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

use crate::client::Client;
use crate::divvy_api::Divvy;
use crate::follower::Follower;
use crate::keys::{BouncerKeys, read_key};
use crate::server::{BouncerServer, tls_acceptor};
use crate::upstream::{API_KEY, Upstream};

/// Default time between two requests, that of CrowdSec's own bouncers.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(10);
/// Common prefix of the flags' environment variables.
const PREFIX: &str = "DIVVY_CROWDSEC_";

/// Blocks in divvy what a CrowdSec server bans, and answers CrowdSec's bouncers with divvy's blocks
///
/// Each flag has an environment variable, such as DIVVY_CROWDSEC_LISTEN for --listen.
#[derive(Debug, Parser)]
#[command(name = "divvy-crowdsec", version, next_help_heading = "divvy", mut_args(with_variable))]
struct Args {
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
    #[arg(long, value_name = "URL", requires = "key_file", help_heading = "CrowdSec server to follow")]
    url: Option<String>,
    /// File that contains the key of --url and nothing else. `cscli bouncers add divvy` makes one
    #[arg(long, value_name = "FILE", requires = "url", help_heading = "CrowdSec server to follow")]
    key_file: Option<PathBuf>,
    /// CrowdSec's certificate must come from an authority in this file (PEM) instead of the system's
    #[arg(long, value_name = "FILE", requires = "url", help_heading = "CrowdSec server to follow")]
    ca: Option<PathBuf>,
    /// Time between two requests to CrowdSec [default: 10s]
    #[arg(long, value_name = "SECONDS", requires = "url", value_parser = units::seconds(1..=MAX_SECONDS),
          help_heading = "CrowdSec server to follow")]
    interval: Option<Time>,

    /// Address for bouncers and for /metrics, such as 127.0.0.1:8325
    #[arg(long, value_name = "ADDRESS", help_heading = "Bouncers")]
    listen: Option<String>,
    /// File with the bouncers' keys: on each line a name, and what `divvy access hash --sha256` prints. Without it, any key will do
    #[arg(long, value_name = "FILE", requires = "listen", help_heading = "Bouncers")]
    bouncer_keys: Option<PathBuf>,
    /// Certificate for --listen, followed by the intermediate ones (PEM)
    #[arg(long, value_name = "FILE", requires_all = ["listen", "tls_key"], help_heading = "Bouncers")]
    tls_cert: Option<PathBuf>,
    /// Private key of --tls-cert (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = "Bouncers")]
    tls_key: Option<PathBuf>,

    /// Format of log lines. RUST_LOG chooses the level
    #[arg(long, value_enum, default_value_t = Format::Human, help_heading = "Log")]
    log_format: Format,

    /// Print the manual page
    #[cfg(feature = "packaging")]
    #[arg(long, hide = true)]
    man: bool,
    /// Print a script that completes the flags in this shell
    #[cfg(feature = "packaging")]
    #[arg(long, hide = true, value_name = "SHELL")]
    completions: Option<clap_complete::Shell>,
}

/// Lets a variable set a flag, such as DIVVY_CROWDSEC_LISTEN for --listen.
fn with_variable(flag: clap::Arg) -> clap::Arg {
    let Some(name) = flag.get_long().filter(|_| !flag.is_hide_set()) else { return flag };
    let variable = format!("{PREFIX}{}", name.to_uppercase().replace('-', "_"));
    flag.env(variable).hide_env(true)
}

fn field(text: &str) -> Result<String, String> {
    let is_field =
        !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || c.is_control() || "=&*".contains(c));
    if is_field { Ok(text.to_owned()) } else { Err("must be the name of a field, such as ip".to_owned()) }
}

fn main() -> ExitCode {
    let Err(error) = run(&Args::parse()) else { return ExitCode::SUCCESS };
    // The exit code does not depend on whether standard error still exists.
    let _ = writeln!(io::stderr(), "divvy-crowdsec: {error:#}");
    ExitCode::FAILURE
}

fn run(args: &Args) -> anyhow::Result<()> {
    #[cfg(feature = "packaging")]
    if print_package_file(args)? {
        return Ok(());
    }
    let filter = std::env::var("RUST_LOG").ok().filter(|filter| !filter.is_empty());
    let _log = logging::begin(args.log_format, false, filter.as_deref().unwrap_or("info"))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(serve(args))
}

/// Prints the manual page or a script for a shell, if a flag asks for it. Returns whether one does.
#[cfg(feature = "packaging")]
fn print_package_file(args: &Args) -> anyhow::Result<bool> {
    let (mut command, mut file) = (<Args as clap::CommandFactory>::command(), Vec::new());
    match args.completions {
        Some(shell) => clap_complete::generate(shell, &mut command, "divvy-crowdsec", &mut file),
        None if args.man => clap_mangen::Man::new(command).render(&mut file)?,
        None => return Ok(false),
    }
    io::stdout().write_all(&file)?;
    Ok(true)
}

/// Serves until a signal asks to end. There is nothing to write at the end.
async fn serve(args: &Args) -> anyhow::Result<()> {
    let (metrics, mut tasks) = (Metrics::new()?, JoinSet::new());
    // All files are read before anything is served.
    let upstream = match args.url.as_deref().zip(args.key_file.as_deref()) {
        Some((url, path)) => {
            let key = (API_KEY, read_key(path, "").context("--key-file")?);
            Some(Upstream { client: Client::new(("--url", url), ("--ca", args.ca.as_deref()), Some(key))? })
        }
        None => None,
    };
    let keys = args.bouncer_keys.as_deref().map(BouncerKeys::read).transpose().context("--bouncer-keys")?;
    let files = args.tls_cert.as_deref().zip(args.tls_key.as_deref());
    let tls = files.map(|(certificate, key)| tls_acceptor(certificate, key)).transpose()?;
    ensure!(
        upstream.is_some() || args.listen.is_some(),
        "nothing to do: add --url to follow a CrowdSec server, or --listen to serve bouncers"
    );
    let key = args.divvy_key_file.as_deref().map(|path| read_key(path, "Bearer "));
    let key = key.transpose().context("--divvy-key-file")?.map(|key| (AUTHORIZATION, key));
    let (url, ca) = (("--divvy-url", args.divvy_url.as_str()), ("--divvy-ca", args.divvy_ca.as_deref()));
    let divvy = Divvy { client: Client::new(url, ca, key)? };
    let shared = Arc::new(Shared { divvy, field: args.field.clone(), clock: Clock::system(), metrics });
    if let Some(listen) = &args.listen {
        let listener = TcpListener::bind(listen).await.with_context(|| format!("--listen {listen}"))?;
        writeln!(io::stdout(), "bouncers on {}", listener.local_addr()?)?;
        tasks.spawn(Arc::new(BouncerServer::new(Arc::clone(&shared), keys)).run(listener, tls));
    }
    if let Some(upstream) = upstream {
        let interval = args.interval.map_or(DEFAULT_INTERVAL, |Time(interval)| interval);
        tasks.spawn(Follower::new(upstream, shared, interval).run());
    }
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        // A task ends after a panic only. The service manager starts the program again.
        ended = tasks.join_next() => bail!("a task ended: {ended:?}"),
    }
    Ok(())
}

/// The state that the follower and the server of bouncers share.
struct Shared {
    divvy: Divvy,
    /// The field of the clients' addresses, which the blocks are about.
    field: String,
    clock: Clock,
    metrics: Metrics,
}

/// Requests to a CrowdSec server and their effects, and requests of bouncers.
struct Metrics {
    registry: Registry,
    /// Requests of bouncers, by status.
    bouncer_requests: IntCounterVec,
    /// Requests to CrowdSec and divvy: `ok` and `failed`.
    polls: IntCounterVec,
    /// 1 if the last of these failed.
    failing: IntGauge,
    /// Decisions by their effect: the block was `set` or `removed`, an operator's was `kept`, or there was no room (`full`). Other
    /// decisions are no bans of networks (`ignored`), or `malformed`.
    decisions: IntCounterVec,
}

impl Metrics {
    /// Registers all metrics.
    ///
    /// # Errors
    /// A name is used twice.
    fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let counters = |name: &str, help: &str, label, values: &[&str]| {
            let counters = register_int_counter_vec_with_registry!(name, help, &[label], registry)?;
            for value in values {
                counters.with_label_values(&[value]);
            }
            prometheus::Result::Ok(counters)
        };
        let effects = ["set", "removed", "kept", "full", "ignored", "malformed"];
        let polls = "Requests to CrowdSec and divvy, by result.";
        let decisions = "Decisions of CrowdSec, by their effect.";
        let requests = "Requests of bouncers, by status.";
        let failing = "1 if the last request to CrowdSec or divvy failed. Blocks stay in force until they end.";
        Ok(Self {
            polls: counters("divvy_crowdsec_polls_total", polls, "result", &["ok", "failed"])?,
            decisions: counters("divvy_crowdsec_decisions_total", decisions, "effect", &effects)?,
            bouncer_requests: counters("divvy_crowdsec_bouncer_requests_total", requests, "status", &[])?,
            failing: register_int_gauge_with_registry!("divvy_crowdsec_failing", failing, registry)?,
            registry,
        })
    }

    /// Returns the metrics in Prometheus's text format.
    ///
    /// # Errors
    /// The library's.
    fn text(&self) -> prometheus::Result<String> {
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}
