//! Rules that change while they are served.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use crate::support::{LineClient, Log, RespClient, Server, divvy, encode, http};

const IN_FORCE: &str = "reloaded; the new rules are in force";
const UNCHANGED: &str = "reloaded, unchanged";
const NOT_LOADED: &str = "not loaded; the previous rules stay in force";

/// A rules file that can be changed, and a server that uses it and logs.
struct WatchedServer {
    dir: tempfile::TempDir,
    log: Log,
    server: Server,
}

impl WatchedServer {
    fn serving(rules: &str, options: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("rules.ini"), rules).unwrap();
        Self::serving_in(dir, options)
    }

    /// Serves the `rules.ini` in `dir`, from memory.
    fn serving_in(dir: tempfile::TempDir, options: &[&str]) -> Self {
        Self::serving_from(dir, &[&["--store", "memory"], options].concat())
    }

    /// Serves the `rules.ini` in `dir`, from the store in `options`.
    fn serving_from(dir: tempfile::TempDir, options: &[&str]) -> Self {
        let rules = dir.path().join("rules.ini");
        let (server, log) = Server::logged(&[&[rules.to_str().unwrap()], options].concat());
        Self { dir, log, server }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("rules.ini")
    }

    fn write(&self, rules: &str) {
        fs::write(self.path(), rules).unwrap();
    }

    fn hang_up(&self) {
        self.server.signal("-HUP");
    }
}

/// Returns a rule for `header` that allows `credits` per hour, and a default that denies.
fn rules(header: &str, credits: u64) -> String {
    format!(
        "[{header}]\ncreditLimit = {credits}\nresetSeconds = 3600\n\n[default]\ncreditLimit = 0\nresetSeconds = 0\n"
    )
}

#[test]
fn sighup_loads_at_once_and_reports_an_unchanged_file() {
    let watched = WatchedServer::serving(&rules("a=1", 10), &["--reload-interval", "0"]);
    watched.hang_up();
    watched.log.await_count(1, UNCHANGED);
    watched.write(&rules("a=1", 20));
    watched.hang_up();
    watched.log.await_count(1, IN_FORCE);
    assert_eq!(watched.server.line().hit("a=1").1, 19);
    assert!(watched.server.terminate().success());
}

#[test]
fn invalid_file_is_reported_with_its_lines_and_the_old_rules_stay() {
    let good = rules("a=1", 10);
    let watched = WatchedServer::serving(&good, &["--reload-interval", "0"]);
    watched.write("[a=1]\ncreditLimit = many\nresetSeconds = 60\n");
    let checked = divvy().args(["check", watched.path().to_str().unwrap()]).output().unwrap();
    let problems = String::from_utf8(checked.stderr).unwrap();
    assert_eq!(problems.lines().count(), 2, "the limit, and that there is no default rule: {problems}");

    watched.hang_up();
    watched.log.await_count(1, NOT_LOADED);
    let log = watched.log.text();
    for problem in problems.lines() {
        let problem = problem.strip_prefix("error: ").unwrap();
        assert!(log.lines().any(|line| line.contains("ERROR") && line.ends_with(problem)), "{problem:?} in:\n{log}");
    }
    let mut client = watched.server.line();
    assert_eq!(client.hit("a=1").1, 9);
    let shown = |line: &str| http::get(watched.server.http, "/metrics").body.lines().any(|shown| shown == line);
    assert!(shown("divvy_config_last_load_successful 0") && shown("divvy_config_failures_total 1"));

    watched.write(&good);
    watched.hang_up();
    watched.log.await_count(1, UNCHANGED);
    assert!(shown("divvy_config_last_load_successful 1") && shown("divvy_config_failures_total 1"));
    assert_eq!(client.hit("a=1").1, 8);
}

/// Number of rule changes under load.
const FLIPS: usize = 100;
/// Requests that each client sends at once.
const PIPELINED: u64 = 32;
/// Credits of the rule that both rule sets have.
const KEPT: u64 = 1_000_000;

/// Returns rules that answer `x=…` with the number `x`, and always have the same rule for `kept=…`.
fn flipping(x: u64) -> String {
    format!(
        "[x=*]\ncreditLimit = {x}\nresetSeconds = 0\n\n\
         [kept=*]\ncreditLimit = {KEPT}\nresetSeconds = 3600\nactorField = kept\n\n\
         [default]\ncreditLimit = 0\nresetSeconds = 0\n"
    )
}

/// Answers to a client.
#[derive(Default)]
struct AnswerCounts {
    /// Number of answers by each of the two rule sets.
    by: [u64; 2],
    /// Number of hits on the rule that both have.
    kept: u64,
}

impl AnswerCounts {
    /// Records the answers to `x=1` and to `kept=…`.
    fn take(&mut self, x: (bool, u64, u64), kept: (bool, u64)) {
        match x {
            (true, 1_111, 0) => self.by[0] += 1,
            (true, 2_222, 0) => self.by[1] += 1,
            other => panic!("an answer of neither rule set: {other:?}"),
        }
        self.kept += 1;
        assert_eq!(kept, (true, KEPT - self.kept), "its counter goes on through every change");
    }
}

/// Sends hits over the line protocol until `done`. Replies must be complete and in order.
fn hit_by_line(address: SocketAddr, actor: &str, done: &AtomicBool) -> AnswerCounts {
    let mut client = LineClient::connect(address);
    let mut answered = AnswerCounts::default();
    let burst = format!("HIT x=1\nHIT kept={actor}\n").repeat(PIPELINED as usize);
    while !done.load(Relaxed) {
        client.send(burst.as_bytes());
        for _ in 0..PIPELINED {
            let mut verdict = || client.try_read_verdict().expect("no connection is dropped");
            let (x, (allowed, credit, _)) = (verdict(), verdict());
            answered.take(x, (allowed, credit));
        }
    }
    answered
}

fn hit_by_resp(address: SocketAddr, actor: &str, done: &AtomicBool) -> AnswerCounts {
    let mut client = RespClient::connect(address);
    let mut answered = AnswerCounts::default();
    let kept = format!("kept={actor}");
    let pair = [encode(&[b"DIVVY.HIT", b"x=1"]), encode(&[b"DIVVY.HIT", kept.as_bytes()])].concat();
    let burst = pair.repeat(PIPELINED as usize);
    while !done.load(Relaxed) {
        client.send(&burst);
        for _ in 0..PIPELINED {
            let mut verdict = || {
                let reply = client.read_reply();
                let numbers = reply.trim_matches(['[', ']']).split(' ').map(|number| number.parse().unwrap());
                let numbers: Vec<u64> = numbers.collect();
                (numbers[0] == 1, numbers[1], numbers[2])
            };
            let (x, (allowed, credit, _)) = (verdict(), verdict());
            answered.take(x, (allowed, credit));
        }
    }
    answered
}

#[test]
fn under_load_every_reply_is_from_one_rule_set_and_no_connection_is_dropped() {
    let sets = [flipping(1_111), flipping(2_222)];
    let watched = WatchedServer::serving(&sets[0], &["--reload-interval", "0", "--threads", "2"]);
    let done = AtomicBool::new(false);
    let (line, resp) = (watched.server.line, watched.server.resp);
    let (done, mut by) = (&done, [0, 0]);
    thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|number: usize| {
                scope.spawn(move || {
                    let actor = format!("client-{number}");
                    if number.is_multiple_of(2) {
                        hit_by_line(line, &actor, done)
                    } else {
                        hit_by_resp(resp, &actor, done)
                    }
                })
            })
            .collect();
        for flip in 1..=FLIPS {
            watched.write(&sets[flip % 2]);
            watched.hang_up();
            watched.log.await_count(flip, IN_FORCE);
        }
        done.store(true, Relaxed);
        for client in clients {
            let answered = client.join().unwrap();
            by = [by[0] + answered.by[0], by[1] + answered.by[1]];
        }
    });
    assert!(by.iter().all(|answers| *answers > 0), "both rule sets have answered: {by:?}");
}
