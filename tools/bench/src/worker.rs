//! A thread of the generator: an event loop over its connections, and the load on each of them: when to send how many requests, and how
//! long their replies took.
//!
//! It uses `poll(2)` instead of an asynchronous runtime. `poll` accepts time-outs in nanoseconds, while a runtime's
//! timer ticks once a millisecond, which is far too coarse for an open loop. If every connection is busy, many requests
//! share the cost of a call.

use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use hdrhistogram::Histogram;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::args::{BenchArgs, Protocol};
use crate::connection::{Connection, ReplyCounts};
use crate::plan::{KeySequence, Plan, actor};
use divvy_core::clock::NANOS_PER_SECOND;

/// Maximum time that a thread waits before it checks the state of the run again.
const LOOK_UP: Duration = Duration::from_millis(50);

#[derive(Debug)]
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
        args: &BenchArgs,
        plan: &'a Plan,
        sockets: &'a [TcpStream],
        (thread, threads): (u64, u64),
        began: Instant,
        has_failed: &'a AtomicBool,
    ) -> anyhow::Result<Self> {
        let keys = KeySequence::new(args.distribution, args.keys, args.first_key, args.seed, (thread, threads))?;
        let measured = Measurements::new()?;
        let budget = plan.budget(thread, threads);
        let lanes = (0..).zip(sockets).filter(|(turn, _)| turn % threads == thread);
        let lanes =
            lanes.map(|(turn, socket)| Lane::new(socket, args.protocol, plan, turn, sockets.len() as u64)).collect();
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
                self.next_issue_ns = now_ns + self.shared.plan.send_interval_ns;
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
        for lane in &mut self.lanes {
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
#[derive(Debug)]
pub struct ThreadState<'a> {
    pub plan: &'a Plan,
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
}

#[derive(Debug)]
pub struct Lane<'a> {
    pub connection: Connection<'a>,
    pace: Pace,
    sent: u64,
    received: u64,
    /// Time of the last reply or, if no request was outstanding, of the last request.
    quiet_since_ns: u64,
}

#[derive(Debug)]
enum Pace {
    /// Sends a batch at a time. The whole batch is due when it is sent.
    Closed {
        batch_due_ns: u64,
    },
    Open(Schedule),
}

impl<'a> Lane<'a> {
    /// Creates lane number `turn` of `turns`.
    pub fn new(socket: &'a TcpStream, protocol: Protocol, plan: &Plan, turn: u64, turns: u64) -> Self {
        let connection = Connection::new(socket, protocol, plan.denial);
        let pace = match plan.rate {
            Some(rate) => Pace::Open(Schedule::new(rate, turn, turns, plan.pipeline)),
            None => Pace::Closed { batch_due_ns: 0 },
        };
        Self { connection, pace, sent: 0, received: 0, quiet_since_ns: 0 }
    }

    pub fn is_waiting(&self) -> bool {
        self.received < self.sent
    }

    /// Returns whether the connection has waited for a reply for longer than `patience_ns`.
    pub fn is_stalled(&self, now_ns: u64, patience_ns: u64) -> bool {
        self.is_waiting() && now_ns.saturating_sub(self.quiet_since_ns) > patience_ns
    }

    /// Sends the requests that are due at `now_ns` and fit into the pipeline.
    pub fn issue(&mut self, now_ns: u64, shared: &mut ThreadState) -> std::io::Result<()> {
        let count = self.issuable(now_ns, shared);
        if count == 0 {
            return Ok(());
        }
        if let Pace::Closed { batch_due_ns } = &mut self.pace {
            *batch_due_ns = now_ns;
            if now_ns >= shared.plan.warmup_ns {
                shared.budget -= count;
            }
        }
        if !self.is_waiting() {
            self.quiet_since_ns = now_ns;
        }
        for index in self.sent..self.sent + count {
            shared.plan.template.append(actor(shared.keys.next_key()), index, &mut self.connection.output);
        }
        self.sent += count;
        self.connection.send()
    }

    fn issuable(&self, now_ns: u64, shared: &ThreadState) -> u64 {
        let plan = shared.plan;
        match self.pace {
            Pace::Closed { .. } if self.is_waiting() || now_ns >= plan.end_ns => 0,
            Pace::Closed { .. } if now_ns < plan.warmup_ns => plan.pipeline,
            Pace::Closed { .. } => plan.pipeline.min(shared.budget),
            Pace::Open(schedule) => {
                let due = schedule.due_before(plan.end_ns.min(now_ns + 1)) - self.sent;
                due.min(plan.pipeline - (self.sent - self.received))
            }
        }
    }

    /// Returns the time of the next request, if only time determines it.
    pub fn next_issue_ns(&self, plan: &Plan) -> Option<u64> {
        match self.pace {
            Pace::Open(schedule) if self.sent - self.received < plan.pipeline => {
                Some(schedule.due_ns(self.sent)).filter(|due_ns| *due_ns < plan.end_ns)
            }
            _ => None,
        }
    }

    /// Reads the replies that have arrived by `now_ns`, and adds them to `measured`: errors always, denials and
    /// latencies only after the warm-up.
    pub fn receive(&mut self, now_ns: u64, measured: &mut Measurements, warmup_ns: u64) -> anyhow::Result<()> {
        let ReplyCounts { replies, denied, errors, .. } = self.connection.receive(self.warm_up(warmup_ns))?;
        ensure!(replies <= self.sent - self.received, "the server sent a reply without a request");
        if replies > 0 {
            self.quiet_since_ns = now_ns;
            measured.last_reply_ns = now_ns;
            measured.errors += errors;
            measured.denied += denied;
            self.record(replies, now_ns, &mut measured.latencies, warmup_ns);
        }
        Ok(())
    }

    /// Ends the run at `now_ns`. Counts requests that are due and have no reply.
    pub fn give_up(&mut self, now_ns: u64, plan: &Plan, measured: &mut Measurements) {
        let due = match self.pace {
            Pace::Closed { .. } => self.sent,
            Pace::Open(schedule) => schedule.due_before(plan.end_ns.min(now_ns)).max(self.sent),
        };
        measured.unanswered += self.record(due - self.received, now_ns, &mut measured.latencies, plan.warmup_ns);
    }

    /// Records the next `count` replies at `now_ns`. Returns the number of them that were due after the warm-up.
    fn record(&mut self, count: u64, now_ns: u64, latencies: &mut Histogram<u64>, warmup_ns: u64) -> u64 {
        let first = self.received;
        self.received += count;
        self.sent = self.sent.max(self.received);
        match self.pace {
            Pace::Closed { batch_due_ns } if batch_due_ns < warmup_ns => 0,
            Pace::Closed { batch_due_ns } => {
                latencies.saturating_record_n(now_ns.saturating_sub(batch_due_ns), count);
                count
            }
            Pace::Open(schedule) => {
                let due = (first..self.received).map(|index| schedule.due_ns(index)).filter(|due| *due >= warmup_ns);
                due.map(|due_ns| latencies.saturating_record(now_ns.saturating_sub(due_ns))).count() as u64
            }
        }
    }

    /// Returns how many of the next replies belong to the warm-up.
    fn warm_up(&self, warmup_ns: u64) -> u64 {
        match self.pace {
            Pace::Closed { batch_due_ns } if batch_due_ns < warmup_ns => u64::MAX,
            Pace::Closed { .. } => 0,
            Pace::Open(schedule) => schedule.due_before(warmup_ns).saturating_sub(self.received),
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

    /// Returns the due time of this connection's request number `index`.
    pub fn due_ns(&self, index: u64) -> u64 {
        let (round, place) = (index / self.block, index % self.block);
        self.due_ns_of_all((round * self.turns + self.turn) * self.block + place)
    }

    /// Returns the number of this connection's requests that are due before `time_ns`.
    pub fn due_before(&self, time_ns: u64) -> u64 {
        let all = self.all_due_before(time_ns);
        let round = self.turns * self.block;
        let in_this_round = (all % round).saturating_sub(self.turn * self.block).min(self.block);
        all / round * self.block + in_this_round
    }

    /// Returns the due time of the request with this index among the requests of all connections. It is exact to the
    /// nanosecond for the first hundred days.
    fn due_ns_of_all(&self, index: u64) -> u64 {
        (index as f64 * self.interval_ns) as u64
    }

    fn all_due_before(&self, time_ns: u64) -> u64 {
        let mut count = (time_ns as f64 / self.interval_ns) as u64;
        // The division is rounded, so the due times themselves correct it.
        while self.due_ns_of_all(count) < time_ns {
            count += 1;
        }
        while count > 0 && self.due_ns_of_all(count - 1) >= time_ns {
            count -= 1;
        }
        count
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
        let total: u64 = (0..50).map(|turn| Schedule::new(12_345.0, turn, 50, 32).due_before(NANOS_PER_SECOND)).sum();
        assert_eq!(total, 12_345);
    }

    proptest! {
        #[test]
        fn requests_due_before_a_time_have_earlier_due_times(
            rate in 0.01..1e7_f64, turns in 1..500_u64, turn in 0..500_u64, block in 1..40_u64,
            time_ns in 0..1_000_000_000_000_u64,
        ) {
            let schedule = Schedule::new(rate, turn % turns, turns, block);
            let count = schedule.due_before(time_ns);
            prop_assert!(count == 0 || schedule.due_ns(count - 1) < time_ns);
            prop_assert!(schedule.due_ns(count) >= time_ns);
        }
    }
}
