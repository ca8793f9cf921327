//! A client that speaks just enough HTTP/1.1.

use std::io::{Read, Write};
use std::net::SocketAddr;

use super::connect;

/// What came back.
pub struct Response {
    pub status: u16,
    pub body: String,
}

pub fn get(address: SocketAddr, path: &str) -> Response {
    request(address, &format!("GET {path} HTTP/1.1\r\nhost: divvy\r\nconnection: close\r\n\r\n"))
}

/// Sends the request, which asks for the connection to be closed, and reads to its end.
pub fn request(address: SocketAddr, request: &str) -> Response {
    let mut stream = connect(address);
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no HTTP response: {text:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Response { status, body: body.to_owned() }
}
