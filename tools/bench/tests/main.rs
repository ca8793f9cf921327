//! divvy-bench against a `divvy serve`, which is expected next to it: plain `cargo test` and `cargo build` make both.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::string_slice,
    clippy::unwrap_used,
    reason = "a test may panic"
)]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../config/example.ini");
const OPERATIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operations.md");
/// A hit that the rules of [`EXAMPLE`] allow.
const HIT: &str = "DIVVY.HIT method=GET path=/status";

/// A server with the rules of [`EXAMPLE`] in memory. It is killed when this is dropped.
struct Server {
    child: Child,
    line: String,
    resp: String,
    http: String,
    grpc: String,
}

impl Server {
    fn start(flags: &[&str]) -> Self {
        let divvy = Path::new(env!("CARGO_BIN_EXE_divvy-bench")).with_file_name("divvy");
        assert!(divvy.exists(), "{} does not exist: build it with `cargo build`", divvy.display());
        let mut command = program(divvy.to_str().unwrap());
        command.args([
            "serve",
            EXAMPLE,
            "--store",
            "memory",
            "--http-listen",
            "127.0.0.1:0",
            "--grpc-listen",
            "127.0.0.1:0",
        ]);
        command.args(["--listen", "127.0.0.1:0", "--resp-listen", "127.0.0.1:0"]).args(flags).env("RUST_LOG", "warn");
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut address = |front: &str| {
            let announced = lines.find_map(|line| Some(line.unwrap().strip_prefix(front)?.to_owned()));
            announced.unwrap_or_else(|| panic!("divvy serve ended at start"))
        };
        let (line, resp) = (address("line protocol on "), address("RESP on "));
        let (http, grpc) = (address("HTTP on "), address("gRPC on "));
        address("rules:");
        Self { child, line, resp, http, grpc }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a command that variables in the environment of the tests do not affect.
fn program(path: &str) -> Command {
    let mut command = Command::new(path);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("DIVVY_")) {
        command.env_remove(name);
    }
    command
}

fn divvy_bench(args: &[&str]) -> Command {
    let mut command = program(env!("CARGO_BIN_EXE_divvy-bench"));
    command.args(args);
    command
}

/// Runs a command. Returns its exit code, standard output and standard error.
fn run(command: &mut Command) -> (i32, String, String) {
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn password_logs_in_over_both_protocols() {
    let server = Server::start(&["--requirepass", "correct horse=="]);
    for (protocol, address) in [("line", &server.line), ("resp", &server.resp)] {
        let load = |password: &str| {
            let args = ["--protocol", protocol, "--addr", address, "--requests", "100", "--connections", "2", "--json"];
            run(divvy_bench(&args).env("DIVVY_PASSWORD", password))
        };
        let (code, report, error) = load("correct horse==");
        assert_eq!(code, 0, "{report}{error}");
        let (code, _, error) = load("wrong");
        assert!(code == 1 && error.contains("refused the password"), "{error}");
        let (code, _, error) = load("correct\nhorse");
        assert!(code == 1 && error.contains("line break") && !error.contains("horse"), "{error}");
    }
}

#[test]
fn user_logs_in_over_resp_only() {
    let directory = tempfile::tempdir().unwrap();
    let users = directory.path().join("users.acl");
    // The SHA-256 of the password.
    const HASH: &str = "c0741d74e1d41a97476cbf1e058018439fd032d4b3d83e281b705b5547a07077";
    std::fs::write(&users, format!("user app on #{HASH} +@hit ~*\n")).unwrap();
    let server = Server::start(&["--access-file", users.to_str().unwrap()]);
    let load = |protocol: &str, user: &str| {
        let args = ["--addr", &server.resp, "--protocol", protocol, "--user", user, "--requests", "20"];
        run(divvy_bench(&args).args(["--connections", "2", "--command", HIT]).env("DIVVY_PASSWORD", "app-password"))
    };
    let (code, report, error) = load("resp", "app");
    assert_eq!(code, 0, "{report}{error}");
    assert_eq!(load("resp", "nobody").0, 1);
    let (code, _, error) = load("line", "app");
    assert!(code == 1 && error.contains("logs in as the user default only"), "{error}");
}

/// Returns the options of each `divvy-bench` in docs/operations.md, which are for the shipped rules.
fn documented_loads() -> Vec<Vec<String>> {
    let page = std::fs::read_to_string(OPERATIONS).unwrap();
    let commands = page.lines().filter_map(|line| line.strip_prefix("$ divvy-bench "));
    commands.map(|options| shlex::split(options).unwrap()).collect()
}

#[test]
fn documented_loads_hit_a_rule_that_allows_and_denies() {
    let loads = documented_loads();
    assert!(!loads.is_empty());
    for options in loads {
        let server = Server::start(&[]);
        let load = options.iter().take_while(|option| !["--rate", "--pid"].contains(&option.as_str()));
        let mut command = divvy_bench(&["--addr", &server.line, "--requests", "20000", "--json"]);
        let (code, report, error) = run(command.args(load));
        assert_eq!(code, 0, "{report}{error}");
        let report: serde_json::Value = serde_json::from_str(&report).unwrap();
        let denied = report["denied"].as_u64().unwrap();
        assert!((1..10_000).contains(&denied) && report["warning"].is_null(), "{report}");
    }
}

#[test]
fn hits_over_http_and_grpc_are_counted_and_denied() {
    let server = Server::start(&[]);
    let pairs = "method=GET path=/pantry/jam ip={}";
    for (protocol, address, command) in
        [("http", &server.http, pairs), ("grpc", &server.grpc, &format!("divvy {pairs}/1 / {pairs}/2"))]
    {
        let load = ["--protocol", protocol, "--addr", address, "--command", command, "--json"];
        let load =
            [&load[..], &["--requests", "2000", "--connections", "3", "--pipeline", "4", "--keys", "10"]].concat();
        let (code, report, error) = run(&mut divvy_bench(&load));
        assert_eq!(code, 0, "{report}{error}");
        let report: serde_json::Value = serde_json::from_str(&report).unwrap();
        let denied = report["denied"].as_u64().unwrap();
        assert!(report["requests"] == 2_000 && (1..2_000).contains(&denied), "{report}");
    }
}

#[test]
fn fully_denied_load_causes_a_warning() {
    let server = Server::start(&[]);
    let (code, report, _) = run(&mut divvy_bench(&["--addr", &server.line, "--requests", "1000"]));
    assert_eq!(code, 0);
    assert!(report.contains("1000 denied") && report.contains("warning    every hit was denied"), "{report}");
}

#[test]
fn closed_output_is_an_error_without_a_panic() {
    let server = Server::start(&[]);
    for format in [&[][..], &["--json"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = divvy_bench(&["--addr", &server.line, "--duration", "0.1"]);
        let child = command.args(format).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        // The end of the pipe in the command keeps it open.
        drop(command);
        let output = child.wait_with_output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{format:?}: {error}");
        assert!(error.contains("Broken pipe") && !error.contains("panicked"), "{format:?}: {error}");
    }
}

#[cfg(feature = "packaging")]
#[test]
fn manual_page_and_completions_have_the_flags() {
    let (code, page, _) = run(&mut divvy_bench(&["--man"]));
    // In roff, a literal hyphen is escaped.
    assert!(code == 0 && page.contains(".TH divvy-bench 1") && page.contains("\\-\\-pipeline"), "{page}");
    for shell in ["bash", "fish", "zsh"] {
        let (code, script, _) = run(&mut divvy_bench(&["--completions", shell]));
        assert!(code == 0 && script.contains("divvy-bench") && script.contains("pipeline"), "{shell}: {script}");
    }
}
