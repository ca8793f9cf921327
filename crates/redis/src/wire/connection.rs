//! A connection to Redis. Replies come in the order of the commands.
//!
//! All commands of one turn of the runtime are written at once, and all replies that have arrived are read at once.
//! Callers only append to a queue, and one task drives the connection. The task also keeps the deadlines, with one
//! timer for all of them.
//!
//! If replicas must confirm writes, one WAIT follows the commands that are written at once, and holds the answers of their
//! callers. Redis carries out nothing that comes after the WAIT before it has answered it. So the next commands stay in the
//! queue until then, and share a WAIT, too. Otherwise, a replica that hangs would hold each of them for a whole timeout.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::BytesMut;
use parking_lot::Mutex;
use redis::{ErrorKind, RedisError};
use tokio::io::AsyncReadExt;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::{Instant, Sleep, sleep_until};

use super::stream::{Stream, closed};
use super::{Call, Reply};

/// Capacity for each read, which is more than most replies take.
const READ_BYTES: usize = 64 << 10;
/// A buffer that a rare burst has made larger is freed.
const KEPT_BYTES: usize = 256 << 10;
/// The replies to all commands of a caller.
pub type Answer = Result<Vec<Reply>, Unanswered>;

/// A connection. Dropping this ends it.
pub struct Connection {
    queue: Arc<Mutex<Queue>>,
    driver: AbortHandle,
}

impl Connection {
    /// Spawns the task that drives the stream, on this runtime. It records the time of each reply in each of `heard`.
    pub fn open(stream: Stream, heard: [Arc<LastReply>; 2]) -> Self {
        let (queue, end) = (Arc::default(), Arc::new(closed()));
        let (writing, read) = (Vec::new(), BytesMut::new());
        let driver = Driver { stream, queue: Arc::clone(&queue), heard, writing, written: 0, read, timer: None, end };
        Self { queue, driver: tokio::spawn(driver.run()).abort_handle() }
    }

    /// Requires that replicas confirm the commands that are sent from now on, if they write.
    pub fn require(&self, wait: Wait) {
        self.queue.lock().wait = Some(wait);
    }

    /// Sends commands.
    pub async fn ask(&self, commands: Commands<'_>, deadline: Instant) -> Answer {
        let (answer, driver) = {
            let mut queue = self.queue.lock();
            (queue.push(commands, deadline), queue.driver.take())
        };
        let Some(answer) = answer else { return Err(Unanswered::NotSent) };
        driver.into_iter().for_each(Waker::wake);
        // The driver answers every caller, unless its runtime ends. In that case the connection has ended, too.
        answer.await.unwrap_or_else(|_| Err(Unanswered::Broken(Arc::new(closed()))))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// The commands of a caller.
#[derive(Clone, Copy)]
pub struct Commands<'a> {
    pub bytes: &'a [u8],
    /// The number of replies to all commands.
    pub replies: usize,
    /// Whether any of them may write, or depends on earlier writes, so that replicas must confirm it.
    pub may_write: bool,
}

/// The replicas that must confirm a write, and the time that they have.
#[derive(Debug, Clone, Copy)]
pub struct Wait {
    pub replicas: u32,
    pub timeout: Duration,
}

/// Fewer replicas than required have confirmed a write in time.
#[derive(Debug, Clone, Copy)]
pub struct Unconfirmed {
    /// The number that have.
    pub confirmed: u32,
    pub required: Wait,
}

/// Moves the bytes of a connection.
struct Driver {
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
    async fn run(mut self) {
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
            queue.take_reply(reply);
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

/// The reason why commands have no replies.
#[derive(Debug)]
pub enum Unanswered {
    /// The deadline passed. The commands may have been carried out.
    Late,
    /// The connection broke. The commands may have been carried out.
    Broken(Arc<RedisError>),
    /// These are the replies, but too few replicas confirmed the writes, which a failover may lose.
    Unconfirmed(Vec<Reply>, Unconfirmed),
    /// The connection had already broken before any of the commands was written.
    NotSent,
    /// There is no connection, so the commands were not sent.
    Unreachable(Arc<RedisError>),
}

/// Commands to be written, and callers that wait for replies.
#[derive(Default)]
struct Queue {
    /// Commands that have not been written at all.
    unsent: Vec<u8>,
    /// Callers, in the order of their commands.
    callers: VecDeque<Caller>,
    /// Number of callers, from the end, whose commands are in `unsent`.
    unsent_callers: usize,
    /// Replicas that must confirm writes. `None` if they need not.
    wait: Option<Wait>,
    /// Whether a WAIT must follow the commands in `unsent`.
    has_unsent_writes: bool,
    /// The WAIT whose reply has not arrived yet. It is behind all commands that were sent.
    waiting: Option<Wait>,
    /// Number of callers, from the start, whose replies have all arrived, but who wait for the reply to that WAIT.
    held_callers: usize,
    /// The earliest deadline of all callers, or a time before it. [`Queue::expire`] must be called then.
    earliest: Option<Instant>,
    /// Wakes the driver. The first caller in a turn takes it.
    driver: Option<Waker>,
    is_closed: bool,
}

struct Caller {
    /// The number of replies to the caller's commands, and the replies that have arrived.
    expected: usize,
    replies: Vec<Reply>,
    deadline: Instant,
    /// Whether replicas must confirm the commands before the caller is answered.
    is_held: bool,
    /// `None` once the deadline has passed. The replies have yet to arrive.
    answer: Option<oneshot::Sender<Answer>>,
}

impl Queue {
    /// Adds commands. Returns `None` if the connection has ended.
    fn push(&mut self, commands: Commands<'_>, deadline: Instant) -> Option<oneshot::Receiver<Answer>> {
        if self.is_closed {
            return None;
        }
        let (sender, answer) = oneshot::channel();
        self.unsent.extend_from_slice(commands.bytes);
        let (expected, is_held) = (commands.replies, commands.may_write && self.wait.is_some());
        let replies = Vec::with_capacity(expected);
        self.callers.push_back(Caller { expected, replies, deadline, is_held, answer: Some(sender) });
        self.has_unsent_writes |= is_held;
        self.unsent_callers += 1;
        self.earliest = self.earliest.into_iter().chain([deadline]).min();
        Some(answer)
    }

    /// Moves the commands to be written next into `writing`, which is empty. It stays empty while a WAIT is unanswered.
    fn take_unsent(&mut self, writing: &mut Vec<u8>) {
        if self.waiting.is_some() {
            return;
        }
        std::mem::swap(writing, &mut self.unsent);
        self.unsent_callers = 0;
        if std::mem::take(&mut self.has_unsent_writes)
            && let Some(wait) = self.wait
        {
            wait.write(writing);
            self.waiting = Some(wait);
        }
    }

    /// Passes a reply to the first caller whose replies are not complete. The reply after all of them is that to the WAIT.
    fn take_reply(&mut self, reply: Reply) {
        let Some(wait) = self.waiting else {
            if self.callers.front_mut().is_some_and(|first| first.take(reply))
                && let Some(mut answered) = self.callers.pop_front()
            {
                answered.give_replies(None);
            }
            return;
        };
        if self.held_callers + self.unsent_callers < self.callers.len() {
            if let Some(caller) = self.callers.get_mut(self.held_callers)
                && caller.take(reply)
            {
                self.held_callers += 1;
                if !caller.is_held {
                    caller.give_replies(None);
                }
            }
            return;
        }
        self.waiting = None;
        // A server that has become a replica answers with an error.
        let confirmed = reply.decode("the reply to WAIT is not a number").unwrap_or(0);
        let unconfirmed = (confirmed < wait.replicas).then_some(Unconfirmed { confirmed, required: wait });
        let held = std::mem::take(&mut self.held_callers);
        self.callers.drain(..held).for_each(|mut caller| caller.give_replies(unconfirmed));
    }

    /// Answers callers whose deadline has passed.
    fn expire(&mut self, now: Instant) {
        for caller in self.callers.iter_mut().filter(|caller| caller.deadline <= now) {
            caller.give(Err(Unanswered::Late));
        }
        let waiting = self.callers.iter().filter(|caller| caller.answer.is_some());
        self.earliest = waiting.map(|caller| caller.deadline).min();
    }

    /// Answers all callers, because the connection has ended for this reason.
    fn close(&mut self, reason: &Arc<RedisError>) {
        self.is_closed = true;
        let sent = self.callers.len().saturating_sub(self.unsent_callers);
        for (place, mut caller) in self.callers.drain(..).enumerate() {
            caller.give(Err(if place < sent { Unanswered::Broken(Arc::clone(reason)) } else { Unanswered::NotSent }));
        }
    }
}

impl Caller {
    /// Adds a reply. Returns whether it is the last one.
    fn take(&mut self, reply: Reply) -> bool {
        self.replies.push(reply);
        self.replies.len() >= self.expected
    }

    fn give_replies(&mut self, unconfirmed: Option<Unconfirmed>) {
        let replies = std::mem::take(&mut self.replies);
        self.give(match unconfirmed {
            None => Ok(replies),
            Some(unconfirmed) => Err(Unanswered::Unconfirmed(replies, unconfirmed)),
        });
    }

    fn give(&mut self, answer: Answer) {
        if let Some(sender) = self.answer.take() {
            // The caller may be gone.
            let _ = sender.send(answer);
        }
    }
}

impl Wait {
    fn write(self, out: &mut Vec<u8>) {
        let [replicas, millis] = [u128::from(self.replicas), self.timeout.as_millis()].map(|number| number.to_string());
        Call::command(&[b"WAIT", replicas.as_bytes(), millis.as_bytes()]).write(false, out);
    }
}

/// The time of the last reply.
#[derive(Default)]
pub struct LastReply(Mutex<Option<Instant>>);

impl LastReply {
    /// Records that a reply has arrived.
    #[expect(clippy::disallowed_methods, reason = "how long ago Redis was heard")]
    pub fn note(&self) {
        *self.0.lock() = Some(Instant::now());
    }

    /// Returns whether any reply has arrived since `begin`.
    pub fn is_since(&self, begin: Instant) -> bool {
        self.0.lock().is_some_and(|last| last > begin)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::{join, join_all};
    use futures_util::poll;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;
    use crate::wire::Reply;

    const PATIENCE: Duration = Duration::from_secs(30);

    /// Returns a connection, and Redis's end of it.
    fn connect() -> (Connection, DuplexStream) {
        let (ours, theirs) = duplex(1 << 20);
        (Connection::open(Box::pin(ours), Default::default()), theirs)
    }

    fn reads(bytes: &[u8], replies: usize) -> Commands<'_> {
        Commands { bytes, replies, may_write: false }
    }

    fn writes(bytes: &[u8]) -> Commands<'_> {
        Commands { bytes, replies: 1, may_write: true }
    }

    fn soon() -> Instant {
        Instant::now() + PATIENCE
    }

    /// Returns all that has been written, from one read.
    async fn written(redis: &mut DuplexStream) -> String {
        let mut bytes = vec![0; 1 << 16];
        let len = redis.read(&mut bytes).await.unwrap();
        String::from_utf8(bytes[..len].to_vec()).unwrap()
    }

    fn text(answer: Answer) -> String {
        answer.unwrap().iter().map(Reply::to_line).collect()
    }

    #[tokio::test]
    async fn commands_of_one_turn_are_written_at_once_and_each_caller_gets_its_own_replies() {
        let (connection, mut redis) = connect();
        let asked = join(connection.ask(reads(b"one;", 1), soon()), connection.ask(reads(b"two;three;", 2), soon()));
        let answered = async {
            assert_eq!(written(&mut redis).await, "one;two;three;");
            // The replies arrive in pieces.
            for piece in [":1\r", "\n$2\r", "\n22\r\n:3\r\n"] {
                redis.write_all(piece.as_bytes()).await.unwrap();
                tokio::task::yield_now().await;
            }
        };
        let ((one, others), ()) = join(asked, answered).await;
        assert_eq!([text(one), text(others)], [":1\r\n", "$2\r\n22\r\n:3\r\n"]);
        assert!(connection.queue.lock().callers.is_empty());
    }

    #[tokio::test]
    async fn late_reply_does_not_answer_the_next_caller() {
        let (connection, mut redis) = connect();
        let late = connection.ask(reads(b"one;", 1), Instant::now() + Duration::from_millis(5)).await;
        assert!(matches!(late, Err(Unanswered::Late)), "{late:?}");
        let answered = async {
            assert_eq!(written(&mut redis).await, "one;");
            assert_eq!(written(&mut redis).await, "two;");
            redis.write_all(b":1\r\n:2\r\n").await.unwrap();
        };
        assert_eq!(text(join(connection.ask(reads(b"two;", 1), soon()), answered).await.0), ":2\r\n");
    }

    #[tokio::test]
    async fn earlier_deadline_is_kept_while_a_later_one_waits() {
        let (connection, _redis) = connect();
        let patient = connection.ask(reads(b"one;", 1), soon());
        let hasty = connection.ask(reads(b"two;", 1), Instant::now() + Duration::from_millis(5));
        tokio::pin!(patient);
        tokio::select! {
            answer = &mut patient => panic!("{answer:?}"),
            answer = hasty => assert!(matches!(answer, Err(Unanswered::Late)), "{answer:?}"),
        }
        assert!(connection.queue.lock().earliest.is_some(), "the patient one's deadline");
    }

    #[tokio::test]
    async fn written_commands_are_broken_and_unwritten_commands_are_not_sent() {
        let (connection, mut redis) = connect();
        let end = async {
            assert_eq!(written(&mut redis).await, "one;");
            drop(redis);
        };
        let (written, ()) = join(connection.ask(reads(b"one;", 1), soon()), end).await;
        assert!(matches!(written, Err(Unanswered::Broken(_))), "{written:?}");
        let unwritten = connection.ask(reads(b"two;", 1), soon()).await;
        assert!(matches!(unwritten, Err(Unanswered::NotSent)), "{unwritten:?}");
    }

    #[tokio::test]
    async fn connection_that_has_ended_sends_nothing() {
        let (connection, redis) = connect();
        // The driver has not run yet, so it finds the end and the command at the same time.
        drop(redis);
        let answer = connection.ask(reads(b"one;", 1), soon()).await;
        assert!(matches!(answer, Err(Unanswered::NotSent)), "{answer:?}");
    }

    #[tokio::test]
    async fn bytes_that_no_redis_sends_end_the_connection() {
        let (connection, mut redis) = connect();
        redis.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        let answer = connection.ask(reads(b"one;", 1), soon()).await;
        assert!(matches!(answer, Err(Unanswered::NotSent | Unanswered::Broken(_))), "{answer:?}");
        assert!(connection.queue.lock().is_closed);
    }

    #[tokio::test]
    async fn dropping_the_connection_closes_the_stream() {
        let (connection, mut redis) = connect();
        drop(connection);
        assert_eq!(written(&mut redis).await, "");
    }

    #[tokio::test]
    async fn reply_to_a_caller_that_left_is_dropped() {
        let (connection, mut redis) = connect();
        let mut gone = Box::pin(connection.ask(reads(b"one;", 1), soon()));
        assert!(poll!(&mut gone).is_pending());
        drop(gone);
        let answered = async {
            assert_eq!(written(&mut redis).await, "one;two;");
            redis.write_all(b":1\r\n:2\r\n").await.unwrap();
        };
        assert_eq!(text(join(connection.ask(reads(b"two;", 1), soon()), answered).await.0), ":2\r\n");
    }

    const WAIT: &str = "*3\r\n$4\r\nWAIT\r\n$1\r\n2\r\n$2\r\n70\r\n";

    /// Returns a connection whose writes two replicas must confirm within 70 ms.
    fn connect_with_replicas() -> (Connection, DuplexStream) {
        let (connection, redis) = connect();
        connection.require(Wait { replicas: 2, timeout: Duration::from_millis(70) });
        (connection, redis)
    }

    #[tokio::test]
    async fn one_wait_follows_all_commands_of_a_turn_and_holds_the_answers_to_writes() {
        let (connection, mut redis) = connect_with_replicas();
        let mut one = pin!(connection.ask(writes(b"one;"), soon()));
        let mut read = pin!(connection.ask(reads(b"read;", 1), soon()));
        let mut two = pin!(connection.ask(writes(b"two;"), soon()));
        assert!(poll!(&mut one).is_pending() && poll!(&mut read).is_pending() && poll!(&mut two).is_pending());
        assert_eq!(written(&mut redis).await, format!("one;read;two;{WAIT}"));
        redis.write_all(b":1\r\n:5\r\n:2\r\n").await.unwrap();
        assert_eq!(text(read.await), ":5\r\n", "a read needs no replica");
        assert!(poll!(&mut one).is_pending() && poll!(&mut two).is_pending());
        redis.write_all(b":2\r\n").await.unwrap();
        let (one, two) = join(one, two).await;
        assert_eq!([text(one), text(two)], [":1\r\n", ":2\r\n"]);
        let queue = connection.queue.lock();
        assert!(queue.callers.is_empty() && queue.held_callers == 0);
    }

    #[tokio::test]
    async fn too_few_replicas_leave_the_callers_of_one_write_unconfirmed_and_none_of_the_next() {
        let (connection, mut redis) = connect_with_replicas();
        for reply in [":1\r\n", "-UNBLOCKED this is a replica now\r\n"] {
            let first = join(connection.ask(writes(b"one;"), soon()), connection.ask(writes(b"two;"), soon()));
            let answered = async {
                assert_eq!(written(&mut redis).await, format!("one;two;{WAIT}"));
                // Commands that come while the WAIT is unanswered share the next one.
                let mut next = Vec::new();
                for bytes in [b"three;", b"four;;"] {
                    let mut ask = Box::pin(connection.ask(writes(bytes), soon()));
                    assert!(poll!(&mut ask).is_pending());
                    next.push(ask);
                }
                redis.write_all(b":1\r\n-READONLY no\r\n").await.unwrap();
                tokio::task::yield_now().await;
                redis.write_all(reply.as_bytes()).await.unwrap();
                assert_eq!(written(&mut redis).await, format!("three;four;;{WAIT}"));
                redis.write_all(b":3\r\n:4\r\n:2\r\n").await.unwrap();
                let next = join_all(next).await.into_iter().map(text);
                assert_eq!(next.collect::<String>(), ":3\r\n:4\r\n");
            };
            let ((one, two), ()) = join(first, answered).await;
            for (answer, reply) in [(one, ":1\r\n"), (two, "-READONLY no\r\n")] {
                let Err(Unanswered::Unconfirmed(replies, unconfirmed)) = answer else { panic!("{answer:?}") };
                assert_eq!(text(Ok(replies)), reply);
                assert!(unconfirmed.confirmed < 2 && unconfirmed.required.replicas == 2, "{unconfirmed:?}");
            }
        }
    }

    #[tokio::test]
    async fn reads_and_connections_without_replicas_need_no_wait() {
        let (connection, mut redis) = connect();
        let (with_replicas, mut other) = connect_with_replicas();
        let asks = join(connection.ask(writes(b"one;"), soon()), with_replicas.ask(reads(b"read;", 1), soon()));
        let answered = async {
            for (redis, commands) in [(&mut redis, "one;"), (&mut other, "read;")] {
                assert_eq!(written(redis).await, commands);
                redis.write_all(b":1\r\n").await.unwrap();
            }
        };
        let ((one, read), ()) = join(asks, answered).await;
        assert_eq!([text(one), text(read)], [":1\r\n", ":1\r\n"]);
    }

    #[tokio::test]
    async fn held_caller_whose_deadline_passes_is_late_and_the_connection_goes_on() {
        let (connection, mut redis) = connect_with_replicas();
        let late = connection.ask(writes(b"one;"), Instant::now() + Duration::from_millis(5));
        let answered = async {
            assert_eq!(written(&mut redis).await, format!("one;{WAIT}"));
            redis.write_all(b":1\r\n").await.unwrap();
        };
        let (late, ()) = join(late, answered).await;
        assert!(matches!(late, Err(Unanswered::Late)), "{late:?}");
        let next = connection.ask(writes(b"two;"), soon());
        let answered = async {
            redis.write_all(b":2\r\n").await.unwrap();
            assert_eq!(written(&mut redis).await, format!("two;{WAIT}"));
            redis.write_all(b":2\r\n:2\r\n").await.unwrap();
        };
        assert_eq!(text(join(next, answered).await.0), ":2\r\n");
    }
}
