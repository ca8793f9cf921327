use h2::server::SendResponse;
use hyper::Response;
use tokio::io::{AsyncReadExt, DuplexStream, duplex};

use super::super::messages::DiscoveryRequest;
use super::*;

const MAX: usize = 1_000;
const PINGS: Pings = Pings { every: Duration::from_millis(1), patience: Duration::from_millis(1) };
const NO_PINGS: Pings = Pings { every: Duration::from_secs(3_600), patience: Duration::from_secs(1) };

fn call() -> Request<()> {
    Request::post("http://localhost/call").body(()).unwrap()
}

/// Answers the only call on a connection.
async fn serve(stream: DuplexStream, answer: impl FnOnce(SendResponse<Bytes>)) {
    let mut connection = h2::server::handshake(stream).await.unwrap();
    let (_request, respond) = connection.accept().await.unwrap().unwrap();
    answer(respond);
    // Until the client is gone.
    while connection.accept().await.is_some() {}
}

/// Returns the messages that arrive, and the error after them.
async fn received(answer: impl FnOnce(SendResponse<Bytes>) + Send + 'static) -> (Vec<Bytes>, String) {
    let (client, server) = duplex(1 << 20);
    let server = tokio::spawn(serve(server, answer));
    let mut stream = XdsStream::open(Box::new(client), call(), MAX, NO_PINGS).await.unwrap();
    let mut messages = Vec::new();
    let error = loop {
        match stream.receive().await {
            Ok(message) => messages.push(message),
            Err(error) => break error,
        }
    };
    drop(stream);
    server.await.unwrap();
    (messages, error.to_string())
}

fn begin(respond: &mut SendResponse<Bytes>) -> SendStream<Bytes> {
    respond.send_response(Response::new(()), false).unwrap()
}

#[tokio::test]
async fn messages_arrive_whole_in_any_pieces() {
    let message = |bytes: &[u8]| [&[0, 0, 0, 0, u8::try_from(bytes.len()).unwrap()][..], bytes].concat();
    let bytes = [message(b"first"), message(b""), message(b"third")].concat();
    for size in 1..=bytes.len() {
        let pieces: Vec<_> = bytes.chunks(size).map(Bytes::copy_from_slice).collect();
        let (messages, error) = received(move |mut respond| {
            let mut body = begin(&mut respond);
            for piece in pieces {
                body.send_data(piece, false).unwrap();
            }
            body.send_data(Bytes::new(), true).unwrap();
        })
        .await;
        assert_eq!(
            (messages, error.as_str()),
            (vec![Bytes::from("first"), Bytes::new(), Bytes::from("third")], "the server ended the stream")
        );
    }
}

#[tokio::test]
async fn reason_of_the_end_is_reported() {
    let status = || {
        let mut trailers = hyper::HeaderMap::new();
        trailers.insert("grpc-status", "7".parse().unwrap());
        trailers.insert("grpc-message", "go%20away".parse().unwrap());
        trailers
    };
    let refused =
        "the server ended the stream: The caller does not have permission to execute the specified operation: go away";
    let (_, error) = received(move |mut respond| {
        let mut response = Response::new(());
        *response.headers_mut() = status();
        respond.send_response(response, true).unwrap();
    })
    .await;
    assert_eq!(error, refused);
    let (_, error) = received(move |mut respond| begin(&mut respond).send_trailers(status()).unwrap()).await;
    assert_eq!(error, refused);
    let (_, error) = received(|mut respond| {
        respond.send_response(Response::builder().status(503).body(()).unwrap(), true).unwrap();
    })
    .await;
    assert_eq!(error, "the server answered with HTTP status 503 Service Unavailable");
    let (_, error) = received(|mut respond| respond.send_reset(h2::Reason::INTERNAL_ERROR)).await;
    assert!(error.contains("internal error"), "{error}");
}

#[tokio::test]
async fn long_and_compressed_messages_end_the_stream_before_they_are_read() {
    for (prefix, expected) in [
        ([0, 0, 0, 3, 233], "a response has 1001 bytes, more than --ratelimit-xds-max-message allows (1000)"),
        ([1, 0, 0, 0, 1], "a response is compressed, which was not asked for"),
    ] {
        let answer = move |mut respond: SendResponse<Bytes>| {
            begin(&mut respond).send_data(Bytes::copy_from_slice(&prefix), true).unwrap();
        };
        assert_eq!(received(answer).await, (vec![], expected.to_owned()));
    }
}

#[tokio::test]
async fn server_that_answers_no_ping_is_dead() {
    let (client, mut server) = duplex(1 << 20);
    let mut stream = XdsStream::open(Box::new(client), call(), MAX, PINGS).await.unwrap();
    assert_eq!(stream.receive().await.unwrap_err().to_string(), "the server does not answer");
    drop(stream);
    server.read_to_end(&mut Vec::new()).await.unwrap();
}

#[tokio::test]
async fn server_that_takes_no_more_requests_is_dead() {
    let (client, mut server) = duplex(1 << 20);
    let mut stream = XdsStream::open(Box::new(client), call(), MAX, PINGS).await.unwrap();
    let large = DiscoveryRequest { version_info: "x".repeat(100_000), ..DiscoveryRequest::default() };
    assert_eq!(stream.send(&large).await.unwrap_err().to_string(), "the server does not answer");
    drop(stream);
    server.read_to_end(&mut Vec::new()).await.unwrap();
}
