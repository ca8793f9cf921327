//! `divvy serve`: opens the store, loads the rules, binds the fronts, and serves until it is told to stop.

mod mask;
mod store;

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use self::store::{StoreArgs, StoreChoice};
use super::rules_file;
use crate::clock::Clock;
use crate::limiter::{Limiter, Policy};
use crate::protocol::{DEFAULT_MAX_PAIRS, line, resp};
use crate::server::connection::Timeouts;
use crate::server::{self, Fronts, Limits};
use crate::store::Store;

const DEFAULT_LISTEN: &str = "127.0.0.1:8321";

#[derive(Debug, clap::Args)]
pub struct ServeArgs {
    /// The rules file (.ini or .json); without it only commands that carry their own limits are answered
    #[arg(env = "DIVVY_CONFIG")]
    config: Option<PathBuf>,
    /// Address of the line protocol, or `none`; the environment's PORT changes the port of the default
    /// [default: 127.0.0.1:8321]
    #[arg(long, env = "DIVVY_LISTEN", value_name = "ADDR")]
    listen: Option<Listen>,
    /// Address of the RESP protocol, or `none`
    #[arg(long, env = "DIVVY_RESP_LISTEN", value_name = "ADDR", default_value = "127.0.0.1:9049")]
    resp_listen: Listen,
    #[command(flatten)]
    store: StoreArgs,
    /// Threads that connections run on [default: half of the processors]
    #[arg(long, env = "DIVVY_THREADS", value_name = "N", default_value_t = server::default_threads(), hide_default_value = true)]
    threads: usize,
    #[command(flatten)]
    limits: LimitArgs,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Limits")]
struct LimitArgs {
    /// Connections open at once
    #[arg(long, env = "DIVVY_MAX_CONNECTIONS", value_name = "N",
          default_value_t = server::DEFAULT_MAX_CONNECTIONS, value_parser = clap::value_parser!(u32).range(1..))]
    max_connections: u32,
    /// Bytes in a line of the line protocol
    #[arg(long, env = "DIVVY_MAX_LINE", value_name = "BYTES", default_value_t = line::DEFAULT_MAX_LINE)]
    max_line: usize,
    /// key=value pairs in a request
    #[arg(long, env = "DIVVY_MAX_PAIRS", value_name = "N", default_value_t = DEFAULT_MAX_PAIRS)]
    max_pairs: usize,
    /// Arguments in a RESP request
    #[arg(long, env = "DIVVY_MAX_ARGUMENTS", value_name = "N", default_value_t = resp::Limits::default().max_arguments)]
    max_arguments: usize,
    /// Bytes in an argument of a RESP request
    #[arg(
        long,
        env = "DIVVY_MAX_ARGUMENT",
        value_name = "BYTES",
        default_value_t = resp::Limits::default().max_argument_bytes
    )]
    max_argument: usize,
    /// Bytes in a RESP request
    #[arg(
        long,
        env = "DIVVY_MAX_REQUEST",
        value_name = "BYTES",
        default_value_t = resp::Limits::default().max_request_bytes
    )]
    max_request: usize,
    /// Seconds a connection may send nothing; 0: for ever
    #[arg(long, env = "DIVVY_IDLE_TIMEOUT", value_name = "SECONDS", default_value_t = 0)]
    idle_timeout: u64,
    /// Seconds a client may take nothing of what was answered
    #[arg(
        long,
        env = "DIVVY_WRITE_TIMEOUT",
        value_name = "SECONDS",
        default_value_t = server::DEFAULT_WRITE_TIMEOUT.as_secs()
    )]
    write_timeout: u64,
}

/// An address to listen on, or `none`.
#[derive(Debug, Clone)]
enum Listen {
    Off,
    At(String),
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.eq_ignore_ascii_case("none") {
            return Ok(Self::Off);
        }
        let port = text.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
        match port {
            Some(Ok(_)) => Ok(Self::At(text.to_owned())),
            _ => Err("expected HOST:PORT (port 0 picks a free one) or `none`".to_owned()),
        }
    }
}

impl ServeArgs {
    /// A flag or DIVVY_LISTEN wins over the original's PORT.
    fn line_address(&self) -> anyhow::Result<Listen> {
        match (&self.listen, std::env::var("PORT")) {
            (Some(listen), _) => Ok(listen.clone()),
            (None, Ok(port)) if !port.is_empty() => {
                let port: u16 = port.parse().with_context(|| format!("PORT is {port:?}, and must be a port number"))?;
                Ok(Listen::At(format!("127.0.0.1:{port}")))
            }
            (None, _) => Ok(Listen::At(DEFAULT_LISTEN.to_owned())),
        }
    }

    fn limits(&self) -> Limits {
        let limits = &self.limits;
        Limits {
            max_connections: limits.max_connections as usize,
            max_line: limits.max_line,
            max_pairs: limits.max_pairs,
            resp: resp::Limits {
                max_arguments: limits.max_arguments,
                max_argument_bytes: limits.max_argument,
                max_request_bytes: limits.max_request,
                ..resp::Limits::default()
            },
            timeouts: Timeouts {
                idle: (limits.idle_timeout > 0).then(|| Duration::from_secs(limits.idle_timeout)),
                write: Duration::from_secs(limits.write_timeout),
            },
        }
    }
}

pub fn run(args: ServeArgs) -> anyhow::Result<ExitCode> {
    // Before the store: a mistake in the rules must not leave a data directory behind.
    let policy = match &args.config {
        None => None,
        Some(path) => match rules_file::load(path)? {
            Some(rules) => Some(Policy::new(rules)),
            None => return Ok(ExitCode::FAILURE),
        },
    };
    let line = args.line_address()?;
    let store = args.store.choose(|name| std::env::var(name).ok())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
    runtime.block_on(serve(&args, policy, &store, line))?;
    Ok(ExitCode::SUCCESS)
}

async fn serve(args: &ServeArgs, policy: Option<Policy>, choice: &StoreChoice, line: Listen) -> anyhow::Result<()> {
    let draining = stop_on_signal()?;
    let fronts = Fronts { line: bind(&line).await?, resp: bind(&args.resp_listen).await? };
    if fronts.line.is_none() && fronts.resp.is_none() {
        bail!("both --listen and --resp-listen are `none`: nobody could reach the server");
    }
    let clock = Clock::system();
    let store = choice.open(clock)?;
    announce(args, &fronts, choice, policy.as_ref())?;

    let limiter = Arc::new(Limiter::new(policy, store, clock));
    let served = server::run(Arc::clone(&limiter), fronts, args.limits(), args.threads, draining).await;
    limiter.store().close().await.context("the last counters may not be on stable storage")?;
    served.context("cannot start the server's threads")?;
    tracing::info!("stopped");
    Ok(())
}

async fn bind(address: &Listen) -> anyhow::Result<Option<TcpListener>> {
    match address {
        Listen::Off => Ok(None),
        Listen::At(address) => Ok(Some(server::bind(address).await?)),
    }
}

/// One line a front, the store, and the number of rules: what a script waits for, and a person checks.
fn announce(args: &ServeArgs, fronts: &Fronts, store: &StoreChoice, policy: Option<&Policy>) -> anyhow::Result<()> {
    let mut lines = String::new();
    for (name, listener) in [("line protocol", &fronts.line), ("RESP", &fronts.resp)] {
        if let Some(listener) = listener {
            writeln!(lines, "{name} on {}", listener.local_addr()?)?;
        }
    }
    writeln!(lines, "store: {}", store.describe())?;
    match (policy, &args.config) {
        (Some(policy), Some(path)) => {
            writeln!(lines, "rules: {} from {}", policy.rules().rules().len(), path.display())?
        }
        _ => writeln!(lines, "rules: none; a HIT needs them: divvy serve CONFIG")?,
    }
    io::stdout().write_all(lines.as_bytes()).context("cannot print where the server listens")
}

/// A token that SIGTERM or SIGINT cancels.
fn stop_on_signal() -> anyhow::Result<CancellationToken> {
    let draining = CancellationToken::new();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let token = draining.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping: answering what came in");
        token.cancel();
    });
    Ok(draining)
}
