//! HTTP over real sockets: bodies that are not read, pipelines, and a store that does not answer. The API is in tests/wire/.

use crate::support::http::{encode, served};

const RULES: &str = "
[api=status] creditLimit=3 per=1h label=status
[api=open] creditLimit=9 resetSeconds=0
[default] creditLimit=0
";

#[test]
fn oversized_body_is_rejected_without_being_read() {
    let (server, mut client) = served(RULES, &[]);
    client.send(b"POST /v1/hit HTTP/1.1\r\nhost: divvy\r\ncontent-type: application/json\r\n");
    client.send(b"content-length: 1000000000\r\n\r\n{\"operation\":");
    assert_eq!(client.read_response().status, 413);
    assert!(client.is_closed(), "other input is not mistaken for a request");
    assert!(server.terminate().success());
}

/// Regression test: such clients filled the memory for buffers.
#[test]
fn body_that_is_not_wanted_is_not_waited_for() {
    let (server, _) = served(RULES, &["--requirepass", "secret"]);
    for (request, status) in [
        ("POST /nothing", 404),
        ("POST /healthz", 405),
        ("GET /openapi.json", 200),
        ("GET /v1/rules", 401),
        ("POST /v1/hits", 401),
        ("POST /v1/peek", 401),
        ("POST /v1/explain", 401),
        ("POST /ui/api/login", 404),
    ] {
        for framing in
            ["content-length: 60000", "transfer-encoding: chunked", "content-length: 9\r\nexpect: 100-continue"]
        {
            let mut client = server.http();
            let head = "host: divvy\r\ncontent-type: application/json";
            client.send(format!("{request} HTTP/1.1\r\n{head}\r\n{framing}\r\n\r\n{{").as_bytes());
            assert_eq!(client.read_response().status, status, "{request} {framing}");
            assert!(client.is_closed(), "{request} {framing}");
        }
    }
}

#[test]
fn pipelined_requests_are_answered_in_order_on_one_connection() {
    let (_server, mut client) = served(RULES, &[]);
    let hit = |body: &str| encode("POST", "/v1/hit", &[("content-type", "application/json")], body.as_bytes());
    let status = hit(r#"{"operation":{"api":"status"}}"#);
    let pipeline = [&status[..], &encode("GET", "/nothing", &[], b""), &status, &hit("{"), &status].concat();
    client.send(&pipeline);
    let responses: Vec<_> = (0..5).map(|_| client.read_response()).collect();
    assert_eq!(responses.iter().map(|response| response.status).collect::<Vec<_>>(), [200, 404, 200, 400, 200]);
    let remaining: Vec<_> =
        [0, 2, 4].iter().map(|&index: &usize| responses[index].json()["remaining"].clone()).collect();
    assert_eq!(remaining, [2, 1, 0]);
}

#[test]
fn rule_without_a_counter_needs_no_store() {
    // Nothing listens on this port.
    let (_server, mut client) = served(RULES, &["--redis-url", "redis://127.0.0.1:1"]);
    let failed = client.post("/v1/hit", r#"{"operation":{"api":"status"}}"#);
    assert_eq!((failed.status, failed.header("retry-after")), (503, Some("1")));
    let both = client.post("/v1/hits", r#"{"hits":[{"operation":{"api":"status"}},{"operation":{"api":"open"}}]}"#);
    let results = &both.json()["results"];
    assert_eq!((both.status, &results[0]["status"], &results[1]["allowed"]), (200, &503.into(), &true.into()));
}
