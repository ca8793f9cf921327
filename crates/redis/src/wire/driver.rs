//! The task that drives a connection.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::BytesMut;
use parking_lot::Mutex;
use redis::{ErrorKind, RedisError};
use tokio::io::AsyncReadExt;
use tokio::time::{Instant, Sleep, sleep_until};

use super::io_error::closed;
use super::last_reply::LastReply;
use super::queue::Queue;
use super::reply::Reply;
use super::stream::Stream;

/// Capacity for each read, which is more than most replies take.
const READ_BYTES: usize = 64 << 10;
/// A buffer that a rare burst has made larger is freed.
const KEPT_BYTES: usize = 256 << 10;

/// Moves the bytes of a connection.
pub struct Driver {
    stream: Stream,
    queue: Arc<Mutex<Queue>>,
    heard: [Arc<LastReply>; 2],
    /// Commands that are being written, and the number of bytes already written.
    writing: Vec<u8>,
    written: usize,
    /// The start of a reply whose rest has not arrived yet.
    read: BytesMut,
    /// A timer that fires no later than the next deadline.
    timer: Option<Pin<Box<Sleep>>>,
    /// The reason why the connection has ended.
    end: Arc<RedisError>,
}

impl Driver {
    pub fn new(stream: Stream, queue: Arc<Mutex<Queue>>, heard: [Arc<LastReply>; 2]) -> Self {
        let end = Arc::new(closed());
        Self { stream, queue, heard, writing: Vec::new(), written: 0, read: BytesMut::new(), timer: None, end }
    }

    pub async fn run(mut self) {
        self.end = Arc::new(poll_fn(|cx| self.poll(cx)).await);
    }

    /// Moves the bytes that can be moved. Ready once the connection has ended.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<RedisError> {
        // A command that is added from here on wakes the task again.
        self.queue.lock().driver.get_or_insert_with(|| cx.waker().clone());
        // Replies come first, because a connection that Redis has ended takes no more commands.
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

    /// Passes each complete reply to its caller.
    fn hand_out(&mut self) -> Result<(), RedisError> {
        let length = self.read.len();
        let mut queue = self.queue.lock();
        let malformed = |_| RedisError::from((ErrorKind::Parse, "not a reply of Redis"));
        while let Some(reply) = Reply::take(&mut self.read).map_err(malformed)? {
            if !reply.is_push() {
                queue.take_reply(reply);
            }
        }
        drop(queue);
        if self.read.len() < length {
            self.heard.iter().for_each(|last_reply| last_reply.note());
        }
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
        // TLS holds records back until it is flushed.
        match self.stream.as_mut().poll_flush(cx) {
            Poll::Ready(Err(error)) => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Takes the commands to write next. Returns whether there are any.
    fn take_unsent(&mut self) -> bool {
        self.writing.clear();
        self.writing.shrink_to(KEPT_BYTES);
        self.written = 0;
        self.queue.lock().take_unsent(&mut self.writing);
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
    /// Answers all callers, because no caller outlasts its connection.
    fn drop(&mut self) {
        self.queue.lock().close(&self.end);
    }
}
