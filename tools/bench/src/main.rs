//! `divvy-bench`: the load generator.
//!
//! A `plan` contains the requests and their keys. Each thread's `worker` drives its lanes. A lane sends requests over a
//! `connection`, at its own pace or by a schedule, and counts the replies. `report` presents the results. The generator does not
//! interpret requests: any request of the line protocol or RESP works.

mod args;
mod connection;
mod http2;
mod plan;
mod report;
#[cfg(test)]
mod tests;
mod worker;

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use std::{panic, thread};

use anyhow::{Context, bail, ensure};
use clap::Parser;

use crate::args::{BenchArgs, Protocol};
use crate::connection::Login;
use crate::plan::Plan;
use crate::report::{Report, Usage};
use crate::worker::{Measurements, Worker};

fn main() -> ExitCode {
    run(&BenchArgs::parse()).unwrap_or_else(|error| {
        // The exit code does not depend on whether standard error still exists.
        let _ = writeln!(io::stderr(), "divvy-bench: {error:#}");
        ExitCode::FAILURE
    })
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
    let report = measure(&plan, &sockets)?;
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
        (Some(_), _) if matches!(args.protocol, Protocol::Http | Protocol::Grpc) => {
            bail!("--password is for --protocol line and resp only")
        }
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

/// Runs the workers. The use of resources counts from the end of the warm-up to the last reply.
#[expect(clippy::disallowed_methods, reason = "a load generator measures")]
fn measure(plan: &Plan, sockets: &[TcpStream]) -> anyhow::Result<Report> {
    // A wrong process ID is reported before anything is sent.
    let args = plan.args;
    let mut start = Usage::now(args.pid)?;
    let (began, has_failed, count) = (Instant::now(), AtomicBool::new(false), args.threads.get() as u64);
    let worker = |index| Worker::new(plan, sockets, (index, count), began, &has_failed);
    let workers = (0..count).map(worker).collect::<anyhow::Result<Vec<_>>>()?;
    let mut measured = Measurements::new()?;
    thread::scope(|scope| {
        let threads: Vec<_> = workers.into_iter().map(|worker| scope.spawn(move || worker.run())).collect();
        if plan.warmup_ns > 0 {
            thread::sleep(Duration::from_nanos(plan.warmup_ns));
            start = Usage::now(args.pid).inspect_err(|_| has_failed.store(true, Relaxed))?;
        }
        for thread in threads {
            measured.merge(thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic))?)?;
        }
        anyhow::Ok(())
    })?;
    Ok(Report::new(plan, measured, Usage::now(args.pid)?.since(start)))
}
