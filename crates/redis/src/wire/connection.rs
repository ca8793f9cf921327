//! A connection to Redis. Replies come in the order of the commands.
//!
//! All commands of one turn of the runtime are written at once, and all replies that have arrived are read at once.
//! Callers only append to a queue, and one task drives the connection. The task also keeps the deadlines, with one
//! timer for all of them.

use std::sync::Arc;
use std::task::Waker;

use parking_lot::Mutex;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::driver::Driver;
use super::io_error::closed;
use super::last_reply::LastReply;
use super::queue::{Answer, Queue, Unanswered};
use super::stream::Stream;

/// A connection. Dropping this ends it.
pub struct Connection {
    queue: Arc<Mutex<Queue>>,
    driver: AbortHandle,
}

impl Connection {
    /// Spawns the task that drives the stream, on this runtime. It records the time of each reply in each of `heard`.
    pub fn open(stream: Stream, heard: [Arc<LastReply>; 2]) -> Self {
        let queue = Arc::default();
        let driver = Driver::new(stream, Arc::clone(&queue), heard);
        Self { queue, driver: tokio::spawn(driver.run()).abort_handle() }
    }

    /// Sends commands, which have this number of replies in total.
    pub async fn ask(&self, commands: &[u8], replies: usize, deadline: Instant) -> Answer {
        let (answer, driver) = {
            let mut queue = self.queue.lock();
            (queue.push(commands, replies, deadline), queue.driver.take())
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::future::join;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::super::reply::Reply;
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    /// Returns a connection, and Redis's end of it.
    fn connect() -> (Connection, DuplexStream) {
        let (ours, theirs) = duplex(1 << 20);
        (Connection::open(Box::pin(ours), Default::default()), theirs)
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
        let asked = join(connection.ask(b"one;", 1, soon()), connection.ask(b"two;three;", 2, soon()));
        let answered = async {
            assert_eq!(written(&mut redis).await, "one;two;three;");
            // The replies arrive in pieces, with a push in between.
            for piece in [":1\r", "\n>1\r\n+push\r\n$2\r", "\n22\r\n:3\r\n"] {
                redis.write_all(piece.as_bytes()).await.unwrap();
                tokio::task::yield_now().await;
            }
        };
        let ((one, others), ()) = join(asked, answered).await;
        assert_eq!([text(one), text(others)], [":1\r\n", "$2\r\n22\r\n:3\r\n"]);
        assert!(!connection.queue.lock().has_callers());
    }

    #[tokio::test]
    async fn late_reply_does_not_answer_the_next_caller() {
        let (connection, mut redis) = connect();
        let late = connection.ask(b"one;", 1, Instant::now() + Duration::from_millis(5)).await;
        assert!(matches!(late, Err(Unanswered::Late)), "{late:?}");
        let answered = async {
            assert_eq!(written(&mut redis).await, "one;");
            assert_eq!(written(&mut redis).await, "two;");
            redis.write_all(b":1\r\n:2\r\n").await.unwrap();
        };
        assert_eq!(text(join(connection.ask(b"two;", 1, soon()), answered).await.0), ":2\r\n");
    }

    #[tokio::test]
    async fn earlier_deadline_is_kept_while_a_later_one_waits() {
        let (connection, _redis) = connect();
        let patient = connection.ask(b"one;", 1, soon());
        let hasty = connection.ask(b"two;", 1, Instant::now() + Duration::from_millis(5));
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
        let (written, ()) = join(connection.ask(b"one;", 1, soon()), end).await;
        assert!(matches!(written, Err(Unanswered::Broken(_))), "{written:?}");
        let unwritten = connection.ask(b"two;", 1, soon()).await;
        assert!(matches!(unwritten, Err(Unanswered::NotSent)), "{unwritten:?}");
    }

    #[tokio::test]
    async fn connection_that_has_ended_sends_nothing() {
        let (connection, redis) = connect();
        // The driver has not run yet, so it finds the end and the command at the same time.
        drop(redis);
        let answer = connection.ask(b"one;", 1, soon()).await;
        assert!(matches!(answer, Err(Unanswered::NotSent)), "{answer:?}");
    }

    #[tokio::test]
    async fn bytes_that_no_redis_sends_end_the_connection() {
        let (connection, mut redis) = connect();
        redis.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        let answer = connection.ask(b"one;", 1, soon()).await;
        assert!(matches!(answer, Err(Unanswered::NotSent | Unanswered::Broken(_))), "{answer:?}");
        assert!(connection.queue.lock().is_closed());
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
        let mut gone = Box::pin(connection.ask(b"one;", 1, soon()));
        assert!(futures_util::poll!(&mut gone).is_pending());
        drop(gone);
        let answered = async {
            assert_eq!(written(&mut redis).await, "one;two;");
            redis.write_all(b":1\r\n:2\r\n").await.unwrap();
        };
        assert_eq!(text(join(connection.ask(b"two;", 1, soon()), answered).await.0), ":2\r\n");
    }
}
