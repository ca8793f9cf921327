use hyper::header::HeaderValue;
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

fn now() -> Timestamp {
    Timestamp::from_nanos(1_000 * NANOS_PER_SECOND)
}

/// Returns what an answer has, or the error.
fn found(answer: &[u8]) -> Result<String, String> {
    parse(answer, Answer::new(1_000, now())).map(|answer| describe(&answer)).map_err(|error| error.to_string())
}

fn decision(value: &str, duration: &str, scenario: &str) -> String {
    let scope = if value.contains('/') { "Range" } else { "Ip" };
    let decision = serde_json::json!({
        "duration": duration, "id": 1, "origin": "CAPI", "scenario": scenario, "scope": scope, "type": "ban",
        "value": value,
    });
    decision.to_string()
}

/// Describes the decisions of an answer: those in force, and those that have ended.
fn describe(answer: &Answer) -> String {
    let text = |(network, Ban { ends, scenario }): (&Network, &Ban)| {
        format!("{network} {} {scenario}", ends.since(now()) / NANOS_PER_SECOND)
    };
    let mut bans: Vec<_> = answer.bans.iter().map(text).collect();
    let mut ended: Vec<_> = answer.ended.iter().map(ToString::to_string).collect();
    bans.sort();
    ended.sort();
    let counts = format!("{} {} {}", answer.others, answer.malformed, answer.excess);
    format!("{}; {}; {counts}", bans.join(", "), ended.join(", "))
}

#[test]
fn decisions_are_found_in_both_lists() {
    let ban = decision("192.0.2.1", "1h", "a}]\"{[\\");
    for (answer, expected) in [
        (r#"{"deleted":null,"new":null}"#, "; ; 0 0 0"),
        (r#"{"new": [], "deleted": []}"#, "; ; 0 0 0"),
        (" { \"new\" : [ {} , { } ] , \"deleted\" : null } \n", "; ; 0 2 0"),
        (&format!(r#"{{"deleted":[{ban}],"new":[{{"b":[{{}}]}}]}}"#), "; 192.0.2.1; 0 1 0"),
        (r#"{"new":[1,[]],"deleted":null}"#, "; ; 0 2 0"),
        (
            &format!(
                r#"{{"links":{{"new":[{{"a":1}}]}},"deleted":null,"new":[{ban}],"x":"]}}\\","y":[[],{{}}],"z":-1}}"#
            ),
            "192.0.2.1 3600 a}]\"{[\\; ; 0 0 0",
        ),
        (&format!(r#"{{"n\"w":[{{}}],"\u006eew":[{ban}],"deleted":[]}}"#), "192.0.2.1 3600 a}]\"{[\\; ; 0 0 0"),
    ] {
        assert_eq!(found(answer.as_bytes()).as_deref(), Ok(expected), "{answer}");
    }
}

#[test]
fn malformed_answers_are_refused() {
    for answer in [
        "[]",
        "null",
        "<html>",
        r#"{"new":{}}"#,
        r#"{"new":[{},]}"#,
        r#"{"new":[{}{}]}"#,
        r#"{"new":[,{}]}"#,
        r#"{"new":[]"deleted":[]}"#,
        r#"{"new" []}"#,
        r#"{,}"#,
        r#"{"x":]}"#,
        "{} {}",
        "{}",
        r#"{"message":"no such table: decisions"}"#,
        r#"{"new":[]}"#,
        r#"{"deleted":null}"#,
        r#"{"new":nil,"deleted":null}"#,
        r#"{"new":nu ll,"deleted":null}"#,
        r#"{"new":[],"new":[],"deleted":null}"#,
        r#"{"new":[],"\u006eew":[],"deleted":null}"#,
        r#"{"new":"","deleted":null}"#,
    ] {
        let error = found(answer.as_bytes()).unwrap_err();
        assert!(error.starts_with("the answer is not JSON"), "{answer}: {error}");
    }
    for answer in ["", "{", r#"{"new":["#, r#"{"new":[{}"#, r#"{"new":[{}]"#, r#"{"x":1"#, r#"{"x":"}"#, r#"{"x"#] {
        let error = found(answer.as_bytes()).unwrap_err();
        assert_eq!(error, "the answer ends too early", "{answer}");
    }
}

#[test]
fn longest_ban_of_a_network_counts() {
    let mut answer = Answer::new(10, now());
    for (list, value, duration, scenario) in [
        (DecisionList::New, "192.0.2.1", "2h", "b"),
        (DecisionList::New, "192.0.2.1", "1h", "a"),
        (DecisionList::New, "10.0.0.0/8", "4h", "c"),
        (DecisionList::New, "192.0.2.2", "-4s", "c"),
        (DecisionList::Deleted, "192.0.2.1", "-4s", "x"),
        (DecisionList::Deleted, "192.0.2.3", "-4s", "x"),
    ] {
        answer.add(list, &decision(value, duration, scenario));
    }
    assert_eq!(describe(&answer), "10.0.0.0/8 14400 c, 192.0.2.1 7200 b; 192.0.2.1, 192.0.2.3; 0 0 0");
}

#[test]
fn other_decisions_are_counted() {
    let mut answer = Answer::new(1, now());
    answer.add(DecisionList::New, "{}");
    for (list, value, duration) in [
        (DecisionList::New, "nobody", "1h"),
        (DecisionList::New, "192.0.2.1", "1h"),
        (DecisionList::New, "192.0.2.2", "1h"),
        (DecisionList::New, "192.0.2.1", "2h"),
        (DecisionList::Deleted, "192.0.2.3", "1h"),
        (DecisionList::Deleted, "192.0.2.4", "1h"),
    ] {
        answer.add(list, &decision(value, duration, "a"));
    }
    assert_eq!(describe(&answer), "192.0.2.1 7200 a; 192.0.2.3; 1 1 2");
}

#[test]
fn scenarios_are_truncated_and_share_memory() {
    let mut answer = Answer::new(10, now());
    let long = "\u{fc}".repeat(MAX_SCENARIO);
    answer.add(DecisionList::New, &decision("192.0.2.1", "1h", &long));
    answer.add(DecisionList::New, &decision("192.0.2.2", "1h", &long));
    let scenarios: Vec<_> = answer.bans.values().map(|ban| Arc::clone(&ban.scenario)).collect();
    assert!(Arc::ptr_eq(&scenarios[0], &scenarios[1]) && scenarios[0].len() <= MAX_SCENARIO);
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_panic(bytes: Vec<u8>) {
        let _ = found(&bytes);
    }

    #[test]
    fn decisions_with_any_text_are_found(texts: Vec<String>) {
        let value = |n| std::net::Ipv4Addr::from_bits(n).to_string();
        let decisions: Vec<_> = (0..).zip(&texts).map(|(n, text)| decision(&value(n), "1h", text)).collect();
        let other = serde_json::json!(texts);
        let answer = format!(r#"{{"other":{other},"new":[{}],"deleted":null}}"#, decisions.join(" , "));
        let found = parse(answer.as_bytes(), Answer::new(1_000, now())).unwrap();
        prop_assert_eq!((found.bans.len(), found.malformed), (texts.len(), 0));
        for (n, text) in (0..).zip(&texts) {
            let ban = &found.bans[&Network::parse(&value(n)).unwrap()];
            let shown = text.replace(char::is_control, "?");
            prop_assert!(shown.starts_with(&*ban.scenario), "{:?} {}", ban, text);
        }
    }
}

fn upstream(url: &str) -> Upstream {
    let key = (API_KEY, HeaderValue::from_static("key"));
    Upstream { client: Client::new(("--url", url), ("--ca", None), Some(key)).unwrap() }
}

/// Answers one request with these bytes, and returns the request.
async fn exchange(answer: &[u8], is_startup: bool) -> (String, anyhow::Result<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/lapi/", listener.local_addr().unwrap());
    let upstream = upstream(&url);
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
    let (request, fetched) = tokio::join!(answering, upstream.fetch(is_startup, Answer::new(10, now())));
    (request, fetched.map(|answer| describe(&answer)))
}

fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

#[tokio::test]
async fn decisions_are_fetched() {
    let (request, found) = exchange(ok(r#"{"new":[{"a":1}],"deleted":[{}]}"#).as_bytes(), true).await;
    assert_eq!(found.unwrap(), "; ; 0 2 0");
    let (line, head) = request.split_once("\r\n").unwrap();
    assert_eq!(line, "GET /lapi/v1/decisions/stream?startup=true&scopes=ip,range HTTP/1.1");
    for expected in ["x-api-key: key\r\n", "user-agent: divvy/", "host: 127.0.0.1:", "connection: close\r\n"] {
        assert!(head.contains(expected), "{head}");
    }
    let chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n8\r\n{\"new\":[\r\n13\r\n{}],\"deleted\":null}\r\n0\r\n\r\n";
    let (request, found) = exchange(chunked, false).await;
    assert_eq!(found.unwrap(), "; ; 0 1 0");
    assert!(request.starts_with("GET /lapi/v1/decisions/stream?startup=false&"), "{request}");
}

#[tokio::test]
async fn other_answers_are_errors() {
    let too_long = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{{", MAX_ANSWER + 1);
    let long_head = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n{{", "x".repeat(1 << 17));
    for (answer, expected) in [
        ("HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n", "refuses the key (status 403 Forbidden)"),
        ("HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1/\r\ncontent-length: 0\r\n\r\n", "status 302 Found"),
        ("HTTP/1.1 500 Internal Server Error\r\n\r\n", "status 500 Internal Server Error"),
        (&ok("<html>"), "the answer is not JSON with the lists `new` and `deleted`"),
        (&ok("{\"new\":["), "the answer ends too early"),
        ("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}", "end of file before message length reached"),
        ("SSH-2.0-OpenSSH_9.2\r\n", "invalid HTTP version parsed"),
        ("", "connection closed before message completed"),
        (&too_long, "the answer is longer than 128 MiB"),
        (&long_head, "message head is too large"),
    ] {
        let (_, found) = exchange(answer.as_bytes(), false).await;
        let error = found.unwrap_err();
        assert!(format!("{error:#}").contains(expected), "{error:#}");
        assert_eq!(error.is::<UnreadRequest>(), expected.contains("key"), "{error:#}");
    }
}

#[tokio::test]
async fn missing_server_is_an_error() {
    let address = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let upstream = upstream(&format!("http://{address}"));
    let error = upstream.fetch(true, Answer::new(1, now())).await.unwrap_err();
    assert!(format!("{error:#}").starts_with(&format!("cannot connect to {address}: ")), "{error:#}");
    assert!(error.is::<UnreadRequest>());
}
