//! The load on one connection: when to send how many requests, and how long their replies took.

use divvy_core::clock::NANOS_PER_SECOND;
use hdrhistogram::Histogram;

use crate::connection::{Connection, ConnectionError};
use crate::keys::{KeySequence, actor};
use crate::plan::Plan;
use crate::reply::ReplyCounts;

/// Range and precision of latencies: from 100 ns to one hour, with three digits.
const LATENCY_RANGE_NS: (u64, u64) = (100, 3_600 * NANOS_PER_SECOND);
const LATENCY_DIGITS: u8 = 3;

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
    pub denied: u64,
    /// Requests without a reply when the run was aborted. Their latency is the time that they waited.
    pub unanswered: u64,
    /// Time of the last reply, in nanoseconds since the run began.
    pub last_reply_ns: u64,
}

impl Measurements {
    pub fn new() -> anyhow::Result<Self> {
        let (lowest, highest) = LATENCY_RANGE_NS;
        let latencies = Histogram::new_with_bounds(lowest, highest, LATENCY_DIGITS)?;
        Ok(Self { latencies, errors: 0, denied: 0, unanswered: 0, last_reply_ns: 0 })
    }

    /// Adds the measurements of another thread.
    pub fn merge(&mut self, other: &Self) -> anyhow::Result<()> {
        self.latencies.add(&other.latencies)?;
        self.errors += other.errors;
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
    pub fn new(connection: Connection<'a>, plan: &Plan, turn: u64, turns: u64) -> Self {
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
    pub fn issue(&mut self, now_ns: u64, shared: &mut ThreadState) -> Result<(), ConnectionError> {
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
        for _ in 0..count {
            shared.plan.template.append(actor(shared.keys.next_key()), self.connection.output());
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
    /// latencies only after the warm-up. Returns the number of replies.
    pub fn receive(
        &mut self,
        now_ns: u64,
        measured: &mut Measurements,
        warmup_ns: u64,
    ) -> Result<u64, ConnectionError> {
        let ReplyCounts { replies, denied, errors } = self.connection.receive()?;
        if replies > self.sent - self.received {
            return Err(ConnectionError::Unasked);
        }
        if replies > 0 {
            self.quiet_since_ns = now_ns;
            measured.last_reply_ns = now_ns;
            measured.errors += errors;
            if self.due_ns(self.received) >= warmup_ns {
                measured.denied += denied;
            }
            self.record(replies, now_ns, &mut measured.latencies, warmup_ns);
        }
        Ok(replies)
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

    fn due_ns(&self, index: u64) -> u64 {
        match self.pace {
            Pace::Closed { batch_due_ns } => batch_due_ns,
            Pace::Open(schedule) => schedule.due_ns(index),
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
    use super::*;
    use proptest::prelude::*;

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
