//! The recorded line protocol, byte by byte, and the handling of connections.

use std::time::Duration;

use serde_json::Value;

use crate::support::{COMPAT_RULES, Server, on_local_stores, parse_verdict};

const ROWS: &str = include_str!("compat/line-protocol.jsonl");
/// Maximum difference between the seconds left and the recorded ones.
const TOLERANCE: u64 = 5;

fn rows() -> Vec<(String, String)> {
    let text = |row: &Value, field: &str| row[field].as_str().unwrap().to_owned();
    let rows = ROWS.lines().map(|line| serde_json::from_str(line).unwrap());
    rows.map(|row: Value| (text(&row, "send"), text(&row, "reply"))).collect()
}

fn assert_reply(sent: &str, reply: &str, recorded: &str) {
    match (parse_verdict(reply), parse_verdict(recorded)) {
        (Some((allowed, credit, reset)), Some((recorded_allowed, recorded_credit, recorded_reset))) => {
            assert_eq!((allowed, credit), (recorded_allowed, recorded_credit), "{sent:?}");
            let seconds = recorded_reset.saturating_sub(TOLERANCE)..=recorded_reset;
            assert!(seconds.contains(&reset), "{sent:?}: {reply:?}, recorded {recorded:?}");
        }
        _ => assert_eq!(reply, recorded, "{sent:?}"),
    }
}

#[test]
fn every_recorded_row_is_answered_as_recorded() {
    for is_fed_byte_by_byte in [false, true] {
        on_local_stores(include_str!("compat/line-protocol.ini"), |server| {
            let mut client = server.line();
            for (send, recorded) in rows() {
                let size = if is_fed_byte_by_byte { 1 } else { send.len() };
                send.as_bytes().chunks(size).for_each(|bytes| client.send(bytes));
                assert_reply(&send, &client.read_line(), &recorded);
            }
        });
    }
}

#[test]
fn all_rows_in_one_write_are_answered_in_order() {
    on_local_stores(include_str!("compat/line-protocol.ini"), |server| {
        let mut client = server.line();
        let all: String = rows().into_iter().map(|(send, _)| send).collect();
        client.send(all.as_bytes());
        for (send, recorded) in rows() {
            assert_reply(&send, &client.read_line(), &recorded);
        }
        // Each request has exactly one line of reply.
        client.stream().set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let mut byte = [0];
        let more = std::io::Read::read(&mut client.stream(), &mut byte);
        assert!(more.is_err(), "an unasked line: {more:?}");
    });
}

#[test]
fn unfinished_line_gets_no_reply_at_the_end() {
    let server = Server::in_memory(COMPAT_RULES);
    let mut client = server.line();
    client.send(b"HIT method=GET path=/status\nHIT method=GET");
    client.stream().shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(client.read_line(), "OK true 999 60\n");
    assert_eq!(client.read_line(), "", "the connection ends after the last whole request");
}

#[test]
fn bytes_that_are_not_utf8_are_an_error_and_the_connection_goes_on() {
    let server = Server::in_memory(COMPAT_RULES);
    let mut client = server.line();
    client.send(b"HIT a=\xff\nHIT method=GET path=/status\n");
    let error = client.read_line();
    assert!(error.starts_with("ERR unknown \"") && error.contains("UTF-8"), "{error}");
    assert_eq!(client.read_line(), "OK true 999 60\n");
}
