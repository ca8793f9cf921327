//! Gateways that ask /v1/check before they forward: the real nginx by auth_request and the real Envoy by ext_authz,
//! configured as in config/examples but for the ports.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use crate::envoy::{Envoy, application, free_address};
use crate::support::{PATIENCE, Server, http};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/config/examples");

struct Nginx {
    child: Child,
    address: SocketAddr,
    _directory: tempfile::TempDir,
}

impl Nginx {
    fn start(application: SocketAddr, divvy: SocketAddr) -> Self {
        let address = free_address();
        let mut config = std::fs::read_to_string(Path::new(EXAMPLES).join("nginx/nginx.conf")).unwrap();
        let changes = [
            ("127.0.0.1:10080", address.to_string()),
            ("127.0.0.1:8322", divvy.to_string()),
            ("127.0.0.1:8080", application.to_string()),
            // A busy machine may take longer than a gateway should wait.
            ("timeout 250ms", format!("timeout {}s", PATIENCE.as_secs())),
        ];
        for (from, to) in changes {
            assert!(config.contains(from), "the example has {from}");
            config = config.replace(from, &to);
        }
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("nginx.conf"), config).unwrap();
        let mut command = Command::new("nginx");
        command.arg("-p").arg(directory.path()).args(["-c", "nginx.conf", "-e", "stderr", "-g"]);
        // One process, so that ending it ends all of it.
        command.arg("daemon off; master_process off; pid nginx.pid; error_log stderr;");
        let child = command.spawn().unwrap_or_else(|error| panic!("nginx: {error}; run `make test-setup` first"));
        let mut nginx = Self { child, address, _directory: directory };
        let patience = Instant::now() + PATIENCE;
        while TcpStream::connect(address).is_err() {
            assert!(nginx.child.try_wait().unwrap().is_none(), "nginx ended at start");
            assert!(Instant::now() < patience, "nginx does not listen");
            thread::sleep(Duration::from_millis(20));
        }
        nginx
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn divvy(example: &str, args: &[&str]) -> Server {
    let rules = Path::new(EXAMPLES).join(example);
    Server::start(&[&[rules.to_str().unwrap(), "--store", "memory"], args].concat())
}

fn post(gateway: SocketAddr, path: &str, headers: &str) -> http::Response {
    let head = "HTTP/1.1\r\nhost: app\r\ncontent-length: 0\r\nconnection: close";
    http::request(gateway, &format!("POST {path} {head}{headers}\r\n\r\n"))
}

#[test]
fn nginx_by_auth_request() {
    let server = divvy("nginx/rules.ini", &["--deny-status", "403"]);
    let nginx = Nginx::start(application(), server.http);
    for left in (0..3).rev() {
        let response = post(nginx.address, "/login?next=/", "");
        assert_eq!((response.status, response.body.as_str()), (200, "app"), "{}", response.head);
        assert!(response.header("ratelimit").unwrap().starts_with(&format!("\"login\";r={left};t=")));
    }
    let lies = "\r\nx-forwarded-for: 6.6.6.6\r\nx-original-uri: /elsewhere\r\nx-original-method: GET";
    let denied = post(nginx.address, "/login", lies);
    assert_eq!(denied.status, 429, "{}", denied.head);
    assert!(denied.header("ratelimit").unwrap().starts_with("\"login\";r=0;t="));
    assert_eq!(denied.header("ratelimit-policy"), Some("\"login\";q=3;w=60"));
    assert!((1..=60).contains(&denied.header("retry-after").unwrap().parse().unwrap()));
    assert_eq!(post(nginx.address, "/elsewhere", "").status, 200);
    server.kill();
    assert_eq!(post(nginx.address, "/elsewhere", "").status, 500);
}

#[test]
fn envoy_by_ext_authz() {
    let server = divvy("envoy/ext-authz.ini", &[]);
    let envoy = Envoy::start("ext-authz.yaml", &[], ("8322", server.http), application());
    let lies = "\r\nx-forwarded-for: 6.6.6.6\r\nx-original-uri: /elsewhere\r\nx-original-method: GET";
    for left in (0..3).rev() {
        let response = post(envoy.address, "/login?service=none", lies);
        assert_eq!((response.status, response.body.as_str()), (200, "app"), "{}", response.head);
        assert!(response.header("ratelimit").unwrap().starts_with(&format!("\"login\";r={left};t=")));
    }
    let denied = post(envoy.address, "/login", "");
    assert_eq!((denied.status, denied.body.as_str()), (429, ""), "{}", denied.head);
    assert!(denied.header("ratelimit").unwrap().starts_with("\"login\";r=0;t="));
    assert!((1..=60).contains(&denied.header("retry-after").unwrap().parse().unwrap()));
    assert_eq!(post(envoy.address, "/elsewhere", "").status, 200);
}
