use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;
use crate::client::MAX_BUFFER;

/// Answers one request with these bytes, and returns the request.
async fn exchange(answer: &[u8], is_startup: bool) -> (String, Result<String, FetchError>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/lapi/", listener.local_addr().unwrap());
    let upstream = Upstream::new(&url.parse().unwrap(), HeaderValue::from_static("key"), None).unwrap();
    let answering = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            request.push(stream.read_u8().await.unwrap());
        }
        // The client may have heard enough.
        let _ = stream.write_all(answer).await;
        String::from_utf8(request).unwrap()
    };
    let mut found = Vec::new();
    let fetching = upstream.fetch(is_startup, |list, text| {
        found.push(format!("{list:?} {}", String::from_utf8_lossy(text)));
    });
    let (request, fetched) = futures_util::future::join(answering, fetching).await;
    (request, fetched.map(|()| found.join(", ")))
}

fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

#[tokio::test]
async fn decisions_are_fetched() {
    let (request, found) = exchange(ok(r#"{"new":[{"a":1}],"deleted":[{}]}"#).as_bytes(), true).await;
    assert_eq!(found.unwrap(), r#"New {"a":1}, Deleted {}"#);
    let (line, head) = request.split_once("\r\n").unwrap();
    assert_eq!(line, "GET /lapi/v1/decisions/stream?startup=true&scopes=ip,range HTTP/1.1");
    for expected in ["x-api-key: key\r\n", "user-agent: divvy/", "host: 127.0.0.1:", "connection: close\r\n"] {
        assert!(head.contains(expected), "{head}");
    }
    let chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n8\r\n{\"new\":[\r\n13\r\n{}],\"deleted\":null}\r\n0\r\n\r\n";
    let (request, found) = exchange(chunked, false).await;
    assert_eq!(found.unwrap(), "New {}");
    assert!(request.starts_with("GET /lapi/v1/decisions/stream?startup=false&"), "{request}");
}

#[tokio::test]
async fn other_answers_are_errors() {
    let too_long = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{{", MAX_ANSWER + 1);
    let long_head = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n{{", "x".repeat(2 * MAX_BUFFER));
    for (answer, expected) in [
        ("HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n", "refuses the key (status 403 Forbidden)"),
        ("HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1/\r\ncontent-length: 0\r\n\r\n", "status 302 Found"),
        ("HTTP/1.1 500 Internal Server Error\r\n\r\n", "status 500 Internal Server Error"),
        (&ok("<html>"), "the answer is not JSON with the lists `new` and `deleted`"),
        (&ok("{\"new\":["), "the answer ends too early"),
        ("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}", "end of file before message length reached"),
        ("SSH-2.0-OpenSSH_9.2\r\n", "invalid HTTP version parsed"),
        ("", "connection closed before message completed"),
        (&too_long, "the answer is longer than 256 MiB"),
        (&long_head, "message head is too large"),
    ] {
        let (_, found) = exchange(answer.as_bytes(), false).await;
        let error = found.unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        assert_eq!(error.may_have_been_answered(), !expected.contains("key"), "{error}");
    }
}

#[tokio::test]
async fn missing_server_is_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let upstream =
        Upstream::new(&format!("http://{address}").parse().unwrap(), HeaderValue::from_static("key"), None).unwrap();
    let error = upstream.fetch(true, |_, _| ()).await.unwrap_err();
    assert!(error.to_string().starts_with(&format!("cannot connect to {address}: ")), "{error}");
    assert!(!error.may_have_been_answered());
}

#[test]
fn address_is_checked() {
    let key = HeaderValue::from_static("k");
    let new = |url: &str| match url.parse() {
        Ok(url) => Upstream::new(&url, key.clone(), None)
            .map(|upstream| format!("{} {}", upstream.address(), upstream.request(true).unwrap().uri().path())),
        Err(error) => Err(InvalidUrl::NoUrl(error)),
    };
    assert_eq!(new("http://crowdsec:8080").unwrap(), "crowdsec:8080 /v1/decisions/stream");
    assert_eq!(new("http://[::1]/a/").unwrap(), "[::1]:80 /a/v1/decisions/stream");
    for (url, expected) in [
        ("127.0.0.1:8080", "it is not a URL"),
        ("redis://127.0.0.1:8080", "write a URL such as"),
        ("http://me:secret@127.0.0.1:8080", "without a user"),
        ("http://127.0.0.1:8080/?a=b", "without a user, a query"),
        ("unix:/run/crowdsec.sock", "write a URL such as"),
    ] {
        let error = new(url).unwrap_err().to_string();
        assert!(error.contains(expected) && !error.contains("secret"), "{url}: {error}");
    }
}
