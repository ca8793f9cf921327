//! The load on one connection: when to send how many requests, and how long their replies took.

use hdrhistogram::Histogram;

use super::connection::{Connection, ConnectionError};
use super::keys::{KeySequence, actor};
use super::plan::Plan;
use super::reply::ReplyCounts;
use super::schedule::Schedule;

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
