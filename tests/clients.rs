//! The clients that people use, driving a real server. `make test` installs them; without it these tests say so.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{COMPAT_RULES, Server};

/// Where the clients in Node are.
pub const NODE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/node");

/// Where the clients in Python are.
pub const PYTHON: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/python");

/// Runs a client to its good end; what it printed.
pub fn run(mut command: Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}; run `make test-setup` first"));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?} failed:\n{out}{err}");
    out.into_owned()
}

/// The path, which `make test-setup` makes.
pub fn installed(path: PathBuf) -> PathBuf {
    assert!(path.exists(), "{} is missing; run `make test-setup` first", path.display());
    path
}

fn node(client: &str) {
    drive_by_node(client, &Server::in_memory(COMPAT_RULES), None);
}

/// Drives the server, which serves the usual rules, with one of the Node clients.
pub fn drive_by_node(client: &str, server: &Server, password: Option<&str>) {
    installed(Path::new(NODE).join("node_modules"));
    let mut command = Command::new("node");
    command.arg(Path::new(NODE).join("drive.js")).arg(client);
    command.arg(server.line.port().to_string()).arg(server.resp.port().to_string()).args(password);
    run(command);
}

#[test]
fn the_original_divvy_client() {
    node("divvy-client");
}

#[test]
fn ioredis() {
    node("ioredis");
}

#[test]
fn node_redis() {
    node("node-redis");
}

#[test]
fn redis_py() {
    drive_by_redis_py(&Server::in_memory(COMPAT_RULES), None);
}

pub fn drive_by_redis_py(server: &Server, password: Option<&str>) {
    let mut command = Command::new(installed(Path::new(PYTHON).join(".venv/bin/python")));
    command.arg(Path::new(PYTHON).join("drive.py")).arg(server.resp.port().to_string()).args(password);
    run(command);
}

#[test]
fn redis_cli() {
    let server = Server::in_memory(COMPAT_RULES);
    let port = server.resp.port().to_string();
    let cli = |options: &[&str], words: &str| {
        let mut command = Command::new("redis-cli");
        command.args(["-p", &port]).args(options).args(words.split(' '));
        run(command)
    };
    assert_eq!(cli(&[], "DIVVY.HIT method=GET path=/status"), "1\n999\n60\n");
    assert_eq!(cli(&["-3"], "DIVVY.HIT method=GET path=/status"), "1\n998\n60\n");
    assert_eq!(cli(&[], "DIVVY.RESET method=GET path=/status"), "1\n");
    assert_eq!(cli(&[], "PING"), "PONG\n");
    assert!(cli(&[], "INFO server").contains("divvy_version:"));
    let mut transaction = Command::new("sh");
    let script = "printf 'MULTI\\nDIVVY.HIT method=GET path=/status\\nPING\\nEXEC\\n' | redis-cli -p \"$0\"";
    transaction.args(["-c", script, &port]);
    assert_eq!(run(transaction), "OK\nQUEUED\nQUEUED\n1\n999\n60\nPONG\n");
    assert!(cli(&["--json"], "COMMAND DOCS divvy.hit").contains("summary"));
}

#[test]
fn redis_benchmark() {
    let server = Server::in_memory(COMPAT_RULES);
    let mut command = Command::new("redis-benchmark");
    command.args(["-p", &server.resp.port().to_string(), "-n", "2000", "-P", "16", "-q"]);
    command.args(["DIVVY.HIT", "method=GET", "path=/pantry/cookies/x", "ip=__rand_int__"]);
    let report = run(command);
    assert!(report.contains("requests per second"), "{report}");
}
