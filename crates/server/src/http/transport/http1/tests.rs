//! Sessions over real sockets, with a front that answers what the path asks for.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::http::transport::tests::{Connected, MAX_BODY, PATIENCE};

/// A client.
struct Client(Connected);

impl Client {
    async fn new(timeout: Duration) -> Self {
        Self(Connected::new(timeout).await)
    }

    async fn send(&mut self, text: &str) {
        self.0.stream.write_all(text.as_bytes()).await.unwrap();
    }

    /// Reads until the server has sent this text. Returns everything, without the date.
    async fn read_until(&mut self, end: &str) -> String {
        let mut read = Vec::new();
        while !read.ends_with(end.as_bytes()) {
            assert_ne!(self.0.stream.read_buf(&mut read).await.unwrap(), 0, "{}", read.escape_ascii());
        }
        without_date(&read)
    }

    /// Reads until the server closes the connection.
    async fn read_to_end(mut self) -> String {
        let mut read = Vec::new();
        self.0.stream.read_to_end(&mut read).await.unwrap();
        drop(self.0.stream);
        self.0.served.await.unwrap();
        without_date(&read)
    }
}

fn without_date(text: &[u8]) -> String {
    let text = str::from_utf8(text).unwrap();
    text.split_inclusive("\r\n").filter(|line| !line.starts_with("date: ")).collect()
}

/// Sends everything at once, and reads until the server closes the connection.
async fn exchange(text: &str) -> String {
    let mut client = Client::new(PATIENCE).await;
    client.send(text).await;
    client.read_to_end().await
}

fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

fn last(body: &str) -> String {
    ok(body).replacen("\r\n", "\r\nconnection: close\r\n", 1)
}

#[tokio::test]
async fn requests_are_answered_in_order_until_one_asks_to_close() {
    let requests = "POST /a HTTP/1.1\r\ncontent-length: 5\r\n\r\nfirst\
                    POST /b HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3\r\nsec\r\n3\r\nond\r\n0\r\n\r\n\
                    GET /c HTTP/1.1\r\n\r\n\
                    GET /d HTTP/1.1\r\nconnection: close\r\n\r\n\
                    GET /e HTTP/1.1\r\n\r\n";
    assert_eq!(exchange(requests).await, [ok("first"), ok("second"), ok(""), last("")].concat());
}

#[tokio::test]
async fn bytes_may_come_one_by_one() {
    let mut client = Client::new(PATIENCE).await;
    for body in ["content-length: 5\r\n\r\nhello", "transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"] {
        for byte in format!("POST /a HTTP/1.1\r\n{body}").chars() {
            client.send(&byte.to_string()).await;
            tokio::task::yield_now().await;
        }
        assert_eq!(client.read_until("hello").await, ok("hello"));
    }
    client.send("GET / HTTP/1.1\r\nconnection: close\r\n\r\n").await;
    assert_eq!(client.read_to_end().await, last(""));
}

#[tokio::test]
async fn old_clients_keep_the_connection_only_if_they_ask() {
    let kept = "HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 0\r\n\r\n";
    let closed = "HTTP/1.0 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    let requests = "GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\nGET / HTTP/1.0\r\n\r\nGET / HTTP/1.0\r\n\r\n";
    assert_eq!(exchange(requests).await, format!("{kept}{closed}"));
}

#[tokio::test]
async fn pieces_are_chunks_or_end_with_the_connection() {
    let chunks = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n";
    let requests = "GET /pieces HTTP/1.1\r\n\r\nGET /pieces HTTP/1.0\r\n\r\n";
    let closed = "HTTP/1.0 200 OK\r\nconnection: close\r\n\r\nonetwo";
    assert_eq!(exchange(requests).await, format!("{chunks}{closed}"));
    let none = "HTTP/1.1 204 No Content\r\n\r\n";
    let requests = "GET /empty HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\nconnection: close\r\n\r\n";
    assert_eq!(exchange(requests).await, format!("{none}{}", last("")));
}

#[tokio::test]
async fn reply_to_head_has_the_length_of_the_body_if_it_is_known() {
    let requests =
        "HEAD /described HTTP/1.1\r\n\r\nHEAD /unknown HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\nconnection: close\r\n\r\n";
    let known = "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n";
    assert_eq!(exchange(requests).await, format!("{known}HTTP/1.1 200 OK\r\n\r\n{}", last("")));
}

#[tokio::test]
async fn empty_lines_between_requests_are_ignored() {
    let mut client = Client::new(Duration::from_millis(100)).await;
    client.send("GET / HTTP/1.1\r\n\r\n\r\n").await;
    assert_eq!(client.read_until("\r\n\r\n").await, ok(""));
    tokio::time::sleep(Duration::from_millis(200)).await;
    client.send("\r\n\r\nGET / HTTP/1.1\r\nconnection: close\r\n\r\n").await;
    assert_eq!(client.read_to_end().await, last(""));
}

#[tokio::test]
async fn client_that_has_closed_its_side_gets_all_answers() {
    let mut client = Client::new(PATIENCE).await;
    client.send(&"GET /slow HTTP/1.1\r\n\r\n".repeat(3)).await;
    client.0.stream.shutdown().await.unwrap();
    assert_eq!(client.read_to_end().await, ok("slow").repeat(3));
}

#[tokio::test]
async fn client_that_asks_gets_permission_once_unless_the_body_is_there() {
    let mut client = Client::new(PATIENCE).await;
    let head = "POST /a HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n";
    client.send(head).await;
    assert_eq!(client.read_until("\r\n\r\n").await, "HTTP/1.1 100 Continue\r\n\r\n");
    client.send("he").await;
    client.send("llo").await;
    assert_eq!(client.read_until("hello").await, ok("hello"));
    client.send(&format!("{head}hello")).await;
    assert_eq!(client.read_until("hello").await, ok("hello"));
}

#[tokio::test]
async fn body_that_is_not_wanted_is_not_waited_for() {
    let (most, more) = (MAX_BODY, MAX_BODY + 1);
    for (request, expected) in [
        (format!("POST /a HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: {more}\r\n\r\n"), "413"),
        (format!("POST /a HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n{more:x}\r\n"), "413"),
        (format!("POST /ignored HTTP/1.1\r\ncontent-length: {more}\r\n\r\n"), "200"),
        (format!("POST /forbidden HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: {most}\r\n\r\n"), "413"),
        (format!("POST /forbidden HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n{most:x}\r\n"), "413"),
    ] {
        let answer = exchange(&format!("{request}GET / HTTP/1.1\r\n\r\n")).await;
        let expected = format!("HTTP/1.1 {expected} ");
        assert!(answer.starts_with(&expected) && answer.contains("\r\nconnection: close\r\n"), "{request}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1").count(), 1, "what follows is no request: {answer}");
    }
    let body = "x".repeat(most);
    let request = format!("POST /a HTTP/1.1\r\nconnection: close\r\ncontent-length: {most}\r\n\r\n{body}");
    assert_eq!(exchange(&request).await, last(&body));
}

#[tokio::test]
async fn what_is_no_request_gets_an_error_after_the_answers_before_it() {
    let answer = exchange("GET / HTTP/1.1\r\n\r\nPOST / HTTP/1.1\r\ncontent-length: x\r\n\r\n").await;
    let error = answer.strip_prefix(&ok("")).unwrap_or_else(|| panic!("{answer}"));
    assert!(error.starts_with("HTTP/1.1 400 Bad Request\r\n") && error.contains("connection: close"), "{error}");
    assert!(error.ends_with("\"detail\":\"Content-Length must be one whole number\"}\n"), "{error}");
}

#[tokio::test]
async fn slow_request_is_cut() {
    let mut client = Client::new(Duration::from_millis(100)).await;
    client.send("POST / HTTP/1.1\r\ncontent-length: 5\r\n\r\nhe").await;
    let answer = client.read_to_end().await;
    assert!(answer.starts_with("HTTP/1.1 408 Request Timeout\r\n"), "{answer}");
}

#[tokio::test]
async fn reply_without_memory_is_refused() {
    // Two connections of one server share the budget, but this reply is too long for it alone.
    let answer = exchange("GET /long HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\n"), "{answer}");
}

#[tokio::test]
async fn answer_is_given_up_when_the_client_leaves() {
    let mut client = Client::new(PATIENCE).await;
    client.send("GET /never HTTP/1.1\r\n\r\n").await;
    assert_eq!(client.0.metrics.limits.buffer_memory.get(), 0);
    drop(client.0.stream);
    client.0.served.await.unwrap();
}
