//! A greedy client must not keep others waiting.

use std::io::Write;
use std::net::TcpStream as Client;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tokio::net::TcpListener;

use super::*;
use crate::server::net::memory::BufferMemory;
use crate::server::net::stream::{Greeting, Plain};

/// A session that counts its input.
struct CountingSession(Arc<AtomicUsize>);

impl Session for CountingSession {
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

async fn connected() -> (Stream, Client) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = Client::connect(listener.local_addr().unwrap()).unwrap();
    client.set_nonblocking(true).unwrap();
    let (stream, peer) = listener.accept().await.unwrap();
    (Stream::Plain(Plain::new(stream, Greeting { front: "test", peer, answer: b"" })), client)
}

#[tokio::test]
async fn client_that_never_pauses_does_not_starve_others() {
    let metrics = Metrics::new();
    let memory = BufferMemory::new(0, Arc::clone(&metrics));
    let closing = CancellationToken::new();
    let limit = Duration::from_secs(30);
    let timeouts = Timeouts { idle: None, request: limit, write: limit, auth: limit, handshake: limit };
    let start = |stream| {
        let counted = Arc::new(AtomicUsize::new(0));
        let context =
            ConnectionContext { closing: closing.clone(), memory: memory.share(), metrics: Arc::clone(&metrics) };
        let served = tokio::spawn(serve(stream, CountingSession(Arc::clone(&counted)), timeouts, context));
        (counted, served)
    };
    let ((greedy, mut greedy_client), (modest, mut modest_client)) = (connected().await, connected().await);
    // The write stops when the buffers of the kernel are full.
    let sent = greedy_client.write(&vec![b'x'; 8 << 20]).unwrap();
    assert!(sent > 8 * READ_SIZE, "{sent}");
    modest_client.write_all(b"x").unwrap();

    let (greedy_count, _greedy) = start(greedy);
    let (modest_count, _modest) = start(modest);
    while modest_count.load(Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    let counted = greedy_count.load(Relaxed);
    assert!(counted <= 4 * READ_SIZE, "{counted} bytes were answered before the other client's one");
}
