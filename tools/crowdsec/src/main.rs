//! `divvy-crowdsec`: a client of divvy that follows a CrowdSec server, and serves CrowdSec's bouncers.
//!
//! [`follower`] makes the bans of a CrowdSec server blocks of divvy: [`upstream`] asks for its decisions, [`answer_reader`] finds
//! them in what arrives, and [`answer`] has the bans among them. [`server`] answers bouncers: [`decisions`] follows divvy's
//! blocks, [`journal`] has them in the order of their changes, and [`listing`] writes the answers. [`decision`] and [`filter`] are
//! the messages of CrowdSec's Local API. Source: `pkg/models/localapi_swagger.yaml` in
//! <https://github.com/crowdsecurity/crowdsec>. [`divvy_api`] is the way to divvy, over the same [`client`] as to CrowdSec.
//!
//! Nothing is kept on disk: after a start, divvy says which blocks there are.

#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::string_slice,
        clippy::unwrap_used,
        reason = "a test may panic"
    )
)]

mod answer;
mod answer_reader;
mod args;
mod client;
mod decision;
mod decisions;
mod divvy_api;
mod filter;
mod follower;
mod journal;
mod keys;
mod listing;
mod metrics;
mod server;
mod upstream;

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use divvy_core::clock::Clock;
use divvy_telemetry::logging::{self, Format};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

use crate::args::{Args, LogFormat, Settings};
use crate::decisions::Decisions;
use crate::follower::Follower;
use crate::metrics::Metrics;
use crate::server::BouncerServer;

fn main() -> ExitCode {
    match run(&Args::from_command_line()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The exit code does not depend on whether standard error still exists.
            let _ = writeln!(io::stderr(), "divvy-crowdsec: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> anyhow::Result<()> {
    #[cfg(feature = "packaging")]
    if args.print_package_file()? {
        return Ok(());
    }
    let filter = std::env::var("RUST_LOG").ok().filter(|filter| !filter.is_empty());
    let format = match args.log_format {
        LogFormat::Human => Format::Human { is_coloured: false },
        LogFormat::Json => Format::Json,
    };
    let _log = logging::begin(format, filter.as_deref().unwrap_or("info"))?;
    let settings = args.read()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(serve(settings))
}

/// Serves until a signal asks to end. There is nothing to write at the end.
async fn serve(settings: Settings) -> anyhow::Result<()> {
    let Settings { divvy, upstream, bouncers, field, interval } = settings;
    let (metrics, clock) = (Arc::new(Metrics::new()?), Clock::system());
    let (divvy, mut tasks) = (Arc::new(divvy), JoinSet::new());
    if let Some(bouncers) = bouncers {
        let listen = &*bouncers.listen;
        let listener = TcpListener::bind(listen).await.with_context(|| format!("--listen {listen}"))?;
        let decisions = Arc::new(Decisions::new(Arc::clone(&divvy), Arc::clone(&field), clock));
        writeln!(io::stdout(), "bouncers on {}", listener.local_addr()?)?;
        let server = BouncerServer::new(decisions, bouncers.keys, Arc::clone(&metrics));
        tasks.spawn(Arc::new(server).run(listener, bouncers.tls));
    }
    if let Some(upstream) = upstream {
        let follower = Follower::new(upstream, divvy, field, interval, clock, metrics);
        tasks.spawn(async move { follower.run().await });
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
