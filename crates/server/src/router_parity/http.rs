//! Hits over HTTP/1.1.

use super::*;

/// Sends bytes in pieces, and returns the server's whole answer.
async fn exchange(mut client: TcpStream, pieces: &[&[u8]]) -> String {
    for piece in pieces {
        // The server may have answered and closed the connection already.
        let _ = client.write_all(piece).await;
        // The result must not depend on how many pieces the server reads at once.
        tokio::task::yield_now().await;
    }
    let _ = client.shutdown().await;
    let mut answer = Vec::new();
    let _ = timeout(PATIENCE, client.read_to_end(&mut answer)).await.unwrap();
    timeless(&String::from_utf8(answer).unwrap())
}

/// Returns a request over HTTP/1.1 with additional header lines.
fn posted(head: &str, body: &str) -> String {
    format!(
        "POST /v1/hit HTTP/1.1\r\nhost: divvy\r\n{head}content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn http_requests() -> Vec<String> {
    let ada = r#"{"operation":{"user":"ada"}}"#;
    let long = format!(r#"{{"operation":{{"user":"{}"}}}}"#, "a".repeat(MAX_BODY));
    let mut requests: Vec<String> = [
        ada,
        ada,
        r#"{"operation":{"user":"ada"},"cost":1}"#,
        ada,
        r#" { "cost" : 0 , "operation" : { "user" : "a\u0064a", "x": "\"" } } "#,
        r#"{"operation":{"user":"eve"},"cost":4}"#,
        r#"{"operation":{"user":"eve"},"cost":null}"#,
        r#"{"operation":{"user":"eve","user":"bob"}}"#,
        r#"{"operation":{},"operation":{}}"#,
        r#"{"operation":{"priced":"2"}}"#,
        r#"{"operation":{"priced":"many"}}"#,
        r#"{"operation":{"nothing":"matches"}}"#,
        r#"{"operation":{"a":"1","b":"2","c":"3","d":"4"}}"#,
        r#"{"operation":{"a":"1","b":"2","c":"3","a":"4"}}"#,
        r#"{"operation":{"user":1}}"#,
        r#"{"operation":{"user":"ada"},"price":1}"#,
        r#"{"operation":{"user":"ada"},"cost":-1}"#,
        r#"{"operation":{"user":"ada"}"#,
        r#"{"operation":{"user":"ada"}} x"#,
        "{}",
        "[]",
        "",
        "\u{0}",
        &long,
    ]
    .map(|body| posted("", body))
    .into();
    requests.extend(
        [
            "authorization: Bearer open sesame\r\n",
            "authorization: bearer  open sesame\r\n",
            "authorization: Bearer open\r\n",
            "authorization: Basic open sesame\r\n",
            "authorization: Bearer open sesame\r\nauthorization: Bearer open sesame\r\n",
            "expect: 100-continue\r\n",
            "connection: close\r\n",
            "connection: keep-alive\r\naccept: text/html\r\ntransfer-encoding: identity\r\n",
            "content-type: text/plain\r\n",
            "content-length: 3\r\n",
        ]
        .map(|head| posted(head, r#"{"operation":{"user":"cyd"}}"#)),
    );
    let plain = posted("", ada);
    requests.extend([
        plain.replace("application/json", "text/plain"),
        plain.replace("application/json", "Application/JSON ; charset=utf-8"),
        plain.replace("content-type: application/json\r\n", ""),
        plain.replace("POST", "GET"),
        plain.replace("POST", "PUT"),
        plain.replace("POST", "HEAD"),
        plain.replace("POST", "OPTIONS"),
        plain.replace("/v1/hit", "/v1/hit/"),
        plain.replace("/v1/hit", "/v1/hit?user=bob"),
        plain.replace("/v1/hit", "/V1/hit"),
        plain.replace("/v1/hit", "/v1/%68it"),
        plain.replace("/v1/hit", "http://divvy/v1/hit"),
        plain.replace("/v1/hit", "/v1/peek"),
        plain.replace("/v1/hit", "/v1/hits"),
        plain.replace("/v1/hit", "/v1/rules"),
        plain.replace("HTTP/1.1", "HTTP/1.0"),
        plain.replace("content-length: 28", "content-length: 29"),
        plain.replace("content-length: 28", "content-length: 27"),
        plain.replace("content-length: 28", "content-length: 501"),
        plain.replace("content-length: 28", "content-length: x"),
        format!("{plain}{plain}{plain}"),
    ]);
    let chunked = plain.replace("content-length: 28", "transfer-encoding: chunked").replace(ada, "");
    let chunk = |body: &str| format!("{:x}\r\n{body}\r\n", body.len());
    let (begin, end) = ada.split_at(9);
    requests.extend([
        format!("{chunked}{}0\r\n\r\n", chunk(ada)),
        format!("{chunked}{}{}0\r\n\r\n", chunk(begin), chunk(end)),
        format!("{chunked}{}0\r\nx-trailer: 1\r\n\r\n", chunk(ada)),
        format!("{chunked}{}", chunk(ada)),
        format!("{chunked}zz\r\n"),
        format!("{chunked}{}0\r\n\r\n", chunk(&long)),
        format!("{chunked}{}{}0\r\n\r\n", chunk(&long[..300]), chunk(&long[300..])),
    ]);
    requests
}

#[tokio::test]
async fn hits_over_http_1_get_the_same_answers_as_from_the_router() {
    for password in [None, Some(PASSWORD)] {
        let (fast, plain) = (Served::new(password).await, Served::new(password).await);
        for request in http_requests() {
            let bytes = request.as_bytes();
            let (one, rest) = bytes.split_at(bytes.len() / 2);
            let (two, three) = rest.split_at(rest.len().saturating_sub(10));
            for pieces in [&[bytes][..], &[one, two, three]] {
                let answer = exchange(fast.connect(Arc::clone(fast.http.routes())).await, pieces).await;
                let expected = exchange(plain.connect(without_fast(plain.http.routes())).await, pieces).await;
                assert_eq!(answer, expected, "{request}");
                assert_eq!(fast.counts(), plain.counts(), "{request}");
            }
        }
        assert!(
            fast.counts().iter().any(|line| line.starts_with("divvy_requests_total{command=\"hit\",front=\"http\"}"))
        );
    }
}
