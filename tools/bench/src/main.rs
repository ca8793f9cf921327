//! `divvy-bench`: the load generator.
//!
//! A `plan` contains what to send, with `keys` in it. Each thread's `worker` drives its lanes. A lane sends requests over a
//! `connection`, at its own pace or by a schedule, and counts the replies. `report` watches the run, and presents the results. The
//! generator does not interpret requests: any request of either protocol works.

mod args;
mod connection;
mod keys;
mod plan;
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
use clap::Parser;

use crate::args::{BenchArgs, Protocol};
use crate::connection::Login;
use crate::plan::Plan;
use crate::report::{Monitor, Report};
use crate::worker::{Progress, Worker};

fn main() -> ExitCode {
    match run(&BenchArgs::parse()) {
        Ok(code) => code,
        Err(error) => {
            // The exit code does not depend on whether standard error still exists.
            let _ = writeln!(io::stderr(), "divvy-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Loads the server, and prints a report.
///
/// # Errors
/// The options contradict each other, the server cannot be reached, or a connection fails.
fn run(args: &BenchArgs) -> anyhow::Result<ExitCode> {
    #[cfg(feature = "packaging")]
    if print_package_file(args)? {
        return Ok(ExitCode::SUCCESS);
    }
    ensure!(
        args.threads <= args.connections,
        "--threads must not be greater than --connections: each thread needs at least one"
    );
    let plan = Plan::new(args).with_context(|| format!("--command {:?}", args.command()))?;
    let sockets = connect_all(args.addr(), args)?;
    let report = measure(args, &plan, &sockets)?;
    if args.json {
        writeln!(io::stdout(), "{}", serde_json::to_string_pretty(&report)?)?;
    } else {
        writeln!(io::stdout(), "{report}")?;
    }
    Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints the manual page or a script for a shell, if a flag asks for it. Returns whether one does.
#[cfg(feature = "packaging")]
fn print_package_file(args: &BenchArgs) -> anyhow::Result<bool> {
    let mut command = <BenchArgs as clap::CommandFactory>::command();
    let mut file = Vec::new();
    match args.completions {
        Some(shell) => clap_complete::generate(shell, &mut command, "divvy-bench", &mut file),
        None if args.man => clap_mangen::Man::new(command).render(&mut file)?,
        None => return Ok(false),
    }
    io::stdout().write_all(&file)?;
    Ok(true)
}

fn connect_all(addr: &str, args: &BenchArgs) -> anyhow::Result<Vec<TcpStream>> {
    let has_line_break = args.password.as_ref().is_some_and(|password| password.contains(['\r', '\n']));
    ensure!(!has_line_break, "--password contains a line break, which a password must not");
    let login = match (&args.password, &args.user) {
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
            let worker = Worker::new(args, plan, sockets, (index, count), monitor.began, &progress)?;
            let done = done.clone();
            // The receiver is only gone if the run has failed.
            scope.spawn(move || done.send(worker.run()).unwrap_or_default());
        }
        drop(done);
        let measured = monitor.collect(&finished).inspect_err(|_| progress.failed.store(true, Ordering::Relaxed))?;
        Ok(Report::new(args, plan, measured, monitor.usage()?))
    })
}
