//! The queue between the callers of a connection and the task that drives it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

use redis::RedisError;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::reply::Reply;

/// The reason why commands have no replies.
#[derive(Debug)]
pub enum Unanswered {
    /// The deadline passed. The commands may have been carried out.
    Late,
    /// The connection broke. The commands may have been carried out.
    Broken(Arc<RedisError>),
    /// The connection had already broken before any of the commands was written.
    NotSent,
    /// There is no connection, so the commands were not sent.
    Unreachable(Arc<RedisError>),
}

/// The replies to all commands of a caller.
pub type Answer = Result<Vec<Reply>, Unanswered>;

/// Commands to be written, and callers that wait for replies.
#[derive(Default)]
pub struct Queue {
    /// Commands that have not been written at all.
    unsent: Vec<u8>,
    /// Callers, in the order of their commands.
    callers: VecDeque<Caller>,
    /// Number of callers, from the end, whose commands are in `unsent`.
    unsent_callers: usize,
    /// The earliest deadline of all callers, or a time before it. [`Queue::expire`] must be called then.
    pub earliest: Option<Instant>,
    /// Wakes the driver. The first caller in a turn takes it.
    pub driver: Option<Waker>,
    is_closed: bool,
}

struct Caller {
    /// The number of replies to the caller's commands, and the replies that have arrived.
    expected: usize,
    replies: Vec<Reply>,
    deadline: Instant,
    /// `None` once the deadline has passed. The replies have yet to arrive.
    answer: Option<oneshot::Sender<Answer>>,
}

impl Queue {
    /// Adds commands, which have this number of replies in total. Returns `None` if the connection has ended.
    pub fn push(&mut self, commands: &[u8], expected: usize, deadline: Instant) -> Option<oneshot::Receiver<Answer>> {
        if self.is_closed {
            return None;
        }
        let (sender, answer) = oneshot::channel();
        self.unsent.extend_from_slice(commands);
        let caller = Caller { expected, replies: Vec::with_capacity(expected), deadline, answer: Some(sender) };
        self.callers.push_back(caller);
        self.unsent_callers += 1;
        self.earliest = self.earliest.into_iter().chain([deadline]).min();
        Some(answer)
    }

    /// Exchanges the unsent commands for `commands`, which is empty.
    pub fn take_unsent(&mut self, commands: &mut Vec<u8>) {
        std::mem::swap(commands, &mut self.unsent);
        self.unsent_callers = 0;
    }

    /// Passes a reply to the first caller.
    pub fn take_reply(&mut self, reply: Reply) {
        let Some(first) = self.callers.front_mut() else { return };
        first.replies.push(reply);
        if first.replies.len() >= first.expected
            && let Some(mut answered) = self.callers.pop_front()
        {
            let replies = std::mem::take(&mut answered.replies);
            answered.give(Ok(replies));
        }
    }

    /// Answers callers whose deadline has passed.
    pub fn expire(&mut self, now: Instant) {
        for caller in self.callers.iter_mut().filter(|caller| caller.deadline <= now) {
            caller.give(Err(Unanswered::Late));
        }
        let waiting = self.callers.iter().filter(|caller| caller.answer.is_some());
        self.earliest = waiting.map(|caller| caller.deadline).min();
    }

    /// Answers all callers, because the connection has ended for this reason.
    pub fn close(&mut self, reason: &Arc<RedisError>) {
        self.is_closed = true;
        let sent = self.callers.len().saturating_sub(self.unsent_callers);
        for (place, mut caller) in self.callers.drain(..).enumerate() {
            caller.give(Err(if place < sent { Unanswered::Broken(Arc::clone(reason)) } else { Unanswered::NotSent }));
        }
    }
}

impl Caller {
    fn give(&mut self, answer: Answer) {
        if let Some(sender) = self.answer.take() {
            // The caller may be gone.
            let _ = sender.send(answer);
        }
    }
}

#[cfg(test)]
impl Queue {
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    pub fn has_callers(&self) -> bool {
        !self.callers.is_empty()
    }
}
