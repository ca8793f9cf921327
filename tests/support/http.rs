//! A client that implements just enough of HTTP/1.1.

use std::fmt::Display;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use super::{Server, connect};

/// A response.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    /// The status line and the headers.
    pub head: String,
    pub body: String,
}

impl Response {
    /// Returns the value of the header of this name, in any case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.head.lines().filter_map(|line| line.split_once(": "));
        headers.find(|(candidate, _)| candidate.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

pub fn get(address: SocketAddr, path: &str) -> Response {
    try_get(address, path).unwrap_or_else(|| panic!("no HTTP response to {path}"))
}

/// Sends a request as [`get`] does. Returns `None` if no response arrives.
pub fn try_get(address: SocketAddr, path: &str) -> Option<Response> {
    try_request(address, format!("GET {path} HTTP/1.1\r\nhost: divvy\r\nconnection: close\r\n\r\n"))
}

/// Sends a request that asks the server to close the connection. Reads to the end.
pub fn request(address: SocketAddr, request: impl AsRef<[u8]>) -> Response {
    try_request(address, request).expect("an HTTP response")
}

fn try_request(address: SocketAddr, request: impl AsRef<[u8]>) -> Option<Response> {
    let mut stream = connect(address);
    stream.write_all(request.as_ref()).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some(Response { status, head: head.to_owned(), body: body.to_owned() })
}

/// A persistent connection to a server that sends the length of its bodies.
pub struct HttpClient {
    stream: BufReader<TcpStream>,
}

impl HttpClient {
    pub fn connect(address: SocketAddr) -> Self {
        Self::over(connect(address))
    }

    pub fn over(stream: TcpStream) -> Self {
        Self { stream: BufReader::new(stream) }
    }

    pub fn get(&mut self, path: &str, headers: &[(&str, &str)]) -> Response {
        self.ask("GET", path, headers, "")
    }

    /// Posts JSON.
    pub fn post(&mut self, path: &str, json: impl Display) -> Response {
        self.send_json("POST", path, json)
    }

    /// Puts JSON.
    pub fn put(&mut self, path: &str, json: impl Display) -> Response {
        self.send_json("PUT", path, json)
    }

    fn send_json(&mut self, method: &str, path: &str, json: impl Display) -> Response {
        self.ask(method, path, &[("content-type", "application/json")], json)
    }

    /// Sends a request with these headers and this body. Returns the response.
    pub fn ask(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: impl Display) -> Response {
        self.send(&encode(method, path, headers, body.to_string().as_bytes()));
        self.read_response()
    }

    /// Sends a request as [`HttpClient::ask`] does; `None` if the server is gone.
    pub fn try_ask(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Display,
    ) -> Option<Response> {
        self.stream.get_mut().write_all(&encode(method, path, headers, body.to_string().as_bytes())).ok()?;
        self.try_read_response().ok()
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).unwrap();
    }

    pub fn read_response(&mut self) -> Response {
        self.try_read_response().unwrap()
    }

    fn try_read_response(&mut self) -> std::io::Result<Response> {
        let (status, head) = self.try_read_head()?;
        let mut response = Response { status, head, body: String::new() };
        let length = response.header("content-length").map_or(0, |length| length.parse().unwrap());
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        response.body = String::from_utf8(body).unwrap();
        Ok(response)
    }

    /// Waits for the server to close the connection. Returns false if it sends something instead.
    pub fn is_closed(&mut self) -> bool {
        match self.stream.read(&mut [0]) {
            Ok(count) => count == 0,
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        }
    }

    /// Returns the status and the whole head of the next response.
    fn try_read_head(&mut self) -> std::io::Result<(u16, String)> {
        let mut head = String::new();
        while self.stream.read_line(&mut head)? > "\r\n".len() {}
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.ok_or_else(|| std::io::Error::other(format!("no HTTP response: {head:?}")))?;
        Ok((status, head))
    }
}

/// Encodes a request.
pub fn encode(method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: divvy\r\ncontent-length: {}\r\n", body.len());
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    [head.as_bytes(), b"\r\n", body].concat()
}

/// Returns the entries of a listing from all its pages, which have them in the member `name`. `target` has a parameter.
pub fn all_pages(server: &Server, target: &str, name: &str) -> Vec<serde_json::Value> {
    let (mut entries, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = get(server.http, &format!("{target}{cursor}"));
        assert_eq!(page.status, 200, "{}", page.body);
        let mut page = page.json();
        entries.append(page[name].as_array_mut().unwrap());
        let Some(next) = page["next"].as_str() else { return entries };
        cursor = format!("&cursor={}", next.bytes().map(|byte| format!("%{byte:02x}")).collect::<String>());
    }
}

/// Starts a server of these rules in memory. Returns it with a client of its HTTP front.
pub fn served(rules: &str, flags: &[&str]) -> (Server, HttpClient) {
    let server = Server::serving(rules, flags);
    let client = server.http();
    (server, client)
}
