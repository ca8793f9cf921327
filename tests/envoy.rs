//! The real Envoy with its rate limit filter in front of a small application: config/examples/envoy, as it is but for
//! the ports.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Instant;

use crate::support::{PATIENCE, Server, http};

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/config/examples/envoy");

/// An application that answers every request with 200. Ends with the test process.
pub fn application() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut request = [0; 4096];
            let _ = stream.read(&mut request);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\nconnection: close\r\n\r\napp");
        }
    });
    address
}

/// An Envoy process; killed when dropped.
pub struct Envoy {
    child: Child,
    pub address: SocketAddr,
    _directory: tempfile::TempDir,
}

impl Envoy {
    /// As envoy.yaml has it.
    fn limiting(application: SocketAddr, divvy: SocketAddr, failure_mode_deny: bool) -> Self {
        let deny = ("failure_mode_deny: false", format!("failure_mode_deny: {failure_mode_deny}"));
        Self::start("envoy.yaml", &[deny], ("8323", divvy), application)
    }

    /// As one of the examples has it, which asks divvy on that port, but for some changes.
    pub fn start(
        example: &str,
        changes: &[(&str, String)],
        (port, divvy): (&str, SocketAddr),
        application: SocketAddr,
    ) -> Self {
        let address = free_address();
        let mut config = std::fs::read_to_string(Path::new(EXAMPLE).join(example)).unwrap();
        let ports = [
            ("port_value: 9901", format!("port_value: {}", free_address().port())),
            ("port_value: 10000", format!("port_value: {}", address.port())),
            ("port_value: 8080", format!("port_value: {}", application.port())),
            (&*format!("port_value: {port}"), format!("port_value: {}", divvy.port())),
            // A busy machine may take longer than a gateway should wait.
            ("timeout: 0.25s", format!("timeout: {}s", PATIENCE.as_secs())),
        ];
        for (from, to) in ports.iter().chain(changes) {
            assert!(config.contains(from), "the example has {from}");
            config = config.replace(from, to);
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("envoy.yaml");
        std::fs::write(&path, config).unwrap();
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/python/.venv/bin/envoy");
        assert!(program.exists(), "{} is missing; run `make test-setup` first", program.display());
        let child = Command::new(program)
            .args(["--disable-hot-restart", "--concurrency", "1", "--log-level", "error", "--config-path"])
            .arg(&path)
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let mut envoy = Self { child, address, _directory: directory };
        envoy.wait();
        envoy
    }

    fn wait(&mut self) {
        let patience = Instant::now() + PATIENCE;
        while TcpStream::connect(self.address).is_err() {
            assert!(self.child.try_wait().unwrap().is_none(), "Envoy ended at start");
            assert!(Instant::now() < patience, "Envoy does not listen");
            thread::sleep(std::time::Duration::from_millis(50));
        }
    }

    fn post(&self, path: &str) -> http::Response {
        let head = "HTTP/1.1\r\nhost: app\r\ncontent-length: 0\r\nconnection: close";
        http::request(self.address, &format!("POST {path} {head}\r\n\r\n"))
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn divvy() -> Server {
    Server::in_memory(Path::new(EXAMPLE).join("rules.ini").to_str().unwrap())
}

#[test]
fn traffic_over_the_limit_gets_429_with_headers_and_other_paths_go_on() {
    let server = divvy();
    let envoy = Envoy::limiting(application(), server.grpc, false);
    for left in (0..3).rev() {
        let response = envoy.post("/login?next=/");
        assert_eq!((response.status, response.body.as_str()), (200, "app"));
        assert_eq!(response.header("x-ratelimit-remaining"), Some(left.to_string().as_str()), "{}", response.head);
    }
    let denied = envoy.post("/login?next=/");
    assert_eq!((denied.status, denied.body.as_str()), (429, ""));
    assert!(denied.header("x-ratelimit-limit").unwrap().starts_with("3, 3;w=60"), "{}", denied.head);
    assert_eq!(denied.header("x-ratelimit-remaining"), Some("0"));
    let reset: u64 = denied.header("x-ratelimit-reset").unwrap().parse().unwrap();
    assert!((1..=60).contains(&reset));
    assert!(denied.header("x-envoy-ratelimited").is_some());
    assert_eq!(envoy.post("/elsewhere").status, 200);
}

#[test]
fn while_divvy_is_down_failure_mode_deny_decides() {
    let server = divvy();
    let application = application();
    let (lenient, strict) =
        (Envoy::limiting(application, server.grpc, false), Envoy::limiting(application, server.grpc, true));
    for envoy in [&lenient, &strict] {
        assert_eq!(envoy.post("/").status, 200);
    }
    server.kill();
    assert_eq!(lenient.post("/").status, 200);
    assert_eq!(strict.post("/").status, 500);
}

#[test]
fn while_divvy_s_store_fails_failure_mode_deny_decides_too() {
    let rules = Path::new(EXAMPLE).join("rules.ini");
    let server = Server::start(&[rules.to_str().unwrap(), "--redis-url", &format!("redis://{}", free_address())]);
    let application = application();
    assert_eq!(Envoy::limiting(application, server.grpc, false).post("/").status, 200);
    assert_eq!(Envoy::limiting(application, server.grpc, true).post("/").status, 500);
}
