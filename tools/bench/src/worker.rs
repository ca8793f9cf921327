//! A thread of the generator: an event loop over its connections, and the load on each of them: when to send how many requests, and how
//! long their replies took.
//!
//! It uses `poll(2)` instead of an asynchronous runtime. `poll` accepts time-outs in nanoseconds, while a runtime's
//! timer ticks once a millisecond, which is far too coarse for an open loop. If every connection is busy, many requests
//! share the cost of a call.

use std::collections::VecDeque;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use hdrhistogram::Histogram;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::connection::{Connection, ReplyCounts, number_of_a_denial};
use crate::plan::{KeySequence, Plan, actor, key_sequence};
use divvy_core::clock::NANOS_PER_SECOND;

/// Maximum time that a thread waits before it checks the state of the run again.
const LOOK_UP: Duration = Duration::from_millis(50);

pub struct Worker<'a> {
    shared: ThreadState<'a>,
    lanes: Vec<Lane<'a>>,
    /// Time of the next request.
    next_issue_ns: u64,
    began: Instant,
    /// Set if the run has failed, so that all threads stop.
    has_failed: &'a AtomicBool,
}

impl<'a> Worker<'a> {
    /// Creates the worker for every `threads`-th of `sockets`, from number `thread`.
    pub fn new(
        plan: &'a Plan<'a>,
        sockets: &'a [TcpStream],
        (thread, threads): (u64, u64),
        began: Instant,
        has_failed: &'a AtomicBool,
    ) -> anyhow::Result<Self> {
        let keys = key_sequence(plan.args, thread, threads)?;
        let measured = Measurements::new()?;
        let budget = plan.budget(thread, threads);
        let lanes = (0..).zip(sockets).filter(|(turn, _)| turn % threads == thread);
        let lanes = lanes.map(|(turn, socket)| Lane::new(socket, plan, turn, sockets.len() as u64)).collect();
        Ok(Self { shared: ThreadState { plan, keys, budget, measured }, lanes, next_issue_ns: 0, began, has_failed })
    }

    /// Runs until the plan is completed.
    ///
    /// # Errors
    /// A connection fails.
    pub fn run(mut self) -> anyhow::Result<Measurements> {
        wake_up_on_time();
        self.drive().inspect_err(|_| self.has_failed.store(true, Relaxed))?;
        Ok(self.finish())
    }

    fn drive(&mut self) -> anyhow::Result<()> {
        let mut waits: Vec<PollFd<'a>> = Vec::with_capacity(self.lanes.len());
        while !self.has_failed.load(Relaxed) {
            let now_ns = self.now_ns();
            if now_ns >= self.next_issue_ns {
                for lane in &mut self.lanes {
                    lane.issue(now_ns, &mut self.shared).context("sending requests")?;
                }
                self.next_issue_ns = now_ns + self.shared.plan.send_interval_ns();
                if self.is_done(now_ns) {
                    break;
                }
            }
            self.wait(&mut waits)?;
            self.receive(&waits)?;
        }
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
            let out = if lane.connection.output.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
            PollFd::new(lane.connection.socket, PollFlags::IN | out)
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
        for (lane, wait) in self.lanes.iter_mut().zip(waits) {
            let ready = wait.revents();
            if ready.contains(PollFlags::OUT) {
                lane.connection.send().context("sending requests")?;
            }
            if ready.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
                let measured = &mut self.shared.measured;
                lane.receive(now_ns, measured, self.shared.plan.warmup_ns).context("reading replies")?;
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Measurements {
        let now_ns = self.now_ns();
        for lane in &self.lanes {
            lane.give_up(now_ns, self.shared.plan, &mut self.shared.measured);
        }
        let first_error = self.lanes.into_iter().find_map(|lane| lane.connection.replies.first_error);
        Measurements { first_error, ..self.shared.measured }
    }
}

/// Turns off timer slack: Linux may delay a thread's time-outs by 50 µs to save power, which would distort an open
/// loop.
fn wake_up_on_time() {
    #[cfg(target_os = "linux")]
    // If this fails, requests are sent slightly late, and their latency includes the delay.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
}

/// State that the lanes of a thread share.
pub struct ThreadState<'a> {
    pub plan: &'a Plan<'a>,
    pub keys: KeySequence,
    /// Requests that remain to be sent.
    pub budget: u64,
    pub measured: Measurements,
}

/// Measurements, without the warm-up.
#[derive(Debug, Clone)]
pub struct Measurements {
    /// Nanoseconds from each request's due time to its reply.
    pub latencies: Histogram<u64>,
    /// Errors since the start of the run, including the warm-up.
    pub errors: u64,
    pub first_error: Option<String>,
    pub denied: u64,
    /// Requests without a reply when the run was aborted. Their latency is the time that they waited.
    pub unanswered: u64,
    /// Time of the last reply, in nanoseconds since the run began.
    pub last_reply_ns: u64,
}

impl Measurements {
    pub fn new() -> anyhow::Result<Self> {
        // From 100 ns to one hour, with three digits.
        let latencies = Histogram::new_with_bounds(100, 3_600 * NANOS_PER_SECOND, 3)?;
        Ok(Self { latencies, errors: 0, first_error: None, denied: 0, unanswered: 0, last_reply_ns: 0 })
    }

    /// Adds the measurements of another thread.
    pub fn merge(&mut self, other: Self) -> anyhow::Result<()> {
        self.latencies.add(&other.latencies)?;
        self.errors += other.errors;
        self.first_error = self.first_error.take().or(other.first_error);
        self.denied += other.denied;
        self.unanswered += other.unanswered;
        self.last_reply_ns = self.last_reply_ns.max(other.last_reply_ns);
        Ok(())
    }

    /// Records that a request waited until `now_ns`. Returns false if it was due in the warm-up, which is not measured.
    fn record(&mut self, due_ns: u64, now_ns: u64, warmup_ns: u64) -> bool {
        let is_measured = due_ns >= warmup_ns;
        if is_measured {
            self.latencies.saturating_record(now_ns.saturating_sub(due_ns));
        }
        is_measured
    }
}

#[derive(Debug)]
pub struct Lane<'a> {
    pub connection: Connection<'a>,
    /// The due times of an open loop. In a closed loop, a batch is due when the replies to the last one have arrived.
    schedule: Option<Schedule>,
    sent: u64,
    /// Due times of the requests without a reply.
    due_ns: VecDeque<u64>,
    /// Time of the last reply or, if no request was outstanding, of the last request.
    quiet_since_ns: u64,
}

impl<'a> Lane<'a> {
    /// Creates lane number `turn` of `turns`.
    pub fn new(socket: &'a TcpStream, plan: &Plan, turn: u64, turns: u64) -> Self {
        let args = plan.args;
        let connection = Connection::new(socket, args.protocol, number_of_a_denial(args.command()));
        let schedule = args.rate.map(|rate| Schedule::new(rate, turn, turns, args.pipeline.get()));
        Self { connection, schedule, sent: 0, due_ns: VecDeque::new(), quiet_since_ns: 0 }
    }

    pub fn is_waiting(&self) -> bool {
        !self.due_ns.is_empty()
    }

    /// Returns whether the connection has waited for a reply for longer than `patience_ns`.
    pub fn is_stalled(&self, now_ns: u64, patience_ns: u64) -> bool {
        self.is_waiting() && now_ns.saturating_sub(self.quiet_since_ns) > patience_ns
    }

    fn has_room(&self, plan: &Plan) -> bool {
        (self.due_ns.len() as u64) < plan.args.pipeline.get()
    }

    /// Sends the requests that are due at `now_ns` and fit into the pipeline.
    pub fn issue(&mut self, now_ns: u64, shared: &mut ThreadState) -> std::io::Result<()> {
        let (plan, sent_before, was_waiting) = (shared.plan, self.sent, self.is_waiting());
        while self.has_room(plan) && shared.budget > 0 {
            let due_ns = match self.schedule {
                Some(schedule) => schedule.due_ns(self.sent),
                None if was_waiting => break,
                None => now_ns,
            };
            if due_ns > now_ns || due_ns >= plan.end_ns {
                break;
            }
            plan.template.append(actor((shared.keys)()), self.sent, &mut self.connection.output);
            shared.budget -= u64::from(now_ns >= plan.warmup_ns);
            self.sent += 1;
            self.due_ns.push_back(due_ns);
        }
        if self.sent == sent_before {
            return Ok(());
        }
        if !was_waiting {
            self.quiet_since_ns = now_ns;
        }
        self.connection.send()
    }

    /// Returns the time of the next request, if only time determines it.
    pub fn next_issue_ns(&self, plan: &Plan) -> Option<u64> {
        let schedule = self.schedule.filter(|_| self.has_room(plan))?;
        Some(schedule.due_ns(self.sent)).filter(|due_ns| *due_ns < plan.end_ns)
    }

    /// Reads the replies that have arrived by `now_ns`, and adds them to `measured`: errors always, denials and
    /// latencies only after the warm-up.
    pub fn receive(&mut self, now_ns: u64, measured: &mut Measurements, warmup_ns: u64) -> anyhow::Result<()> {
        let in_warm_up = self.due_ns.iter().take_while(|due_ns| **due_ns < warmup_ns).count();
        let ReplyCounts { replies, denied, errors, .. } = self.connection.receive(in_warm_up as u64)?;
        ensure!(replies <= self.due_ns.len() as u64, "the server sent a reply without a request");
        if replies > 0 {
            self.quiet_since_ns = now_ns;
            measured.last_reply_ns = now_ns;
            measured.errors += errors;
            measured.denied += denied;
            for due_ns in self.due_ns.drain(..replies as usize) {
                measured.record(due_ns, now_ns, warmup_ns);
            }
        }
        Ok(())
    }

    /// Ends the run at `now_ns`. Counts requests that are due and have no reply.
    pub fn give_up(&self, now_ns: u64, plan: &Plan, measured: &mut Measurements) {
        let is_due = |due_ns: &u64| *due_ns < plan.end_ns.min(now_ns);
        let unsent = (self.sent..).map_while(|index| Some(self.schedule?.due_ns(index)).filter(is_due));
        for due_ns in self.due_ns.iter().copied().chain(unsent) {
            measured.unanswered += u64::from(measured.record(due_ns, now_ns, plan.warmup_ns));
        }
    }
}

/// The due times of one connection, in nanoseconds since the run began. The requests of all connections are evenly
/// spaced. Connections take turns, with a block of requests each.
#[derive(Debug, Clone, Copy)]
pub struct Schedule {
    interval_ns: f64,
    turn: u64,
    turns: u64,
    block: u64,
}

impl Schedule {
    /// Creates the schedule of connection number `turn` of `turns`. Together they send `rate` (> 0) requests per
    /// second, in turns of `block` (> 0) requests.
    pub fn new(rate: f64, turn: u64, turns: u64, block: u64) -> Self {
        Self { interval_ns: NANOS_PER_SECOND as f64 / rate, turn, turns, block }
    }

    /// Returns the due time of this connection's request number `index`. It is exact to the nanosecond for the first hundred
    /// days.
    pub fn due_ns(&self, index: u64) -> u64 {
        let (round, place) = (index / self.block, index % self.block);
        let index_of_all = (round * self.turns + self.turn) * self.block + place;
        (index_of_all as f64 * self.interval_ns) as u64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn connections_take_turns_at_even_intervals() {
        let due = |turn| {
            let schedule = Schedule::new(1_000.0, turn, 4, 2);
            [0, 1, 2, 3].map(|index| schedule.due_ns(index) / 1_000_000)
        };
        assert_eq!(due(0), [0, 1, 8, 9]);
        assert_eq!(due(3), [6, 7, 14, 15]);
    }

    #[test]
    fn each_second_has_as_many_requests_as_the_rate() {
        let due = |turn| {
            let schedule = Schedule::new(12_345.0, turn, 50, 32);
            (0..).take_while(|index| schedule.due_ns(*index) < NANOS_PER_SECOND).count()
        };
        assert_eq!((0..50).map(due).sum::<usize>(), 12_345);
    }

    proptest! {
        #[test]
        fn due_times_of_a_connection_never_decrease(
            rate in 0.01..1e7_f64, turns in 1..500_u64, turn in 0..500_u64, block in 1..40_u64, index in 0..1_000_000_u64,
        ) {
            let schedule = Schedule::new(rate, turn % turns, turns, block);
            prop_assert!(schedule.due_ns(index) <= schedule.due_ns(index + 1));
        }
    }
}
