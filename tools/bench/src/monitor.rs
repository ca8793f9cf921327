//! Watches a run from the main thread: shows its progress, and samples resource usage, as the kernel reports it in `/proc`.

#![expect(clippy::disallowed_methods, reason = "a load generator measures")]

use std::io::{IsTerminal, Write};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::args::BenchArgs;
use crate::lane::Measurements;
use crate::plan::Plan;
use crate::report::{ServerUsage, Usage};
use crate::worker::{Progress, ThreadResults};

/// Time between two updates of the progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);

const CLEAR_TO_END_OF_LINE: &str = "\x1b[K";

pub struct Monitor<'a> {
    args: &'a BenchArgs,
    plan: &'a Plan,
    progress: &'a Progress,
    began: Instant,
    /// Whether standard error is a terminal. If so, progress is shown in one line.
    is_terminal: bool,
    /// Time of the last update, and the number of replies then.
    shown: (Instant, u64),
    /// CPU times of the generator and the server at the end of the warm-up.
    start: CpuTimes,
    warm: bool,
}

#[derive(Debug, Clone, Copy)]
struct CpuTimes {
    generator: Duration,
    server: Option<Duration>,
}

impl CpuTimes {
    fn now(server: Option<u32>) -> anyhow::Result<Self> {
        let server = server.map(cpu_time).transpose()?;
        Ok(Self { generator: cpu_time(std::process::id()).unwrap_or_default(), server })
    }
}

impl<'a> Monitor<'a> {
    /// Starts watching at the beginning of a run.
    pub fn new(args: &'a BenchArgs, plan: &'a Plan, progress: &'a Progress) -> anyhow::Result<Self> {
        let start = CpuTimes::now(args.pid)?;
        let began = Instant::now();
        Ok(Self {
            args,
            plan,
            progress,
            began,
            is_terminal: std::io::stderr().is_terminal(),
            shown: (began, 0),
            start,
            warm: plan.warmup_ns == 0,
        })
    }

    pub fn began(&self) -> Instant {
        self.began
    }

    /// Waits for all threads, and merges their results.
    pub fn collect(
        &mut self,
        finished: &Receiver<anyhow::Result<ThreadResults>>,
    ) -> anyhow::Result<(Measurements, Option<String>)> {
        let mut measured = Measurements::new()?;
        let mut first_error = None;
        loop {
            match finished.recv_timeout(self.until_next_look()) {
                Ok(findings) => {
                    let findings = findings?;
                    measured.merge(&findings.measured)?;
                    first_error = first_error.or(findings.first_error);
                }
                Err(RecvTimeoutError::Timeout) => self.look()?,
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        if self.is_terminal {
            // The run continues even if the terminal is gone.
            let _ = writeln!(std::io::stderr());
        }
        Ok((measured, first_error))
    }

    fn until_next_look(&self) -> Duration {
        let warmup = Duration::from_nanos(self.plan.warmup_ns);
        if self.warm { PROGRESS_INTERVAL } else { warmup.saturating_sub(self.began.elapsed()).min(PROGRESS_INTERVAL) }
    }

    fn look(&mut self) -> anyhow::Result<()> {
        if !self.warm && self.began.elapsed() >= Duration::from_nanos(self.plan.warmup_ns) {
            self.warm = true;
            self.start = CpuTimes::now(self.args.pid)?;
        }
        if self.is_terminal || self.args.progress {
            self.show_progress();
        }
        Ok(())
    }

    fn show_progress(&mut self) {
        let replies = self.progress.replies.load(Ordering::Relaxed);
        let errors = self.progress.errors.load(Ordering::Relaxed);
        let (shown_at, shown_replies) = std::mem::replace(&mut self.shown, (Instant::now(), replies));
        let per_second = (replies - shown_replies) as f64 / shown_at.elapsed().as_secs_f64();
        let seconds = self.began.elapsed().as_secs_f64();
        let phase = if self.warm { "" } else { ", warming up" };
        let line = format!("{seconds:6.1} s  {replies} replies  {per_second:.0} a second  {errors} errors{phase}");
        // The run continues even if standard error is closed.
        let _ = match self.is_terminal {
            true => write!(std::io::stderr(), "\r{line}{CLEAR_TO_END_OF_LINE}"),
            false => writeln!(std::io::stderr(), "{line}"),
        };
    }

    pub fn usage(&self) -> anyhow::Result<Usage> {
        let end = CpuTimes::now(self.args.pid)?;
        let server_cpu = end.server.zip(self.start.server).map(|(end, start)| end.saturating_sub(start));
        let server = match (server_cpu, self.args.pid) {
            (Some(cpu), Some(pid)) => Some(ServerUsage { cpu, resident_bytes: resident_bytes(pid)? }),
            _ => None,
        };
        Ok(Usage { generator_cpu: end.generator.saturating_sub(self.start.generator), server })
    }
}

/// Returns the CPU time of all threads of a process, including those that have ended.
///
/// The kernel reports it in clock ticks (10 ms), so measure over at least a second.
fn cpu_time(pid: u32) -> anyhow::Result<Duration> {
    let path = format!("/proc/{pid}/stat");
    let stat = std::fs::read_to_string(&path).with_context(|| format!("reading {path} for the server's CPU time"))?;
    let ticks = cpu_ticks(&stat).with_context(|| format!("{path} is not of the form that proc(5) documents"))?;
    Ok(Duration::from_secs(ticks) / u32::try_from(rustix::param::clock_ticks_per_second())?.max(1))
}

/// Returns `utime` plus `stime`, fields 14 and 15 of `/proc/PID/stat` (see proc(5)). The second field is the program's
/// name in parentheses, which may contain any character.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

/// Returns the resident memory of a process in bytes.
fn resident_bytes(pid: u32) -> anyhow::Result<u64> {
    let path = format!("/proc/{pid}/status");
    let status = std::fs::read_to_string(&path).with_context(|| format!("reading {path} for the server's memory"))?;
    resident_kib(&status).map(|kib| kib * 1024).with_context(|| format!("{path} has no VmRSS"))
}

fn resident_kib(status: &str) -> Option<u64> {
    let (_, value) = status.lines().filter_map(|line| line.split_once(':')).find(|(name, _)| *name == "VmRSS")?;
    value.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_ticks_are_found_after_any_program_name() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194560 5 6 7 8 120 30 9 9 20 0 3 0 100 1 2";
        assert_eq!(cpu_ticks(stat), Some(150));
        assert_eq!(cpu_ticks("42 (x"), None);
        assert_eq!(cpu_ticks("42 (x) S 1"), None);
    }

    #[test]
    fn resident_memory_is_parsed() {
        assert_eq!(resident_kib("Name:\tx\nVmHWM:\t 9 kB\nVmRSS:\t  1234 kB\n"), Some(1234));
        assert_eq!(resident_kib("Name:\tx\n"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_uses_memory() {
        assert!(resident_bytes(std::process::id()).unwrap() > 100_000);
        assert!(cpu_time(std::process::id()).is_ok());
    }
}
