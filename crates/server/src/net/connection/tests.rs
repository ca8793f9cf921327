//! A greedy client must not keep others waiting, and a client that does not log in must not stay.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::*;
use crate::net::memory::BufferMemory;
use crate::net::protocol::Protocol;
use crate::tests::{connect, connection_context, timeouts};

/// A session that counts its input.
struct CountingSession(Arc<AtomicUsize>);

impl Session for CountingSession {
    fn has_room(&self) -> bool {
        true
    }

    async fn answer(&mut self, input: &mut BytesMut, output: &mut Output<'_>) -> NextStep {
        self.0.fetch_add(input.len(), Relaxed);
        input.clear();
        output.bytes.push(b'.');
        NextStep::Read
    }

    fn is_admitted(&self) -> bool {
        true
    }

    fn cut(&mut self, _: Cut, _: &mut Vec<u8>) {}
}

/// A session of a client whose attempts fail, until it is closed or logs in.
struct LoginSession {
    asked: Arc<AtomicUsize>,
    /// How long the check of an attempt takes.
    check: Duration,
    /// Whether the first attempt succeeds.
    is_right: bool,
}

impl Session for LoginSession {
    fn has_room(&self) -> bool {
        true
    }

    async fn answer(&mut self, _: &mut BytesMut, _: &mut Output<'_>) -> NextStep {
        self.asked.fetch_add(1, Relaxed);
        tokio::time::sleep(self.check).await;
        if self.is_admitted() { NextStep::Close } else { NextStep::Continue }
    }

    fn is_admitted(&self) -> bool {
        self.is_right && self.asked.load(Relaxed) > 0
    }

    fn cut(&mut self, _: Cut, _: &mut Vec<u8>) {}
}

#[tokio::test]
async fn time_to_log_in_ends_while_attempts_follow_each_other_but_not_while_one_is_checked() {
    let auth = Duration::from_millis(100);
    for (check, is_right, expected) in [(Duration::ZERO, false, 1.0), (2 * auth, true, 0.0)] {
        let metrics = Metrics::new();
        let memory = BufferMemory::new(0, Arc::clone(&metrics));
        let timeouts = Timeouts { auth, ..timeouts(Duration::from_secs(30)) };
        let asked = Arc::new(AtomicUsize::new(0));
        let (stream, mut client) = connect(Protocol::Line).await;
        let context = connection_context(&memory, &metrics, client.local_addr().unwrap());
        client.write_all(b"attempts").await.unwrap();
        drop(client);
        serve(stream, BytesMut::new(), LoginSession { asked: Arc::clone(&asked), check, is_right }, timeouts, context)
            .await;
        let (_, reached) =
            metrics.numbers(Vec::new()).into_iter().find(|(name, _)| name.contains("auth-timeout")).unwrap();
        assert_eq!((asked.load(Relaxed) == 1, reached), (is_right, expected));
    }
}

#[tokio::test]
async fn client_that_never_pauses_does_not_starve_others() {
    let metrics = Metrics::new();
    let memory = BufferMemory::new(0, Arc::clone(&metrics));
    let timeouts = timeouts(Duration::from_secs(30));
    let start = |stream: Stream| {
        let counted = Arc::new(AtomicUsize::new(0));
        let context = connection_context(&memory, &metrics, ([127, 0, 0, 1], 1).into());
        let served =
            tokio::spawn(serve(stream, BytesMut::new(), CountingSession(Arc::clone(&counted)), timeouts, context));
        (counted, served)
    };
    let ((greedy, mut greedy_client), (modest, mut modest_client)) =
        (connect(Protocol::Line).await, connect(Protocol::Line).await);
    // The write stops when the buffers of the kernel are full.
    let sent = greedy_client.write(&vec![b'x'; 8 << 20]).await.unwrap();
    assert!(sent > 8 * READ_SIZE, "{sent}");
    modest_client.write_all(b"x").await.unwrap();

    let (greedy_count, _greedy) = start(greedy);
    let (modest_count, _modest) = start(modest);
    while modest_count.load(Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    let counted = greedy_count.load(Relaxed);
    assert!(counted <= 4 * READ_SIZE, "{counted} bytes were answered before the other client's one");
}
