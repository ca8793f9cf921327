//! The real Caddy with forward_auth in front of a small application: config/examples/caddy, with different ports.

use std::net::SocketAddr;
use std::path::Path;

use crate::clients::tool;
use crate::support::gateway::changed;
use crate::support::{Gateway, Server, application, free_address};

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/config/examples/caddy");

fn caddy(application: SocketAddr, divvy: SocketAddr) -> Gateway {
    let address = free_address();
    let ports = [
        ("http://:10080", format!("http://:{}", address.port())),
        ("127.0.0.1:8080", application.to_string()),
        ("127.0.0.1:8322", divvy.to_string()),
    ];
    let config = std::fs::read_to_string(Path::new(EXAMPLE).join("Caddyfile")).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("Caddyfile");
    std::fs::write(&path, changed(config, &ports)).unwrap();
    let mut command = tool("caddy");
    command.args(["run", "--adapter", "caddyfile", "--config"]).arg(path);
    for variable in ["HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"] {
        command.env(variable, directory.path());
    }
    let child = command.spawn().unwrap();
    Gateway::new(child, address, directory)
}

#[test]
fn login_has_one_limit_however_it_is_spelled() {
    let flags = ["--store", "memory", "--check-from", "forwarded", "--check-final-slash", "drop"];
    let server = Server::start(&[&[&*format!("{EXAMPLE}/rules.ini")], &flags[..]].concat());
    let gateway = caddy(application(), server.http);
    gateway.admit_no_login_beyond(3);
    let denied = gateway.post("/login");
    assert_eq!(denied.status, 429, "{}", denied.head);
    assert!(denied.header("ratelimit").unwrap().starts_with("\"login\";r=0;t="), "{}", denied.head);
    assert!((1..=60).contains(&denied.header("retry-after").unwrap().parse().unwrap()));
}
