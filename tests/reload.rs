//! Rules that change while they are served.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use crate::support::{LineClient, RespClient, Site, encode, http, words};

const UNCHANGED: &str = "reloaded, unchanged";
const NOT_LOADED: &str = "not loaded; the previous rules stay in force";

/// Returns a rule for `header` that allows `credits` per hour, and a default that denies.
fn rules(header: &str, credits: u64) -> String {
    format!(
        "[{header}]\ncreditLimit = {credits}\nresetSeconds = 3600\n\n[default]\ncreditLimit = 0\nresetSeconds = 0\n"
    )
}

#[test]
fn unchanged_and_invalid_files_are_reported_and_the_old_rules_stay() {
    let good = rules("a=1", 10);
    let site = Site::serving(&good, &["--store", "memory"]);
    let shown = |line: &str| http::get(site.server.http, "/metrics").body.lines().any(|shown| shown == line);
    site.replace("rules.ini", &good, UNCHANGED);
    site.replace("rules.ini", "[a=1]\ncreditLimit = many\nresetSeconds = 60\n", NOT_LOADED);
    let log = site.log.text();
    for problem in ["rules.ini:2: ", "rules.ini: "] {
        assert!(log.lines().any(|line| line.contains("ERROR") && line.contains(problem)), "{problem:?} in:\n{log}");
    }
    let mut client = site.server.line();
    assert_eq!(client.hit("a=1").1, 9);
    assert!(shown("divvy_config_last_load_successful 0") && shown("divvy_config_failures_total 1"));
    site.replace("rules.ini", &good, UNCHANGED);
    assert!(shown("divvy_config_last_load_successful 1") && shown("divvy_config_failures_total 1"));
    site.reload(&rules("a=1", 20));
    assert_eq!(client.hit("a=1").1, 19);
}

/// Number of rule changes under load.
const FLIPS: usize = 100;
/// Requests that each client sends at once.
const PIPELINED: u64 = 32;
/// Credits of the rule that both rule sets have.
const KEPT: u64 = 1_000_000_000;

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
                let numbers: Vec<u64> = words(&reply).iter().map(|number| number.parse().unwrap()).collect();
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
    let site = Site::serving(&sets[0], &["--store", "memory", "--threads", "2"]);
    let done = AtomicBool::new(false);
    let (line, resp) = (site.server.line, site.server.resp);
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
            site.reload(&sets[flip % 2]);
        }
        done.store(true, Relaxed);
        for client in clients {
            let answered = client.join().unwrap();
            by = [by[0] + answered.by[0], by[1] + answered.by[1]];
        }
    });
    assert!(by.iter().all(|answers| *answers > 0), "both rule sets have answered: {by:?}");
}
