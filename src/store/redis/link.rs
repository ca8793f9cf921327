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
use tokio::io::AsyncReadExt;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::{Instant, Sleep, sleep_until};

use super::answers::Answers;
use super::io_error::closed;
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
        let Some(answer) = self.enqueue(commands, replies, deadline) else { return Answer::NotSent };
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
    /// However the connection has ended, none goes on waiting for it.
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::future::join;
    use tokio::io::{AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    /// A link, and Redis's end of it.
    fn link() -> (Link, DuplexStream) {
        let (ours, theirs) = duplex(1 << 20);
        (Link::open(Box::pin(ours), Default::default()), theirs)
    }

    fn soon() -> Instant {
        Instant::now() + PATIENCE
    }

    /// What has been written, all at once.
    async fn written(redis: &mut DuplexStream) -> String {
        let mut bytes = vec![0; 1 << 16];
        let len = redis.read(&mut bytes).await.unwrap();
        String::from_utf8(bytes[..len].to_vec()).unwrap()
    }

    fn text(answer: Answer) -> String {
        let Answer::Replies(replies) = answer else { return format!("{answer:?}") };
        String::from_utf8(replies.to_vec()).unwrap()
    }

    #[tokio::test]
    async fn what_is_asked_in_one_turn_is_written_at_once_and_each_gets_its_own_replies() {
        let (link, mut redis) = link();
        let asked = join(link.ask(b"one;", 1, soon()), link.ask(b"two;three;", 2, soon()));
        let answered = async {
            assert_eq!(written(&mut redis).await, "one;two;three;");
            // In pieces, with what Redis says of its own accord in between.
            for piece in [":1\r", "\n>1\r\n+push\r\n$2\r", "\n22\r\n:3\r\n"] {
                redis.write_all(piece.as_bytes()).await.unwrap();
                tokio::task::yield_now().await;
            }
        };
        let ((one, others), ()) = join(asked, answered).await;
        assert_eq!([text(one), text(others)], [":1\r\n", "$2\r\n22\r\n:3\r\n"]);
        assert!(link.queue.lock().waiting.is_empty());
    }

    #[tokio::test]
    async fn a_late_reply_is_not_taken_for_the_next_one() {
        let (link, mut redis) = link();
        let late = link.ask(b"one;", 1, Instant::now() + Duration::from_millis(5)).await;
        assert!(matches!(late, Answer::Late), "{late:?}");
        let answered = async {
            assert_eq!(written(&mut redis).await, "one;");
            assert_eq!(written(&mut redis).await, "two;");
            redis.write_all(b":1\r\n:2\r\n").await.unwrap();
        };
        assert_eq!(text(join(link.ask(b"two;", 1, soon()), answered).await.0), ":2\r\n");
    }

    #[tokio::test]
    async fn a_sooner_deadline_is_kept_beside_a_later_one() {
        let (link, _redis) = link();
        let patient = link.ask(b"one;", 1, soon());
        let hasty = link.ask(b"two;", 1, Instant::now() + Duration::from_millis(5));
        tokio::pin!(patient);
        tokio::select! {
            answer = &mut patient => panic!("{answer:?}"),
            answer = hasty => assert!(matches!(answer, Answer::Late), "{answer:?}"),
        }
        assert!(link.queue.lock().earliest.is_some(), "the patient one's deadline");
    }

    #[tokio::test]
    async fn what_was_written_may_have_been_done_and_what_was_not_has_not() {
        let (link, mut redis) = link();
        let end = async {
            assert_eq!(written(&mut redis).await, "one;");
            drop(redis);
        };
        let (written, ()) = join(link.ask(b"one;", 1, soon()), end).await;
        assert!(matches!(written, Answer::Broken(_)), "{written:?}");
        let unwritten = link.ask(b"two;", 1, soon()).await;
        assert!(matches!(unwritten, Answer::NotSent), "{unwritten:?}");
    }

    #[tokio::test]
    async fn a_connection_that_had_ended_when_it_was_asked_has_sent_nothing() {
        let (link, redis) = link();
        // The driver has not run yet: it finds the end and the command at once.
        drop(redis);
        let answer = link.ask(b"one;", 1, soon()).await;
        assert!(matches!(answer, Answer::NotSent), "{answer:?}");
    }

    #[tokio::test]
    async fn what_no_redis_sends_ends_the_connection() {
        let (link, mut redis) = link();
        redis.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        let answer = link.ask(b"one;", 1, soon()).await;
        assert!(matches!(answer, Answer::NotSent | Answer::Broken(_)), "{answer:?}");
        assert!(link.queue.lock().is_closed);
    }

    #[tokio::test]
    async fn a_link_that_is_dropped_ends_its_connection() {
        let (link, mut redis) = link();
        drop(link);
        assert_eq!(written(&mut redis).await, "");
    }

    #[tokio::test]
    async fn who_no_longer_waits_is_passed_over() {
        let (link, mut redis) = link();
        let mut gone = Box::pin(link.ask(b"one;", 1, soon()));
        assert!(futures_util::poll!(&mut gone).is_pending());
        drop(gone);
        let answered = async {
            assert_eq!(written(&mut redis).await, "one;two;");
            redis.write_all(b":1\r\n:2\r\n").await.unwrap();
        };
        assert_eq!(text(join(link.ask(b"two;", 1, soon()), answered).await.0), ":2\r\n");
    }
}
