//! A thread of the generator: an event loop over its connections.
//!
//! It uses `poll(2)` instead of an asynchronous runtime. `poll` accepts time-outs in nanoseconds, while a runtime's
//! timer ticks once a millisecond, which is far too coarse for an open loop. If every connection is busy, many requests
//! share the cost of a call.

use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::args::{BenchArgs, Protocol};
use crate::connection::Connection;
use crate::keys::KeySequence;
use crate::lane::{Lane, Measurements, ThreadState};
use crate::plan::Plan;

/// Maximum time that a thread waits before it checks the state of the run again.
const LOOK_UP: Duration = Duration::from_millis(50);

/// The progress of the run. Every thread adds to it.
#[derive(Debug, Default)]
pub struct Progress {
    pub replies: AtomicU64,
    pub errors: AtomicU64,
    /// Set if the run has failed, so that all threads stop.
    pub failed: AtomicBool,
}

/// Identifies thread number `index` of `count`.
#[derive(Debug, Clone, Copy)]
pub struct ThreadId {
    pub index: u64,
    pub count: u64,
}

#[derive(Debug)]
pub struct Worker<'a> {
    shared: ThreadState<'a>,
    lanes: Vec<Lane<'a>>,
    /// Time of the next request.
    next_issue_ns: u64,
    began: Instant,
    progress: &'a Progress,
}

/// The results of one thread.
#[derive(Debug)]
pub struct ThreadResults {
    pub measured: Measurements,
    pub first_error: Option<String>,
}

impl<'a> Worker<'a> {
    /// Creates the worker for every `thread.count`-th of `sockets`.
    pub fn new(
        args: &BenchArgs,
        plan: &'a Plan,
        sockets: &'a [TcpStream],
        thread: ThreadId,
        began: Instant,
        progress: &'a Progress,
    ) -> anyhow::Result<Self> {
        let keys =
            KeySequence::new(args.distribution, args.keys, args.first_key, args.seed, thread.index, thread.count)?;
        let measured = Measurements::new()?;
        let budget = plan.budget(thread.index, thread.count);
        let lanes = (0..).zip(sockets).filter(|(turn, _)| turn % thread.count == thread.index);
        let lanes = lanes.map(|(turn, socket)| lane(socket, args.protocol, plan, turn, sockets.len())).collect();
        Ok(Self { shared: ThreadState { plan, keys, budget, measured }, lanes, next_issue_ns: 0, began, progress })
    }

    /// Runs until the plan is completed.
    ///
    /// # Errors
    /// A connection fails.
    pub fn run(mut self) -> anyhow::Result<ThreadResults> {
        wake_up_on_time();
        let mut waits: Vec<PollFd<'a>> = Vec::with_capacity(self.lanes.len());
        while !self.progress.failed.load(Ordering::Relaxed) {
            let now_ns = self.now_ns();
            if now_ns >= self.next_issue_ns {
                self.issue(now_ns)?;
                if self.is_done(now_ns) {
                    break;
                }
            }
            self.wait(&mut waits)?;
            self.receive(&waits)?;
        }
        Ok(self.finish())
    }

    fn issue(&mut self, now_ns: u64) -> anyhow::Result<()> {
        for lane in &mut self.lanes {
            lane.issue(now_ns, &mut self.shared).context("sending requests")?;
        }
        self.next_issue_ns = now_ns + self.shared.plan.send_interval_ns;
        Ok(())
    }

    #[expect(clippy::disallowed_methods, reason = "a load generator measures")]
    fn now_ns(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn is_done(&self, now_ns: u64) -> bool {
        let plan = self.shared.plan;
        let waiting = self.lanes.iter().any(Lane::is_waiting);
        let stalled = self.lanes.iter().any(|lane| lane.is_stalled(now_ns, plan.patience_ns));
        let nothing_to_send = now_ns >= plan.end_ns || self.shared.budget == 0;
        stalled || nothing_to_send && !waiting || now_ns > plan.end_ns.saturating_add(plan.patience_ns)
    }

    /// Waits until a connection is readable or writable, or a request is due.
    fn wait(&self, waits: &mut Vec<PollFd<'a>>) -> anyhow::Result<()> {
        waits.clear();
        waits.extend(self.lanes.iter().map(|lane| {
            let out = if lane.connection.has_unsent_output() { PollFlags::OUT } else { PollFlags::empty() };
            PollFd::new(lane.connection.socket(), PollFlags::IN | out)
        }));
        match poll(waits, Some(&self.time_out())) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error).context("waiting for the server"),
        }
    }

    fn time_out(&self) -> Timespec {
        let next_ns = self.lanes.iter().filter_map(|lane| lane.next_issue_ns(self.shared.plan)).min();
        let until_next =
            next_ns.map(|next_ns| Duration::from_nanos(next_ns.max(self.next_issue_ns).saturating_sub(self.now_ns())));
        let time_out = until_next.map_or(LOOK_UP, |until_next| until_next.min(LOOK_UP));
        Timespec { tv_sec: 0, tv_nsec: i64::from(time_out.subsec_nanos()) as _ }
    }

    fn receive(&mut self, waits: &[PollFd<'a>]) -> anyhow::Result<()> {
        let now_ns = self.now_ns();
        let errors_before = self.shared.measured.errors;
        let mut replies = 0;
        for (lane, wait) in self.lanes.iter_mut().zip(waits) {
            let ready = wait.revents();
            if ready.contains(PollFlags::OUT) {
                lane.connection.send().context("sending requests")?;
            }
            if ready.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
                let measured = &mut self.shared.measured;
                replies += lane.receive(now_ns, measured, self.shared.plan.warmup_ns).context("reading replies")?;
            }
        }
        if replies > 0 {
            self.progress.replies.fetch_add(replies, Ordering::Relaxed);
            self.progress.errors.fetch_add(self.shared.measured.errors - errors_before, Ordering::Relaxed);
        }
        Ok(())
    }

    fn finish(mut self) -> ThreadResults {
        let now_ns = self.now_ns();
        for lane in &mut self.lanes {
            lane.give_up(now_ns, self.shared.plan, &mut self.shared.measured);
        }
        let first_error = self.lanes.iter().find_map(|lane| lane.connection.first_error());
        ThreadResults { first_error: first_error.map(str::to_owned), measured: self.shared.measured }
    }
}

fn lane<'a>(socket: &'a TcpStream, protocol: Protocol, plan: &Plan, turn: u64, turns: usize) -> Lane<'a> {
    Lane::new(Connection::new(socket, protocol, plan.first_number), plan, turn, turns as u64)
}

/// Turns off timer slack: Linux may delay a thread's time-outs by 50 µs to save power, which would distort an open
/// loop.
fn wake_up_on_time() {
    #[cfg(target_os = "linux")]
    // If this fails, requests are sent slightly late, and their latency includes the delay.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
}
