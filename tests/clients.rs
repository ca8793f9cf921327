//! Popular clients, driving a real server. `make test` installs them. Without them these tests fail with a message.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::redis::cli;
use crate::support::{COMPAT_RULES, RedisServer, Server, metrics};

/// Directory of the Node clients.
pub const NODE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/node");

/// Directory of the Python clients.
pub const PYTHON: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/python");

/// Runs a client, which must succeed. Returns its output.
pub fn run(mut command: Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}; run `make test-setup` first"));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?} failed:\n{out}{err}");
    out.into_owned()
}

/// Returns a path that `make test-setup` creates.
pub fn installed(path: PathBuf) -> PathBuf {
    assert!(path.exists(), "{} is missing; run `make test-setup` first", path.display());
    path
}

/// Returns a program from a package: the system's, or the one that `make test-setup` unpacked.
pub fn tool(name: &str) -> Command {
    let unpacked = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/tools")).join(name);
    let on_path = || {
        std::env::split_paths(&std::env::var_os("PATH").unwrap()).map(|dir| dir.join(name)).find(|path| path.exists())
    };
    Command::new(if unpacked.exists() { unpacked } else { on_path().unwrap_or_else(|| installed(unpacked)) })
}

/// Runs a Node client against a new server. The client sends `unknown` unknown commands.
fn node(client: &str, unknown: f64) {
    let server = Server::in_memory(COMPAT_RULES);
    drive_by_node(client, &server, &[]);
    assert_eq!(unknown_commands(&server), unknown);
}

/// Returns the number of commands counted as unknown.
fn unknown_commands(server: &Server) -> f64 {
    metrics::scrape(server.http).value("divvy_errors_total", &[("code", "unknown-command")])
}

/// Runs a Node client against a server with the usual rules, perhaps with a password and a user.
pub fn drive_by_node(client: &str, server: &Server, login: &[&str]) {
    installed(Path::new(NODE).join("node_modules"));
    let mut command = Command::new("node");
    command.arg(Path::new(NODE).join("drive.js")).arg(client);
    command.arg(server.line.port().to_string()).arg(server.resp.port().to_string()).args(login);
    run(command);
}

#[test]
fn client_of_buttons_divvy_works() {
    node("divvy-client", 1.0);
}

#[test]
fn ioredis_works() {
    node("ioredis", 1.0);
}

#[test]
fn node_redis_works() {
    node("node-redis", 0.0);
}

#[test]
fn redis_py_works() {
    drives_by_python("redis");
}

#[test]
fn valkey_py_works() {
    drives_by_python("valkey");
}

fn drives_by_python(package: &str) {
    let server = Server::in_memory(COMPAT_RULES);
    drive_by_python(package, &server, &[]);
    assert_eq!(unknown_commands(&server), 2.0);
}

/// Runs redis-py or valkey-py, perhaps with a password and a user.
pub fn drive_by_python(package: &str, server: &Server, login: &[&str]) {
    let mut command = python("drive.py");
    command.arg(package).arg(server.resp.port().to_string()).args(login);
    run(command);
}

#[test]
fn valkey_glide_works() {
    let server = Server::in_memory(COMPAT_RULES);
    let mut command = python("drive_glide.py");
    command.arg(server.resp.port().to_string());
    run(command);
    let errors = metrics::scrape(server.http).sum("divvy_errors_total");
    assert_eq!(errors, 0.0);
}

/// Returns one of the Python clients.
pub fn python(script: &str) -> Command {
    let mut command = Command::new(installed(Path::new(PYTHON).join(".venv/bin/python")));
    command.arg(Path::new(PYTHON).join(script));
    command
}

#[test]
fn redis_cli_works() {
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

/// Checks the columns `keys mem clients blocked requests connections`, one line per second.
#[test]
fn redis_cli_stat_shows_all_columns() {
    let server = Server::in_memory(COMPAT_RULES);
    // redis-cli writes to a pipe in blocks of 4 KiB. stdbuf prevents that.
    let mut command = Command::new("stdbuf");
    command.args(["--output=L", "redis-cli", "-p", &server.resp.port().to_string(), "--stat", "-i", "0.1"]);
    command.stdout(Stdio::piped());
    let mut cli = command.spawn().unwrap();
    let lines = BufReader::new(cli.stdout.take().unwrap()).lines();
    let line = lines.map(Result::unwrap).nth(2).unwrap();
    cli.kill().unwrap();
    cli.wait().unwrap();
    let words: Vec<_> = line.split_whitespace().collect();
    let [keys, memory, clients, blocked, requests, _, connections] = words[..] else { panic!("{line}") };
    assert_eq!([keys, clients, blocked, connections], ["0", "1", "0", "1"], "{line}");
    assert!(memory.ends_with('M') && memory != "0M" && requests == "1", "{line}");
}

/// Clients look up fields by name, and some require all of them.
#[test]
fn info_role_and_client_info_have_redis_format() {
    let (server, redis) = (Server::in_memory(COMPAT_RULES), RedisServer::start());
    let ask = |words: &[&str]| [server.resp.port(), redis.port].map(|port| cli(port, words));
    let fields = |text: &str| text.lines().filter_map(|line| Some(line.split_once(':')?.0.to_owned())).collect();
    let [ours, theirs]: [Vec<String>; 2] = ask(&["INFO", "Replication"]).map(|text| fields(&text));
    assert_eq!(ours, theirs);
    for words in [&["ROLE"][..], &["INFO", "nonsense"], &["INFO", "cluster"], &["ROLE", "x"], &["INFO", "modules"]] {
        let [ours, theirs] = ask(words);
        assert_eq!(ours, theirs, "{words:?}");
    }
    let sections = |text: String| text.lines().filter(|line| line.starts_with("# ")).map(str::to_owned).collect();
    for words in [&["INFO", "KEYSPACE", "nonsense", "server", "server"][..], &["INFO", "clients", "memory"]] {
        let [ours, theirs]: [Vec<String>; 2] = ask(words).map(sections);
        assert_eq!(ours, theirs, "{words:?}");
    }
    let [everything, all, default, none] =
        [&["INFO", "Everything"][..], &["INFO", "ALL"], &["INFO", "default"], &["INFO"]]
            .map(|words| sections(cli(server.resp.port(), words)));
    let everything: Vec<String> = everything;
    assert!(everything.len() > 8 && [all, default, none].iter().all(|some: &Vec<String>| *some == everything));
    let names = |line: String| line.split(' ').map(|field| field.split('=').next().unwrap().to_owned()).collect();
    for words in [["CLIENT", "INFO"], ["CLIENT", "LIST"]] {
        let [mut ours, theirs]: [Vec<String>; 2] = ask(&words).map(names);
        // These fields are newer than the Redis in the tests.
        ours.retain(|name| !name.starts_with("lib-"));
        assert_eq!(ours, theirs, "{words:?}");
    }
}

#[test]
fn redis_benchmark_works() {
    let server = Server::in_memory(COMPAT_RULES);
    let mut command = Command::new("redis-benchmark");
    command.args(["-p", &server.resp.port().to_string(), "-n", "2000", "-P", "16", "-q"]);
    command.args(["DIVVY.HIT", "method=GET", "path=/pantry/cookies/x", "ip=__rand_int__"]);
    let report = run(command);
    assert!(report.contains("requests per second"), "{report}");
}
