//! Sessions frame by frame over real sockets, with a front that answers what the path asks for.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::frame::*;
use super::hpack::{DROP_TABLE, MAX_TABLE, write_field};
use super::*;
use crate::http::transport::tests::{Connected, MAX_BODY, PATIENCE};
use crate::net::memory::SMALL;

const PADDED: u8 = 8;
const HAS_PRIORITY: u8 = 32;

/// A frame: its kind, flags, stream and content.
type Received = (u8, u8, u32, Vec<u8>);

/// A client.
struct Client {
    connected: Connected,
    received: Vec<u8>,
}

fn frame(kind: u8, flags: u8, stream: u32, content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_frame(kind, flags, stream, content, &mut bytes);
    bytes
}

fn block(method: &str, path: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let fields = [(":method", method), (":scheme", "http"), (":path", path), (":authority", "divvy")];
    let mut block = Vec::new();
    fields.iter().chain(more).for_each(|(name, value)| write_field(name.as_bytes(), value.as_bytes(), &mut block));
    block
}

fn get(stream: u32, path: &str) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &block("GET", path, &[]))
}

fn post(stream: u32, path: &str) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &block("POST", path, &[]))
}

fn data(stream: u32, flags: u8, content: &[u8]) -> Vec<u8> {
    frame(DATA, flags, stream, content)
}

fn window(stream: u32, bytes: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes())
}

fn settings(settings: &[(u16, u32)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_settings(settings, &mut bytes);
    bytes
}

impl Client {
    /// Connects, and greets.
    async fn new(timeout: Duration) -> Self {
        let mut client = Self { connected: Connected::new(timeout).await, received: Vec::new() };
        client.send(&[PREFACE, &settings(&[])].concat()).await;
        let (kind, flags, _, content) = client.next().await.unwrap();
        assert_eq!((kind, flags, content.len()), (SETTINGS, 0, 12));
        assert_eq!(client.next().await, Some((SETTINGS, ACK, 0, Vec::new())));
        client
    }

    async fn send(&mut self, bytes: &[u8]) {
        self.connected.stream.write_all(bytes).await.unwrap();
    }

    /// Returns the next frame; `None` if the server has closed the connection.
    async fn next(&mut self) -> Option<Received> {
        loop {
            if let Some((Frame { kind, flags, stream, content }, length)) = Frame::read(&self.received).unwrap() {
                let frame = (kind, flags, stream, content.to_vec());
                self.received.drain(..length);
                return Some(frame);
            }
            if self.connected.stream.read_buf(&mut self.received).await.unwrap() == 0 {
                return None;
            }
        }
    }

    /// Returns the next response: its stream, status and body, and whether trailers follow.
    async fn response(&mut self) -> (u32, String, String, bool) {
        let (kind, mut flags, stream, head) = self.next().await.unwrap();
        assert_eq!((kind, flags & END_HEADERS), (HEADERS, END_HEADERS), "{head:?}");
        let status = match &head[..] {
            [0x88, ..] => "200".to_owned(),
            [0x08, 3, status @ ..] => String::from_utf8(status[..3].to_vec()).unwrap(),
            _ => format!("{:x}", head[0]),
        };
        let (mut body, mut has_trailers) = (Vec::new(), false);
        while flags & END_STREAM == 0 {
            let (kind, next, of, content) = self.next().await.unwrap();
            assert_eq!(of, stream);
            match kind {
                DATA => body.extend(content),
                HEADERS => has_trailers = true,
                _ => panic!("frame {kind}"),
            }
            flags = next;
        }
        (stream, status, String::from_utf8(body).unwrap(), has_trailers)
    }

    /// Expects the answer to a request that echoes this.
    async fn expect(&mut self, stream: u32, body: &str) {
        assert_eq!(self.response().await, (stream, "200".to_owned(), body.to_owned(), false));
    }

    /// Expects a frame with a reason at the end.
    async fn expect_reason(&mut self, kind: u8, stream: u32, reason: Reason) {
        let (got, _, of, content) = self.next().await.unwrap();
        assert_eq!((got, of, content.last()), (kind, stream, Some(&(reason as u8))), "{content:?}");
    }
}

#[tokio::test]
async fn calls_are_answered_when_they_are_ready() {
    let mut client = Client::new(PATIENCE).await;
    client.send(&[get(1, "/never"), post(3, "/a"), data(3, 0, b"fir"), data(3, END_STREAM, b"st")].concat()).await;
    client.expect(3, "first").await;
    client.send(&get(5, "/pieces")).await;
    client.expect(5, "onetwo").await;
    client.send(&get(7, "/message")).await;
    assert_eq!(client.response().await, (7, "200".to_owned(), "message".to_owned(), true));
    client.send(&get(9, "/empty")).await;
    assert_eq!(client.response().await, (9, "89".to_owned(), String::new(), false));
    // A reset makes room for another call.
    client.send(&get(11, "/never")).await;
    client.send(&get(13, "/a")).await;
    client.expect_reason(RST_STREAM, 13, Reason::RefusedStream).await;
    client.send(&[frame(RST_STREAM, 0, 1, &[0; 4]), get(15, "/slow")].concat()).await;
    client.expect(15, "slow").await;
    assert_eq!(client.connected.metrics.limits.buffer_memory.get(), 0);
}

#[tokio::test]
async fn bytes_may_come_one_by_one_and_heads_in_parts() {
    let mut client = Client::new(PATIENCE).await;
    let head = block("POST", "/a", &[("content-length", "5")]);
    let (one, two) = head.split_at(7);
    let padded = [&[3, 0, 0, 0, 0, 9], one, &[0; 3]].concat();
    let request = [
        frame(HEADERS, PADDED | HAS_PRIORITY, 1, &padded),
        frame(CONTINUATION, 0, 1, &[]),
        frame(CONTINUATION, END_HEADERS, 1, two),
        frame(99, 255, 1, b"of another kind"),
        data(1, PADDED, b"\x02hel\0\0"),
        frame(PRIORITY, 0, 1, &[0; 5]),
        data(1, 0, b"lo"),
        // Trailers.
        frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\0\x05x-sum\x015"),
    ];
    for byte in request.concat() {
        client.send(&[byte]).await;
        tokio::task::yield_now().await;
    }
    client.expect(1, "hello").await;
    client.send(&frame(PING, 0, 0, b"are you?")).await;
    assert_eq!(client.next().await, Some((PING, ACK, 0, b"are you?".to_vec())));
}

#[tokio::test]
async fn replies_are_sent_as_far_as_the_windows_admit() {
    let mut client = Client::new(PATIENCE).await;
    client
        .send(&[settings(&[(INITIAL_WINDOW_SIZE, 4)]), post(1, "/a"), data(1, END_STREAM, b"0123456789")].concat())
        .await;
    client.next().await.unwrap();
    assert_eq!(client.next().await.unwrap().0, HEADERS);
    assert_eq!(client.next().await, Some((DATA, 0, 1, b"0123".to_vec())));
    client.send(&window(1, 2)).await;
    assert_eq!(client.next().await, Some((DATA, 0, 1, b"45".to_vec())));
    // The window of a stream may become negative.
    client.send(&settings(&[(INITIAL_WINDOW_SIZE, 1)])).await;
    client.next().await.unwrap();
    client.send(&window(1, 4)).await;
    assert_eq!(client.next().await, Some((DATA, 0, 1, b"6".to_vec())));
    client.send(&settings(&[(INITIAL_WINDOW_SIZE, 100)])).await;
    client.next().await.unwrap();
    assert_eq!(client.next().await, Some((DATA, END_STREAM, 1, b"789".to_vec())));
}

#[tokio::test]
async fn window_of_the_connection_is_shared() {
    let mut client = Client::new(PATIENCE).await;
    let (body, mut stream, mut sent) = ("x".repeat(MAX_BODY), 1, 0);
    client.send(&settings(&[(INITIAL_WINDOW_SIZE, 1 << 20)])).await;
    client.next().await.unwrap();
    while sent + MAX_BODY <= WINDOW as usize {
        client.send(&[post(stream, "/a"), data(stream, END_STREAM, body.as_bytes())].concat()).await;
        // The server gives the window back.
        let mut left = MAX_BODY;
        while left > 0 {
            match client.next().await.unwrap() {
                (DATA, _, _, content) => left -= content.len(),
                (kind, ..) => assert!(matches!(kind, HEADERS | WINDOW_UPDATE)),
            }
        }
        (stream, sent) = (stream + 2, sent + MAX_BODY);
    }
    client.send(&[post(stream, "/a"), data(stream, END_STREAM, body.as_bytes())].concat()).await;
    let mut got = 0;
    while got < WINDOW as usize - sent {
        got += client.next().await.filter(|frame| frame.0 == DATA).map_or(0, |frame| frame.3.len());
    }
    client.send(&window(0, 100)).await;
    assert_eq!(client.next().await.unwrap().3.len(), 100);
}

#[tokio::test]
async fn long_body_needs_permission_and_a_body_that_is_not_wanted_is_not_waited_for() {
    let mut client = Client::new(PATIENCE).await;
    let body = "x".repeat(MAX_BODY);
    client.send(&post(1, "/a")).await;
    for part in body.as_bytes().chunks(1_000) {
        client.send(&data(1, 0, part)).await;
        tokio::task::yield_now().await;
    }
    client.send(&data(1, END_STREAM, b"")).await;
    client.expect(1, &body).await;
    for (stream, path, length, status) in
        [(3, "/a", MAX_BODY + 1, "413"), (5, "/forbidden", SMALL + 1, "413"), (7, "/ignored", MAX_BODY + 1, "200")]
    {
        client.send(&[post(stream, path), data(stream, 0, &vec![b'x'; length])].concat()).await;
        let (of, got, ..) = client.response().await;
        assert_eq!((of, got.as_str()), (stream, status), "{path}");
        // The rest is dropped, and ends the stream, or else a reset does.
        client.send(&data(stream, 0, b"more")).await;
        if stream == 7 {
            client.expect_reason(RST_STREAM, stream, Reason::NoError).await;
        } else {
            client.send(&data(stream, END_STREAM, b"")).await;
        }
    }
    client.send(&[post(9, "/forbidden"), data(9, END_STREAM, &vec![b'x'; SMALL + 1])].concat()).await;
    assert_eq!(client.response().await.1, "200", "all of it is there anyway");
}

#[tokio::test]
async fn body_is_streamed_to_those_who_want_it() {
    let mut client = Client::new(PATIENCE).await;
    client.send(&post(1, "/streamed")).await;
    assert_eq!(client.next().await.unwrap().0, HEADERS);
    for piece in [b"one", b"two"] {
        client.send(&data(1, 0, piece)).await;
        assert_eq!(client.next().await, Some((DATA, 0, 1, piece.to_vec())));
    }
    client.send(&data(1, END_STREAM, b"")).await;
    assert_eq!(client.next().await, Some((DATA, END_STREAM, 1, Vec::new())));
    // Its length is not bounded.
    client.send(&post(3, "/streamed")).await;
    let (mut sent, mut got) = (0, 0);
    while got < 4 * WINDOW as usize {
        client.send(&data(3, 0, &[b'x'; 10_000])).await;
        sent += 10_000;
        while got < sent {
            match client.next().await.unwrap() {
                (DATA, _, 3, content) => {
                    got += content.len();
                    let bytes = content.len() as u32;
                    client.send(&[window(0, bytes), window(3, bytes)].concat()).await;
                }
                (kind, ..) => assert!(matches!(kind, HEADERS | WINDOW_UPDATE)),
            }
        }
    }
}

/// Regression test: if all that the window admits came in at once, the client was never asked for more.
#[tokio::test]
async fn call_that_takes_a_body_before_it_answers_gets_all_of_it() {
    let mut client = Client::new(PATIENCE).await;
    let (part, end) = (data(1, 0, &[b'x'; WINDOW as usize / 5]), data(1, END_STREAM, b"x"));
    client.send(&[post(1, "/collected"), part.repeat(5)].concat()).await;
    while client.next().await.unwrap().2 != 1 {}
    client.send(&[part, end, window(0, WINDOW), window(1, WINDOW)].concat()).await;
    while client.next().await.unwrap().0 != HEADERS {}
    let mut got = 0;
    loop {
        let (_, flags, _, content) = client.next().await.unwrap();
        got += content.len();
        if flags & END_STREAM != 0 {
            break;
        }
    }
    assert_eq!(got, WINDOW as usize / 5 * 6 + 1);
}

#[tokio::test]
async fn repeated_head_means_the_same_until_the_table_changes() {
    let mut client = Client::new(PATIENCE).await;
    // New entries of the table, and references to the latest one.
    let paths: [&[u8]; 6] = [b"\x44\x08/ignored", b"\xbe", b"\xbe", b"\x44\x05/slow", b"\xbe", b"\xbe"];
    for (path, stream) in paths.into_iter().zip((1..).step_by(2)) {
        client.send(&frame(HEADERS, END_HEADERS | END_STREAM, stream, &[b"\x82\x86", path].concat())).await;
        client.expect(stream, if stream < 7 { "ignored" } else { "slow" }).await;
    }
}

/// Regression test: clients of nghttp2 with a small table wait for this in vain.
#[tokio::test]
async fn client_with_a_small_table_learns_that_it_is_not_used() {
    let mut client = Client::new(PATIENCE).await;
    let mut stream = 1;
    for (size, beginning) in [(MAX_TABLE, 0x88), (MAX_TABLE - 1, DROP_TABLE), (0, DROP_TABLE)] {
        client.send(&[settings(&[(HEADER_TABLE_SIZE, size)]), get(stream, "/a")].concat()).await;
        client.next().await.unwrap();
        let (kind, _, _, head) = client.next().await.unwrap();
        assert_eq!((kind, head[0]), (HEADERS, beginning));
        client.send(&get(stream + 2, "/a")).await;
        client.expect(stream + 2, "").await;
        stream += 4;
    }
}

#[tokio::test]
async fn padding_is_given_back() {
    let mut client = Client::new(PATIENCE).await;
    client.send(&post(1, "/a")).await;
    let padded = [&[255, b'x'][..], &[0; 255]].concat();
    for _ in 0..1_000 {
        client.send(&data(1, PADDED, &padded)).await;
    }
    client.send(&data(1, END_STREAM, b"")).await;
    let mut got = 0;
    while got < 1_000 {
        match client.next().await.unwrap() {
            (DATA, _, 1, content) => got += content.len(),
            (kind, ..) => assert!(matches!(kind, HEADERS | WINDOW_UPDATE)),
        }
    }
}

#[tokio::test]
async fn faulty_requests_are_reset_and_others_answered() {
    let mut client = Client::new(PATIENCE).await;
    let head = |fields: &[(&str, &str)], more| {
        let mut block = Vec::new();
        fields.iter().for_each(|(name, value)| write_field(name.as_bytes(), value.as_bytes(), &mut block));
        [block, more].concat()
    };
    let lines = [(":method", "GET"), (":scheme", "http"), (":path", "/a")];
    let blocks = [
        head(&lines[1..], Vec::new()),
        head(&lines[..2], Vec::new()),
        block("GET", "", &[]),
        block("GET", "no path", &[]),
        block("G T", "/a", &[]),
        block("GET", "/a", &[(":path", "/b")]),
        block("GET", "/a", &[("connection", "close")]),
        block("GET", "/a", &[("te", "gzip")]),
        block("GET", "/a", &[("Upper", "case")]),
        block("GET", "/a", &[("x", "a\nb")]),
        block("GET", "/a", &[("content-length", "1")]),
        block("GET", "/a", &[("content-length", "+0")]),
        block("GET", "/a", &[("content-length", "0"), ("content-length", "1")]),
        block("GET", "/a", &[(":status", "200")]),
        head(&[("x", "before")], block("GET", "/a", &[])),
    ];
    let mut stream = 1;
    for wrong in blocks {
        client.send(&frame(HEADERS, END_HEADERS | END_STREAM, stream, &wrong)).await;
        client.expect_reason(RST_STREAM, stream, Reason::ProtocolError).await;
        stream += 2;
    }
    for (bytes, reason) in [(0, Reason::ProtocolError), (i32::MAX as u32, Reason::FlowControlError)] {
        client.send(&[post(stream, "/a"), window(stream, bytes)].concat()).await;
        client.expect_reason(RST_STREAM, stream, reason).await;
        stream += 2;
    }
    // Frames for streams that are gone are ignored.
    client.send(&[data(1, 0, b"late"), window(1, 5), frame(RST_STREAM, 0, 1, &[0; 4])].concat()).await;
    client.send(&get(1, "/a")).await;
    client.expect_reason(RST_STREAM, 1, Reason::StreamClosed).await;
    client.send(&get(stream, "/a")).await;
    client.expect(stream, "").await;
}

#[tokio::test]
async fn trailers_with_fields_of_a_request_or_malformed_names_are_malformed() {
    let mut client = Client::new(PATIENCE).await;
    let fields = [(":path", "/a"), (":status", "200"), ("Upper", "case"), ("connection", "close"), ("x-sum", "5")];
    for ((name, value), stream) in fields.into_iter().zip((1..).step_by(2)) {
        let mut trailers = Vec::new();
        write_field(b"x-first", b"1", &mut trailers);
        write_field(name.as_bytes(), value.as_bytes(), &mut trailers);
        let trailers = frame(HEADERS, END_HEADERS | END_STREAM, stream, &trailers);
        client.send(&[post(stream, "/a"), data(stream, 0, b"body"), trailers].concat()).await;
        match name {
            "x-sum" => client.expect(stream, "body").await,
            _ => client.expect_reason(RST_STREAM, stream, Reason::ProtocolError).await,
        }
    }
}

/// Returns the frames of a request whose head has fields of this total length, and then these.
fn long_head(stream: u32, path: &str, length: usize, more: &[u8]) -> Vec<u8> {
    let (mut frames, value) = (Vec::new(), "v".repeat(1_000));
    write_head(stream, true, &mut frames, |head| {
        head.extend_from_slice(&block("GET", path, &[]));
        (0..length / 1_000).for_each(|_| write_field(b"x-long", value.as_bytes(), head));
        head.extend_from_slice(more);
    });
    frames
}

/// Regression test: a head of more than 32 KiB ended the connection, although Envoy forwards up to 60 KiB.
#[tokio::test]
async fn long_head_is_read_or_refused_while_other_requests_go_on() {
    let mut client = Client::new(PATIENCE).await;
    client.send(&post(1, "/a")).await;
    client.send(&long_head(3, "/a", 61_000, b"")).await;
    client.expect(3, "").await;
    // The last field is a new entry of the table.
    for (stream, length) in [(5, 66_000), (7, 250_000)] {
        client.send(&long_head(stream, "/a", length, b"\x44\x05/slow")).await;
        let (of, status, ..) = client.response().await;
        assert_eq!((of, status.as_str()), (stream, "431"));
    }
    client.send(&frame(HEADERS, END_HEADERS | END_STREAM, 9, b"\x82\x86\xbe")).await;
    client.expect(9, "slow").await;
    client.send(&data(1, END_STREAM, b"hello")).await;
    client.expect(1, "hello").await;
    client.send(&long_head(11, "/a", MAX_BLOCK, b"")).await;
    client.expect_reason(GOAWAY, 0, Reason::EnhanceYourCalm).await;
    assert_eq!(client.connected.metrics.limits.reached.counted(Bound::BufferMemory), 0);
}

#[tokio::test]
async fn head_without_memory_ends_the_connection() {
    let mut client = Client::new(PATIENCE).await;
    client.send(&[long_head(1, "/never", 61_000, b""), long_head(3, "/never", 61_000, b"")].concat()).await;
    client.send(&long_head(5, "/a", 200_000, b"")).await;
    client.expect_reason(GOAWAY, 0, Reason::EnhanceYourCalm).await;
    let reached = &client.connected.metrics.limits.reached;
    assert_eq!(reached.counted(Bound::BufferMemory), 1);
    drop(client.connected.stream);
    client.connected.served.await.unwrap();
    assert_eq!(client.connected.metrics.limits.buffer_memory.get(), 0);
}

#[tokio::test]
async fn broken_protocol_ends_the_connection() {
    let never = [&frame(HEADERS, 0, 1, b"")[..], &frame(CONTINUATION, 0, 1, b"").repeat(MAX_BLOCK_FRAMES)].concat();
    for (bytes, reason) in [
        (data(0, 0, b""), Reason::ProtocolError),
        (data(1, 0, b""), Reason::ProtocolError),
        (data(1, PADDED, b"\x01"), Reason::ProtocolError),
        (get(2, "/a"), Reason::ProtocolError),
        (frame(HEADERS, END_HEADERS, 1, &[0xff]), Reason::CompressionError),
        (frame(CONTINUATION, END_HEADERS, 1, &[]), Reason::ProtocolError),
        ([frame(HEADERS, 0, 1, &[]), get(3, "/a")].concat(), Reason::ProtocolError),
        ([frame(HEADERS, 0, 1, &[]), frame(CONTINUATION, END_HEADERS, 3, &[])].concat(), Reason::ProtocolError),
        (never, Reason::EnhanceYourCalm),
        (frame(DATA, 0, 1, &[0; MAX_FRAME + 1]), Reason::FrameSizeError),
        (frame(PING, 0, 0, &[0; 7]), Reason::FrameSizeError),
        (frame(PING, 0, 1, &[0; 8]), Reason::ProtocolError),
        (frame(SETTINGS, 0, 0, &[0; 5]), Reason::FrameSizeError),
        (frame(SETTINGS, ACK, 0, &[0; 6]), Reason::FrameSizeError),
        (frame(SETTINGS, 0, 1, &[]), Reason::ProtocolError),
        (settings(&[(INITIAL_WINDOW_SIZE, 1 << 31)]), Reason::FlowControlError),
        (
            [post(1, "/a"), post(3, "/a"), window(1, 1), settings(&[(INITIAL_WINDOW_SIZE, MAX_WINDOW)])].concat(),
            Reason::FlowControlError,
        ),
        (settings(&[(ENABLE_PUSH, 2)]), Reason::ProtocolError),
        (settings(&[(MAX_FRAME_SIZE, MAX_FRAME as u32 - 1)]), Reason::ProtocolError),
        (settings(&[(MAX_FRAME_SIZE, 1 << 24)]), Reason::ProtocolError),
        (frame(PUSH_PROMISE, 0, 1, &[0; 4]), Reason::ProtocolError),
        (frame(PRIORITY, 0, 1, &[0; 4]), Reason::FrameSizeError),
        (frame(RST_STREAM, 0, 1, &[0; 4]), Reason::ProtocolError),
        (frame(RST_STREAM, 0, 1, &[0; 3]), Reason::FrameSizeError),
        (window(0, 0), Reason::ProtocolError),
        (window(0, i32::MAX as u32), Reason::FlowControlError),
        (window(1, 1), Reason::ProtocolError),
    ] {
        let mut client = Client::new(PATIENCE).await;
        client.send(&bytes).await;
        client.expect_reason(GOAWAY, 0, reason).await;
        assert_eq!(client.next().await, None, "{reason:?}");
        drop(client.connected.stream);
        client.connected.served.await.unwrap();
    }
    let mut client = Client { connected: Connected::new(PATIENCE).await, received: Vec::new() };
    client.send(&[PREFACE, &get(1, "/a")].concat()).await;
    client.next().await.unwrap();
    client.expect_reason(GOAWAY, 0, Reason::ProtocolError).await;
}

#[tokio::test]
async fn too_many_faults_end_the_connection() {
    let mut client = Client::new(PATIENCE).await;
    let (mut reader, mut writer) = client.connected.stream.split();
    let faults = async {
        for number in 0..=MAX_FAULTS {
            let stream = 2 * number + 1;
            let frames = [post(stream, "/a"), window(stream, 0)].concat();
            if writer.write_all(&frames).await.is_err() {
                break;
            }
        }
    };
    let mut received = Vec::new();
    let (_, read) = tokio::join!(faults, reader.read_to_end(&mut received));
    read.unwrap();
    assert_eq!(received[received.len() - 4..], [0, 0, 0, Reason::EnhanceYourCalm as u8]);
}

#[tokio::test]
async fn slow_clients_are_bounded() {
    const SOON: Duration = Duration::from_millis(100);
    let mut client = Client::new(SOON).await;
    client.send(&[post(1, "/a"), data(1, 0, b"he")].concat()).await;
    let (stream, status, ..) = client.response().await;
    assert_eq!((stream, status.as_str()), (1, "408"));
    client.expect_reason(RST_STREAM, 1, Reason::NoError).await;
    client.send(&get(3, "/a")).await;
    client.expect(3, "").await;
    client.send(&frame(HEADERS, 0, 5, &[])).await;
    client.expect_reason(GOAWAY, 0, Reason::EnhanceYourCalm).await;

    let mut client = Client::new(SOON).await;
    client.send(&[settings(&[(INITIAL_WINDOW_SIZE, 1)]), post(1, "/a"), data(1, END_STREAM, b"hello")].concat()).await;
    for kind in [SETTINGS, HEADERS, DATA] {
        assert_eq!(client.next().await.unwrap().0, kind);
    }
    client.expect_reason(GOAWAY, 0, Reason::NoError).await;
    assert_eq!(client.next().await, None);
}

/// Regression test: a reply that was no longer wanted counted as one that the client does not take.
#[tokio::test]
async fn client_that_resets_a_blocked_reply_stays_connected() {
    let mut client = Client::new(Duration::from_millis(100)).await;
    client.send(&[settings(&[(INITIAL_WINDOW_SIZE, 1)]), post(1, "/a"), data(1, END_STREAM, b"hello")].concat()).await;
    for kind in [SETTINGS, HEADERS, DATA] {
        assert_eq!(client.next().await.unwrap().0, kind);
    }
    client.send(&frame(RST_STREAM, 0, 1, &[0; 4])).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    client.send(&frame(PING, 0, 0, &[0; 8])).await;
    assert_eq!(client.next().await.unwrap().0, PING);
}

#[tokio::test]
async fn client_that_begins_no_more_requests_is_answered_and_left() {
    let mut client = Client::new(PATIENCE).await;
    client.send(&[post(1, "/a"), frame(GOAWAY, 0, 0, &[0; 8]), data(1, END_STREAM, b"hello")].concat()).await;
    let (stream, status, ..) = client.response().await;
    assert_eq!((stream, status.as_str()), (1, "200"));
    assert_eq!(client.next().await, None);
}

#[tokio::test]
async fn reply_without_memory_is_refused() {
    let mut client = Client::new(PATIENCE).await;
    client.send(&get(1, "/long")).await;
    assert_eq!(client.response().await, (1, "503".to_owned(), String::new(), false));
}

#[tokio::test]
async fn closing_server_answers_complete_requests_and_refuses_others() {
    let mut client = Client::new(PATIENCE).await;
    client.send(&[settings(&[(INITIAL_WINDOW_SIZE, 1)]), get(1, "/pieces"), post(3, "/a")].concat()).await;
    for kind in [SETTINGS, HEADERS, DATA] {
        assert_eq!(client.next().await.unwrap().0, kind);
    }
    client.connected.closing.cancel();
    let mut kinds = [client.next().await.unwrap(), client.next().await.unwrap()];
    kinds.sort();
    assert_eq!((kinds[0].0, kinds[0].2, kinds[1].0), (RST_STREAM, 3, GOAWAY));
    client.send(&window(1, 100)).await;
    let mut rest = Vec::new();
    while let Some((kind, _, _, content)) = client.next().await {
        assert_eq!(kind, DATA);
        rest.extend(content);
    }
    assert_eq!(rest, b"netwo");
}

/// Returns a conversation with all kinds of frames.
fn conversation() -> Vec<u8> {
    let head = block("POST", "/a", &[("x-long", &"v".repeat(200))]);
    let (one, two) = head.split_at(30);
    [
        PREFACE.to_vec(),
        settings(&[(INITIAL_WINDOW_SIZE, 3)]),
        get(1, "/pieces"),
        frame(HEADERS, 0, 3, one),
        frame(CONTINUATION, END_HEADERS, 3, two),
        data(3, PADDED, b"\x02hel\0\0"),
        frame(PING, 0, 0, &[7; 8]),
        data(3, END_STREAM, b"lo"),
        window(3, 100),
        window(0, 100),
        post(5, "/streamed"),
        data(5, 0, b"piece"),
        frame(RST_STREAM, 0, 5, &[0, 0, 0, 8]),
        frame(PRIORITY, 0, 7, &[0; 5]),
        get(7, "/message"),
        settings(&[(INITIAL_WINDOW_SIZE, 100)]),
    ]
    .concat()
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config::with_cases(200))]

    #[test]
    fn no_input_breaks_the_server(changes in proptest::collection::vec((0..1000_usize, proptest::prelude::any::<u8>()), 0..8), cut in 24..1000_usize) {
        let mut bytes = conversation();
        for (place, byte) in changes {
            // The preface stays.
            let place = 24 + place % (bytes.len() - 24);
            bytes[place] = byte;
        }
        let (one, two) = bytes.split_at(cut.min(bytes.len()));
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
            let mut client = Client { connected: Connected::new(Duration::from_millis(50)).await, received: Vec::new() };
            client.send(one).await;
            tokio::task::yield_now().await;
            // The server may have closed the connection.
            let _ = client.connected.stream.write_all(two).await;
            let _ = client.connected.stream.shutdown().await;
            let _ = client.connected.stream.read_to_end(&mut client.received).await;
            drop(client.connected.stream);
            client.connected.served.await.unwrap();
            assert_eq!(client.connected.metrics.limits.buffer_memory.get(), 0);
            // It has sent whole frames.
            let mut read = 0;
            while let Some((_, length)) = Frame::read(&client.received[read..]).unwrap() {
                read += length;
            }
            assert_eq!(read, client.received.len());
        });
    }
}
