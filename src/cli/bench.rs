//! `divvy bench`: the load generator.
//!
//! A `plan` contains what to send. Each thread's `worker` drives its `lane`s. A lane sends requests over a
//! `connection`, at its own pace or by a schedule; the plan's template and a sequence of `keys` form the requests. `reply`
//! counts the replies, and `report` presents the results. The generator does not interpret requests: any request of
//! either protocol works.

mod args;
mod connection;
mod keys;
mod lane;
mod monitor;
mod plan;
mod reply;
mod report;
#[cfg(test)]
mod tests;
mod worker;

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;

use anyhow::{Context, bail, ensure};

pub use args::BenchArgs;
use args::Protocol;
use connection::Login;
use monitor::Monitor;
use plan::Plan;
use report::Report;
use worker::{Progress, ThreadId, Worker};

/// Last paragraph of the help.
pub const HELP: &str = "\
SECONDS accepts the units ms, s, m, h, d and w, as in 250ms. A number without a unit is in seconds.";

/// Loads the server, and prints a report.
///
/// # Errors
/// The options contradict each other, the server cannot be reached, or a connection fails.
pub fn run(args: BenchArgs) -> anyhow::Result<ExitCode> {
    ensure!(
        args.threads <= args.connections,
        "--threads must not be greater than --connections: each thread needs at \
         least one"
    );
    let plan = Plan::new(&args).with_context(|| format!("--command {:?}", args.command()))?;
    let sockets = connect_all(args.addr(), &args)?;
    let report = measure(&args, &plan, &sockets)?;
    if args.json {
        writeln!(io::stdout(), "{}", serde_json::to_string_pretty(&report)?)?;
    } else {
        writeln!(io::stdout(), "{report}")?;
    }
    Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn connect_all(addr: &str, args: &BenchArgs) -> anyhow::Result<Vec<TcpStream>> {
    let login = match (args.password.password()?, &args.user) {
        (None, _) => None,
        (Some(_), Some(_)) if args.protocol == Protocol::Line => {
            bail!("the line protocol logs in as the user default only: add --protocol resp, or leave out --user")
        }
        (Some(password), user) => Some(Login { user: user.as_deref(), password }),
    };
    let addresses: Vec<SocketAddr> = addr.to_socket_addrs().with_context(|| format!("--addr {addr}"))?.collect();
    let first = *addresses.first().with_context(|| format!("--addr {addr}: the name has no address"))?;
    let connect = |number| {
        connection::connect(first, args.protocol, login)
            .with_context(|| format!("connecting to {first} (connection {number})"))
    };
    (1..=args.connections.get()).map(connect).collect()
}

/// Runs the workers, and samples the server's resource usage from the end of the warm-up to the last reply.
fn measure(args: &BenchArgs, plan: &Plan, sockets: &[TcpStream]) -> anyhow::Result<Report> {
    let progress = Progress::default();
    let count = args.threads.get() as u64;
    std::thread::scope(|scope| {
        let (done, finished) = channel();
        let mut monitor = Monitor::new(args, plan, &progress)?;
        for index in 0..count {
            let thread = ThreadId { index, count };
            let worker = Worker::new(args, plan, sockets, thread, monitor.began(), &progress)?;
            let done = done.clone();
            // The receiver is only gone if the run has failed.
            scope.spawn(move || done.send(worker.run()).unwrap_or_default());
        }
        drop(done);
        let (measured, first_error) = monitor.collect(&finished).inspect_err(|_| {
            progress.failed.store(true, Ordering::Relaxed);
        })?;
        Ok(Report::new(args, plan, &measured, first_error, monitor.usage()?))
    })
}
