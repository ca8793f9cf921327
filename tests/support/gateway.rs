//! Applications behind gateways, and gateway processes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use super::redis::lasting_port;
use super::{Killed, PATIENCE, http};

/// Starts an application that answers every request with 200 and `app`. It ends with the test process.
pub fn application() -> SocketAddr {
    application_with("")
}

/// Starts an application as `application` does, with more headers, each ending in `\r\n`.
pub fn application_with(headers: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            // A gateway may connect without sending a request.
            thread::spawn(move || {
                let mut request = [0; 4096];
                let _ = stream.read(&mut request);
                let head = format!("HTTP/1.1 200 OK\r\n{headers}content-length: 3\r\nconnection: close\r\n\r\n");
                let _ = stream.write_all(&[head.as_bytes(), b"app"].concat());
            });
        }
    });
    address
}

/// Returns an address that no other server of a test gets before the gateway has it.
pub fn free_address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], lasting_port()))
}

/// Returns `config` with `changes`. Each must apply.
pub fn changed(mut config: String, changes: &[(&str, String)]) -> String {
    for (from, to) in changes {
        assert!(config.contains(from), "the example has {from}");
        config = config.replace(from, to);
    }
    config
}

/// A gateway's process, which listens on `address`.
pub struct Gateway {
    _child: Killed,
    address: SocketAddr,
    /// The address of Envoy's statistics.
    admin: Option<SocketAddr>,
    _directory: tempfile::TempDir,
}

impl Gateway {
    /// Waits until the gateway listens. `directory` lives as long as the process does.
    pub fn new(mut child: Child, address: SocketAddr, directory: tempfile::TempDir) -> Self {
        let patience = Instant::now() + PATIENCE;
        while TcpStream::connect(address).is_err() {
            assert!(child.try_wait().unwrap().is_none(), "the gateway ended at start");
            assert!(Instant::now() < patience, "the gateway does not listen");
            thread::sleep(Duration::from_millis(50));
        }
        Self { _child: Killed(child), address, admin: None, _directory: directory }
    }

    pub fn with_admin(mut self, admin: SocketAddr) -> Self {
        self.admin = Some(admin);
        self
    }

    /// Returns one of Envoy's counters or gauges.
    pub fn stat(&self, name: &str) -> u64 {
        let stats = http::get(self.admin.expect("an Envoy"), &format!("/stats?filter=^{name}$")).body;
        let value = stats.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{name}: {stats}"))
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Spends the `limit` of logins that the example has, and then tries every other spelling and every header that could
    /// describe another request.
    pub fn admit_no_login_beyond(&self, limit: usize) {
        for _ in 0..limit {
            assert_eq!(self.post("/login").status, 200);
        }
        let paths = "/login /login?next=/ //login ///login /%6cogin /log%69n /./login /x/../login /x/%2e%2e/login \
                     /%2e/login /login/ /login// /login/. /login?plan=pro&cost=0 /a//../../login";
        for path in paths.split_whitespace() {
            assert_ne!(self.post(path).status, 200, "{path}");
        }
        let headers = "X-Original-URI: /harmless|X-Original-URI:|X-Original-URL: http://app/harmless|\
                       X-Original-Method: GET|X-Original-Host: other|X-Forwarded-Uri: /harmless|\
                       X-Forwarded-Method: GET|X-Forwarded-Host: other|X-Forwarded-For: 6.6.6.6|X-Real-IP: 6.6.6.6|\
                       X-Request-Id: one|Forwarded: for=6.6.6.6;host=other|X-HTTP-Method-Override: GET|\
                       X-Envoy-Original-Path: /harmless|X-Rewrite-URL: /harmless";
        for header in headers.split('|') {
            assert_ne!(self.post_with(format!("\r\n{header}").as_bytes(), "/login").status, 200, "{header}");
        }
        assert_eq!(self.post("/elsewhere").status, 200);
    }

    pub fn get(&self, path: &str) -> http::Response {
        http::request(self.address, format!("GET {path} HTTP/1.1\r\nhost: app\r\nconnection: close\r\n\r\n"))
    }

    pub fn post(&self, path: &str) -> http::Response {
        self.post_with(b"", path)
    }

    /// Posts a request with false information about the client and the request, which must not evade its limits.
    pub fn post_lying(&self, path: &str) -> http::Response {
        self.post_with(b"\r\nx-forwarded-for: 6.6.6.6\r\nx-original-uri: /elsewhere\r\nx-original-method: GET", path)
    }

    pub fn post_as(&self, user: &str, path: &str) -> http::Response {
        self.post_with(format!("\r\nx-user: {user}").as_bytes(), path)
    }

    /// Posts a request with an `x-user` that is not UTF-8.
    pub fn post_garbled(&self, path: &str) -> http::Response {
        self.post_with(b"\r\nx-user: \xff", path)
    }

    fn post_with(&self, headers: &[u8], path: &str) -> http::Response {
        let head = format!("POST {path} HTTP/1.1\r\nhost: app\r\ncontent-length: 0\r\nconnection: close");
        http::request(self.address, [head.as_bytes(), headers, b"\r\n\r\n"].concat())
    }
}
