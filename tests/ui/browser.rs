//! A browser's side of the page: cookies, the token, and streams of events.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;

use crate::support::connect;
use crate::support::http::{self, Response};

/// A browser on this machine.
#[derive(Debug, Clone)]
pub struct Browser {
    address: SocketAddr,
    /// The cookie, as the server set it.
    pub cookie: Option<String>,
    pub token: Option<String>,
}

impl Browser {
    pub fn new(address: SocketAddr) -> Self {
        Self { address, cookie: None, token: None }
    }

    /// Sends a request with the cookie, and with these headers in place of the host's name and nothing else.
    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Response {
        http::request(self.address, self.encode(method, path, headers, body, "connection: close\r\n"))
    }

    fn encode(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str, more: &str) -> String {
        let mut head = format!("{method} {path} HTTP/1.1\r\ncontent-length: {}\r\n{more}", body.len());
        if !headers.iter().any(|(name, _)| *name == "host") {
            head.push_str(&format!("host: {}\r\n", self.address));
        }
        for (name, value) in headers.iter().filter(|(_, value)| !value.is_empty()) {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if let Some(cookie) = &self.cookie {
            head.push_str(&format!("cookie: {cookie}\r\n"));
        }
        head + "\r\n" + body
    }

    pub fn get(&self, path: &str) -> Response {
        self.send("GET", path, &[], "")
    }

    /// Sends a request of the API, with the token.
    pub fn api(&self, method: &str, path: &str, body: &str) -> Response {
        let token = self.token.as_deref().unwrap_or_default();
        self.send(method, path, &[("content-type", "application/json"), ("x-divvy-token", token)], body)
    }

    pub fn session(&self) -> Value {
        self.get("/ui/api/session").json()
    }

    /// Logs in, and keeps the cookie and the token.
    pub fn log_in(&mut self, name: &str, password: &str) -> Response {
        let body = serde_json::json!({"user": name, "password": password}).to_string();
        let response = self.send("POST", "/ui/api/login", &[("content-type", "application/json")], &body);
        if response.status == 200 {
            self.cookie = Some(set_cookie(&response));
            self.token = response.json()["token"].as_str().map(str::to_owned);
        }
        response
    }

    /// Opens a stream.
    pub fn feed(&self, query: &str) -> Events {
        let (status, events) = self.try_feed(query);
        assert_eq!(status, 200);
        events
    }

    pub fn try_feed(&self, query: &str) -> (u16, Events) {
        let mut stream = connect(self.address);
        stream.write_all(self.encode("GET", &format!("/ui/api/feed{query}"), &[], "", "").as_bytes()).unwrap();
        let mut reader = BufReader::new(stream);
        let mut head = String::new();
        while reader.read_line(&mut head).unwrap() > "\r\n".len() {}
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, Events { reader })
    }
}

/// Returns the name and the value of the cookie that a response sets.
pub fn set_cookie(response: &Response) -> String {
    response.header("set-cookie").unwrap().split(';').next().unwrap().to_owned()
}

/// The events of a stream.
#[derive(Debug)]
pub struct Events {
    reader: BufReader<TcpStream>,
}

impl Events {
    /// Returns the next event; `None` at the end of the stream.
    pub fn next(&mut self) -> Option<(String, Value)> {
        let mut name = String::new();
        loop {
            let mut line = String::new();
            // The last chunk is empty.
            if self.reader.read_line(&mut line).unwrap() == 0 || line == "0\r\n" {
                return None;
            }
            // Other lines are the lengths of chunks.
            if let Some(text) = line.strip_prefix("event: ") {
                name = text.trim_end().to_owned();
            } else if let Some(data) = line.strip_prefix("data: ") {
                return Some((name, serde_json::from_str(data).unwrap()));
            }
        }
    }

    /// Returns the data of the next event with this name.
    pub fn next_named(&mut self, name: &str) -> Value {
        loop {
            let (found, data) = self.next().unwrap_or_else(|| panic!("the stream ended before {name}"));
            if found == name {
                return data;
            }
        }
    }

    /// Returns the first event `rules` that satisfies the condition.
    pub fn rules_until(&mut self, is_right: impl Fn(&Value) -> bool) -> Value {
        loop {
            let rules = self.next_named("rules");
            if is_right(&rules) {
                return rules;
            }
        }
    }
}

/// Returns a member of each rule in an event.
pub fn of_each(event: &Value, member: &str) -> Vec<Value> {
    event["rules"].as_array().unwrap().iter().map(|rule| rule[member].clone()).collect()
}
