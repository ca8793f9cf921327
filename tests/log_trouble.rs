//! A log that cannot be written, and output that is not read: the server continues to work.

use std::fs::{self, File, OpenOptions};
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::pipe::fcntl_setpipe_size;

use crate::support::metrics::number_in;
use crate::support::{COMPAT_RULES, LineClient, Log, PATIENCE, RulesFile, Server, divvy, http, number, until};

/// Minimum size of a pipe, in bytes.
const SMALL_PIPE: usize = 4096;
const DROPPED: &str = "divvy_log_lines_dropped_total";

fn dropped_lines(server: &Server) -> u64 {
    number(server, DROPPED)
}

/// Makes a server that allows one connection refuse another.
fn be_refused(server: &Server) {
    let mut text = String::new();
    crate::support::connect(server.resp).read_to_string(&mut text).unwrap();
    assert!(text.contains("max number of clients"), "{text}");
}

fn rules(credits: u64) -> String {
    format!("[a=1]\ncreditLimit = {credits}\nresetSeconds = 60\n[default]\ncreditLimit = 0\nresetSeconds = 0\n")
}

#[test]
fn log_on_a_full_disk_stops_neither_connections_nor_reloads_nor_shutdown() {
    let file = RulesFile::ini(&rules(1));
    let mut command = divvy();
    command.env_remove("RUST_LOG").stderr(OpenOptions::new().write(true).open("/dev/full").unwrap());
    let server = Server::start_as(&mut command, &[file.path(), "--store", "memory", "--max-connections", "1"]);
    let mut client = server.line();
    assert_eq!(client.hit("a=1"), (true, 0, 60));
    (0..10).for_each(|_| be_refused(&server));
    for credits in [10, 100, 1000] {
        fs::write(file.path(), rules(credits)).unwrap();
        server.signal("-HUP");
        // The limit changed, so there is a new counter.
        until(|| client.hit("a=1").1 == credits - 1);
    }
    drop(client);
    until(|| dropped_lines_if_admitted(&server).is_some_and(|dropped| dropped > 0));
    assert_eq!(server.terminate().code(), Some(0));
}

/// Returns `None` while the server still counts the previous connection.
fn dropped_lines_if_admitted(server: &Server) -> Option<u64> {
    let response = http::get(server.http, "/metrics");
    number_in(&response.body, DROPPED)
}

/// Both ends of a small pipe for a server's standard error. Calling `fill` fills it except for `room` bytes.
struct Pipe {
    reader: PipeReader,
    writer: PipeWriter,
}

impl Pipe {
    fn new() -> Self {
        let (reader, writer) = pipe().unwrap();
        fcntl_setpipe_size(&writer, SMALL_PIPE).unwrap();
        Self { reader, writer }
    }

    fn for_child(&self) -> Stdio {
        self.writer.try_clone().unwrap().into()
    }

    /// Fills the pipe. A process that writes to it then blocks.
    fn fill(&mut self) {
        let flags = fcntl_getfl(&self.writer).unwrap();
        fcntl_setfl(&self.writer, flags | OFlags::NONBLOCK).unwrap();
        while self.writer.write(b"x").is_ok() {}
        fcntl_setfl(&self.writer, flags).unwrap();
    }
}

#[test]
fn log_pipe_that_is_not_read_freezes_nothing() {
    let mut stderr = Pipe::new();
    let mut command = divvy();
    command.env_remove("RUST_LOG").stderr(stderr.for_child());
    let args = [COMPAT_RULES, "--store", "memory", "--requirepass", "secret", "--open", "line,metrics"];
    let server = Server::start_as(&mut command, &args);
    stderr.fill();
    for _ in 0..300 {
        let mut client = server.resp();
        assert!(client.command("AUTH wrong").starts_with("-WRONGPASS"));
    }
    assert_eq!(http::get(server.http, "/healthz").status, 200);
    assert_eq!(server.line().hit("method=GET path=/status"), (true, 999, 60));
    let begun = Instant::now();
    assert_eq!(server.terminate().code(), Some(0));
    assert!(begun.elapsed() < PATIENCE, "the end took {:?}", begun.elapsed());
}

#[test]
fn flood_of_lines_is_dropped_counted_and_reported_once_the_log_is_read() {
    const RULES: usize = 2_000;
    let stderr = Pipe::new();
    let mut command = divvy();
    command.env_remove("RUST_LOG").stderr(stderr.for_child());
    // Each line has about 4 KB. Together, they are twice as long as the queue.
    let rule = |number| format!("[a={number}]\ncreditLimit = 9\nresetSeconds = 60\ncomment = {}\n", "x".repeat(4_000));
    let default = "[default]\ncreditLimit = 0\nresetSeconds = 0\n";
    let file = RulesFile::ini(&(0..RULES).map(rule).chain([default.to_owned()]).collect::<String>());
    let server = Server::start_as(&mut command, &[file.path(), "--store", "memory", "--log-level", "debug"]);
    let dropped = dropped_lines(&server);
    assert!((500..RULES as u64).contains(&dropped), "{dropped} lines");
    assert_eq!(server.line().hit("a=1"), (true, 8, 60));
    let Pipe { mut reader, writer } = stderr;
    drop((writer, command));
    let reading = thread::spawn(move || {
        let mut text = String::new();
        reader.read_to_string(&mut text).map(|_| text)
    });
    assert_eq!(server.terminate().code(), Some(0));
    let text = reading.join().unwrap().unwrap();
    let answer: Vec<_> = text.lines().filter(|line| line.contains("log lines were dropped")).collect();
    assert!(answer.last().is_some_and(|line| line.ends_with(&format!("total={dropped}"))), "{answer:?}");
    let shown = text.lines().filter(|line| line.contains("allows 9 in 60 s")).count() as u64;
    assert!(shown + dropped >= RULES as u64, "{shown} shown, {dropped} dropped");
}

#[test]
fn closed_log_pipe_ends_nothing() {
    let stderr = Pipe::new();
    let mut command = divvy();
    command.env_remove("RUST_LOG").stderr(stderr.for_child());
    let server = Server::start_as(&mut command, &[COMPAT_RULES, "--store", "memory", "--max-connections", "1"]);
    drop(stderr);
    let client = server.line();
    (0..10).for_each(|_| be_refused(&server));
    drop(client);
    assert_eq!(server.terminate().code(), Some(0));
}

/// Waits for the process to end, and returns its exit code.
fn ended(mut child: Child) -> Option<i32> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        if Instant::now() >= deadline {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("it does not end");
        }
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn failed_start_keeps_its_exit_code_even_without_a_log() {
    let missing = ["serve", "/nowhere/rules.ini"];
    let run = |stderr: Stdio| ended(divvy().args(missing).stderr(stderr).spawn().unwrap());
    let full_disk = OpenOptions::new().write(true).open("/dev/full").unwrap();
    assert_eq!(run(full_disk.into()), Some(1));
    let mut stuck = Pipe::new();
    stuck.fill();
    assert_eq!(run(stuck.for_child()), Some(1));
    let closed = Pipe::new().for_child();
    assert_eq!(run(closed), Some(1));
    // The same holds before the log is started.
    let mut command = divvy();
    command.args(missing).env("RUST_LOG", "divvy=loud").stderr(Pipe::new().for_child());
    assert_eq!(ended(command.spawn().unwrap()), Some(1));
}

fn served_without_stdout(stdout: Stdio) {
    let mut command = divvy();
    let log = Log::of(&mut command);
    let server = Server::start_logged(command.stdout(stdout), &log, &[COMPAT_RULES, "--store", "memory"]);
    assert_eq!(server.line().hit("method=GET path=/status"), (true, 999, 60));
    assert_eq!(server.terminate().code(), Some(0));
}

#[test]
fn server_serves_when_its_announcement_is_not_read() {
    served_without_stdout(Pipe::new().for_child());
    served_without_stdout(File::create("/dev/full").unwrap().into());
    let mut stuck = Pipe::new();
    stuck.fill();
    served_without_stdout(stuck.for_child());
}

#[test]
fn standard_output_and_error_may_be_closed_at_start() {
    let dir = tempfile::tempdir().unwrap();
    let port = crate::support::redis::free_port();
    let mut command = Command::new("sh");
    command.args(["-c", r#"exec "$0" "$@" >&- 2>&-"#, crate::support::DIVVY, "serve", COMPAT_RULES]);
    command.args(["--resp-listen=none", "--http-listen=none", "--grpc-listen=none", "--data-dir"]);
    command.arg(dir.path().join("data")).args(["--listen", &format!("127.0.0.1:{port}")]);
    let child = command.spawn().unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    until(|| std::net::TcpStream::connect(address).is_ok());
    assert_eq!(LineClient::connect(address).hit("method=GET path=/status"), (true, 999, 60));
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(ended(child), Some(0));
}
