//! Clients that connect to the port of another protocol, or with and without TLS. The answer is in their own protocol.

use std::io::{Read, Write};

use super::check;
use crate::support::log::Log;
use crate::support::{COMPAT_RULES, Server, connect, divvy};

const GET: &[u8] = b"GET /v1/rules HTTP/1.1\r\nhost: divvy\r\n\r\n";
const HTTP_2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";
const HIT: &[u8] = b"HIT path=/a\n";
const TLS: &[u8] = b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03";

/// The port, the first bytes, and the text that helps.
const TABLE: &[(&str, &[u8], &str)] = &[
    ("line", GET, "HTTP/1.1 400 Bad Request\r\n"),
    ("line", GET, "this is divvy's line protocol port: HTTP has a port of its own (--http-listen, 8322 by default)"),
    (
        "line",
        PING,
        "-ERR this is divvy's line protocol port: RESP has a port of its own (--resp-listen, 9049 by default)",
    ),
    ("line", HTTP_2, "gRPC has a port of its own (--grpc-listen, 8323 by default)"),
    ("line", TLS, "this port does not speak TLS"),
    ("resp", GET, "this is divvy's RESP port: HTTP has a port of its own"),
    ("resp", HTTP_2, "this is divvy's RESP port: gRPC has a port of its own"),
    ("resp", TLS, "this port does not speak TLS"),
    ("http", PING, "-ERR this is divvy's HTTP port: RESP has a port of its own"),
    ("http", HIT, "ERR unknown \"this is divvy's HTTP port: the line protocol has a port of its own (--listen, 8321"),
    ("http", TLS, "this port does not speak TLS: use http:"),
    ("grpc", GET, "this is divvy's gRPC port: HTTP has a port of its own"),
    ("grpc", PING, "-ERR this is divvy's gRPC port"),
    ("grpc", HIT, "ERR unknown \"this is divvy's gRPC port"),
    ("grpc", TLS, "this port does not speak TLS"),
];

#[test]
fn client_on_the_wrong_port_learns_which_port_it_is() {
    let mut command = divvy();
    let log = Log::of(&mut command);
    let server = Server::start_as(&mut command, &[COMPAT_RULES, "--store", "memory"]);
    let texts = TABLE.iter().map(|(port, first, expected)| {
        let address = match *port {
            "line" => server.line,
            "resp" => server.resp,
            "http" => server.http,
            _ => server.grpc,
        };
        let mut stream = connect(address);
        stream.write_all(first).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        (format!("{} on the {port} port", first.escape_ascii()), *expected, answer)
    });
    check(texts.collect());
    log.await_line(&["a client speaks the protocol of another port", "front=\"resp\"", "peer=127.0.0.1:"]);
    log.await_line(&["TLS on a plaintext port", "front=\"grpc\"", "peer=127.0.0.1:"]);
}
