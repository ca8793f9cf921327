//! The way to Redis and back: commands in, replies out, in the same order.
//!
//! All that is asked in one turn of the runtime goes out in one write, and all that has come is read at once: a task
//! drives the connection, and those who ask it only leave their bytes in a buffer. It keeps the deadlines, too, with one
//! timer for all of them.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::{Buf, Bytes, BytesMut};
use parking_lot::Mutex;
use redis::{ErrorKind, RedisError};
use tokio::io::{AsyncReadExt, AsyncWrite};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::{Instant, Sleep, sleep_until};

use super::answers::Answers;
use super::reply;
use super::stream::Stream;

/// What is read at once: more than the replies to most turns.
const READ_BYTES: usize = 64 << 10;
/// A buffer that a rare burst has made larger is given back.
const KEPT_BYTES: usize = 256 << 10;

/// A connection; it ends when this is dropped.
pub(super) struct Link {
    queue: Arc<Mutex<Queue>>,
    driver: AbortHandle,
}

/// What came of sending commands.
#[derive(Debug)]
pub(super) enum Answer {
    /// All replies, one after the other.
    Replies(Bytes),
    /// Not in time. They may have been carried out.
    Late,
    /// The connection broke under them. They may have been carried out.
    Broken(Arc<RedisError>),
    /// The connection had broken before any of them was written.
    NotSent,
}

/// What is between those who ask and the task that drives the connection.
#[derive(Default)]
struct Queue {
    /// Commands that nothing was written of yet.
    unsent: Vec<u8>,
    /// Who waits for replies, in the order of their commands.
    waiting: VecDeque<Waiting>,
    /// How many of the last of them have their commands in `unsent`.
    unsent_waiting: usize,
    /// None of them has an earlier deadline.
    earliest: Option<Instant>,
    /// Wakes the driver; taken by the first who asks in a turn.
    driver: Option<Waker>,
    is_closed: bool,
}

struct Waiting {
    /// Replies that have not come yet.
    missing: usize,
    replies: BytesMut,
    deadline: Instant,
    /// Gone once the deadline has passed: the replies are still to come.
    answer: Option<oneshot::Sender<Answer>>,
}

impl Link {
    /// A task of this runtime drives the stream. Each of `heard` takes note when something was answered.
    pub(super) fn open(stream: Stream, heard: [Arc<Answers>; 2]) -> Self {
        let queue = Arc::default();
        let driver = Driver {
            stream,
            queue: Arc::clone(&queue),
            heard,
            writing: Vec::new(),
            written: 0,
            read: BytesMut::new(),
            timer: None,
            end: Arc::new(closed()),
        };
        Self { queue, driver: tokio::spawn(driver.run()).abort_handle() }
    }

    /// Sends the commands, which have so many replies together.
    pub(super) async fn ask(&self, commands: &[u8], replies: usize, deadline: Instant) -> Answer {
        let answer = match self.enqueue(commands, replies, deadline) {
            Some(answer) => answer,
            None => return Answer::NotSent,
        };
        // The driver answers all before it goes, unless its runtime ends: then the connection has.
        answer.await.unwrap_or_else(|_| Answer::Broken(Arc::new(closed())))
    }

    fn enqueue(&self, commands: &[u8], replies: usize, deadline: Instant) -> Option<oneshot::Receiver<Answer>> {
        let (sender, answer) = oneshot::channel();
        let mut queue = self.queue.lock();
        if queue.is_closed {
            return None;
        }
        queue.unsent.extend_from_slice(commands);
        queue.waiting.push_back(Waiting { missing: replies, replies: BytesMut::new(), deadline, answer: Some(sender) });
        queue.unsent_waiting += 1;
        queue.earliest = Some(queue.earliest.map_or(deadline, |earliest| earliest.min(deadline)));
        let driver = queue.driver.take();
        drop(queue);
        driver.into_iter().for_each(Waker::wake);
        Some(answer)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Queue {
    /// Answers who has waited long enough.
    fn expire(&mut self, now: Instant) {
        self.earliest = None;
        for waiting in &mut self.waiting {
            if waiting.deadline <= now {
                waiting.give(Answer::Late);
            } else if waiting.answer.is_some() {
                self.earliest = Some(self.earliest.map_or(waiting.deadline, |other| other.min(waiting.deadline)));
            }
        }
    }

    /// Hands a reply to the first who waits.
    fn take(&mut self, reply: &[u8]) {
        let Some(first) = self.waiting.front_mut() else { return };
        first.replies.extend_from_slice(reply);
        first.missing = first.missing.saturating_sub(1);
        if first.missing == 0
            && let Some(mut answered) = self.waiting.pop_front()
        {
            let replies = std::mem::take(&mut answered.replies).freeze();
            answered.give(Answer::Replies(replies));
        }
    }
}

impl Waiting {
    fn give(&mut self, answer: Answer) {
        if let Some(sender) = self.answer.take() {
            // Who asked may be gone.
            let _ = sender.send(answer);
        }
    }
}

/// What moves the bytes of a connection.
struct Driver {
    stream: Stream,
    queue: Arc<Mutex<Queue>>,
    heard: [Arc<Answers>; 2],
    /// Commands on their way, and how much of them is written.
    writing: Vec<u8>,
    written: usize,
    /// The start of what has not come as a whole.
    read: BytesMut,
    /// Fires no later than the next deadline.
    timer: Option<Pin<Box<Sleep>>>,
    /// Why the connection has ended.
    end: Arc<RedisError>,
}

impl Driver {
    async fn run(mut self) {
        self.end = Arc::new(poll_fn(|cx| self.poll(cx)).await);
    }

    /// Moves what can be moved; ready once the connection has ended.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<RedisError> {
        // What is asked from here on wakes the task again.
        self.queue.lock().driver.get_or_insert_with(|| cx.waker().clone());
        // Replies first: a connection that Redis has ended takes no commands.
        let moved = self.read_all(cx).and_then(|()| self.write_all(cx));
        self.keep_deadlines(cx);
        match moved {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(error),
        }
    }

    fn read_all(&mut self, cx: &mut Context<'_>) -> Result<(), RedisError> {
        loop {
            self.read.reserve(READ_BYTES);
            match pin!(self.stream.read_buf(&mut self.read)).poll(cx) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Ok(0)) => return Err(io::Error::from(io::ErrorKind::BrokenPipe).into()),
                Poll::Ready(Ok(_)) => self.hand_out()?,
                Poll::Ready(Err(error)) => return Err(error.into()),
            }
        }
    }

    /// Gives the replies that have come to those who wait for them.
    fn hand_out(&mut self) -> Result<(), RedisError> {
        let mut queue = self.queue.lock();
        let mut handed_out = 0;
        loop {
            let rest = self.read.get(handed_out..).unwrap_or_default();
            let end = reply::end_of(rest).map_err(|_| RedisError::from((ErrorKind::Parse, "not a reply of Redis")))?;
            let Some(reply) = end.and_then(|end| rest.get(..end)) else { break };
            if !reply::is_push(reply) {
                queue.take(reply);
            }
            handed_out += reply.len();
        }
        drop(queue);
        if handed_out > 0 {
            self.heard.iter().for_each(|answers| answers.note());
        }
        self.read.advance(handed_out);
        if self.read.is_empty() && self.read.capacity() > KEPT_BYTES {
            self.read = BytesMut::new();
        }
        Ok(())
    }

    fn write_all(&mut self, cx: &mut Context<'_>) -> Result<(), RedisError> {
        while self.written < self.writing.len() || self.take_unsent() {
            let unwritten = self.writing.get(self.written..).unwrap_or_default();
            match self.stream.as_mut().poll_write(cx, unwritten) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Ok(0)) => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                Poll::Ready(Ok(bytes)) => self.written += bytes,
                Poll::Ready(Err(error)) => return Err(error.into()),
            }
        }
        // TLS keeps records back until then.
        match self.stream.as_mut().poll_flush(cx) {
            Poll::Ready(Err(error)) => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Begins to write what was asked since; tells whether there is any.
    fn take_unsent(&mut self) -> bool {
        self.writing.clear();
        self.writing.shrink_to(KEPT_BYTES);
        self.written = 0;
        let mut queue = self.queue.lock();
        std::mem::swap(&mut self.writing, &mut queue.unsent);
        queue.unsent_waiting = 0;
        !self.writing.is_empty()
    }

    #[expect(clippy::disallowed_methods, reason = "how long to wait for Redis")]
    fn keep_deadlines(&mut self, cx: &mut Context<'_>) {
        loop {
            let Some(earliest) = self.queue.lock().earliest else { return };
            let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(earliest)));
            if timer.deadline() > earliest {
                timer.as_mut().reset(earliest);
            }
            if timer.as_mut().poll(cx).is_pending() {
                return;
            }
            self.timer = None;
            self.queue.lock().expire(Instant::now());
        }
    }
}

impl Drop for Driver {
    /// Nobody waits for a connection that has ended, however it did.
    fn drop(&mut self) {
        let mut queue = self.queue.lock();
        queue.is_closed = true;
        let waiting = std::mem::take(&mut queue.waiting);
        let sent = waiting.len() - queue.unsent_waiting.min(waiting.len());
        drop(queue);
        for (place, mut waiting) in waiting.into_iter().enumerate() {
            waiting.give(if place < sent { Answer::Broken(Arc::clone(&self.end)) } else { Answer::NotSent });
        }
    }
}

/// What is said of a connection that its own side ended.
pub(super) fn closed() -> RedisError {
    io::Error::from(io::ErrorKind::ConnectionReset).into()
}
