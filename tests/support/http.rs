//! A client that speaks just enough HTTP/1.1.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use super::connect;

/// What came back.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Response {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(candidate, _)| candidate == name).map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

pub fn get(address: SocketAddr, path: &str) -> Response {
    HttpClient::connect(address).get(path, &[])
}

/// A connection that is kept alive.
pub struct HttpClient {
    stream: BufReader<TcpStream>,
}

impl HttpClient {
    pub fn connect(address: SocketAddr) -> Self {
        Self { stream: BufReader::new(connect(address)) }
    }

    pub fn get(&mut self, path: &str, headers: &[(&str, &str)]) -> Response {
        self.send(&encode("GET", path, headers, b""));
        self.read_response()
    }

    /// Posts JSON.
    pub fn post(&mut self, path: &str, json: &str) -> Response {
        self.send(&encode("POST", path, &[("content-type", "application/json")], json.as_bytes()));
        self.read_response()
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).unwrap();
    }

    /// The next response, which says how long its body is.
    pub fn read_response(&mut self) -> Response {
        let status = self.read_status();
        let mut headers = Vec::new();
        loop {
            let line = self.read_line();
            let Some((name, value)) = line.split_once(':') else { break };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let mut response = Response { status, headers, body: String::new() };
        let length = response.header("content-length").map_or(0, |length| length.parse().unwrap());
        self.stream.by_ref().take(length).read_to_string(&mut response.body).unwrap();
        response
    }

    /// The status of the next response, of which no more is read.
    pub fn read_status(&mut self) -> u16 {
        let line = self.read_line();
        let status = line.split(' ').nth(1).and_then(|code| code.parse().ok());
        status.unwrap_or_else(|| panic!("no HTTP response: {line:?}"))
    }

    fn read_line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

/// A request.
pub fn encode(method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut bytes = format!("{method} {path} HTTP/1.1\r\nhost: divvy\r\n").into_bytes();
    for (name, value) in headers {
        bytes.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
    }
    bytes.extend_from_slice(format!("content-length: {}\r\n\r\n", body.len()).as_bytes());
    bytes.extend_from_slice(body);
    bytes
}
