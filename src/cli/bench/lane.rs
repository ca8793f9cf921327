//! One connection's part of the load: when to send how much, and how long each reply took.

use hdrhistogram::Histogram;

use super::connection::{Connection, ConnectionError};
use super::keys::{KeySequence, actor};
use super::plan::Plan;
use super::reply::Tally;
use super::schedule::Schedule;

/// What the lanes of one thread share.
#[derive(Debug)]
pub struct Shared<'a> {
    pub plan: &'a Plan,
    pub keys: KeySequence,
    /// Measured requests that may still be sent.
    pub budget: u64,
    pub measured: Measured,
}

/// What was measured, the warm-up left out.
#[derive(Debug, Clone)]
pub struct Measured {
    /// Nanoseconds from the time when a request was due to its reply.
    pub latencies: Histogram<u64>,
    /// Errors count from the start of the run, warm-up included.
    pub errors: u64,
    pub denied: u64,
    /// Requests that had no reply when the run was given up. Their latency is the time that they waited.
    pub unanswered: u64,
    /// When the last reply came, in nanoseconds since the run began.
    pub last_reply_ns: u64,
}

#[derive(Debug)]
pub struct Lane<'a> {
    pub connection: Connection<'a>,
    pace: Pace,
    sent: u64,
    received: u64,
    /// The last time when a reply came or, with none outstanding, a request went out.
    quiet_since_ns: u64,
}

#[derive(Debug)]
enum Pace {
    /// A batch of requests at a time; all of it is due when it is sent.
    Closed {
        batch_due_ns: u64,
    },
    Open(Schedule),
}

impl<'a> Lane<'a> {
    /// Lane number `turn` of `turns`.
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

    /// Has it waited for a reply for longer than `patience_ns`?
    pub fn is_stalled(&self, now_ns: u64, patience_ns: u64) -> bool {
        self.is_waiting() && now_ns.saturating_sub(self.quiet_since_ns) > patience_ns
    }

    /// Sends what is due at `now_ns` and fits into the pipeline.
    pub fn issue(&mut self, now_ns: u64, shared: &mut Shared) -> Result<(), ConnectionError> {
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

    fn issuable(&self, now_ns: u64, shared: &Shared) -> u64 {
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

    /// When this lane wants to send next, if that is a matter of time alone.
    pub fn next_issue_ns(&self, plan: &Plan) -> Option<u64> {
        match self.pace {
            Pace::Open(schedule) if self.sent - self.received < plan.pipeline => {
                Some(schedule.due_ns(self.sent)).filter(|due_ns| *due_ns < plan.end_ns)
            }
            _ => None,
        }
    }

    /// Reads replies that came by `now_ns`; returns how many.
    pub fn receive(&mut self, now_ns: u64, measured: &mut Measured, warmup_ns: u64) -> Result<u64, ConnectionError> {
        let Tally { replies, denied, errors } = self.connection.receive()?;
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

    /// Counts what is due and has no reply at `now_ns`, when nothing more will be read.
    pub fn give_up(&mut self, now_ns: u64, plan: &Plan, measured: &mut Measured) {
        let due = match self.pace {
            Pace::Closed { .. } => self.sent,
            Pace::Open(schedule) => schedule.due_before(plan.end_ns.min(now_ns)).max(self.sent),
        };
        measured.unanswered += self.record(due - self.received, now_ns, &mut measured.latencies, plan.warmup_ns);
    }

    /// Records the next `count` replies as of `now_ns`; returns how many of them were due after the warm-up.
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
