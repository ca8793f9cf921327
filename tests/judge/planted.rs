//! A small limiter with bugs that can be switched on. The judge has to find each of them, and nothing without them.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::faults::record_during;
use super::fronts::{Addresses, Front};
use super::models::Loss;
use super::report::judge;
use super::workload::{Course, Kind, LIMIT, Pace, Signals};
use crate::support::seed;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    None,
    /// Two hits at once read the same count.
    LostUpdate,
    /// Replies leave before the change is on disk.
    EarlyReply,
    /// A retry with an idempotency key counts again.
    ForgottenKey,
    /// A remembered denial outlives a refund.
    StaleDenial,
    /// A new window begins with what the last one had left.
    CarriedCredit,
}

/// With early replies, the number of changes after which they get to the disk, and after which the limiter crashes.
const SYNC: u64 = 40;
const CRASH: u64 = 70;
const WINDOW: Duration = Duration::from_millis(400);
/// A bug must be found among this many histories.
const MOST: usize = 600;

#[derive(Debug, Clone, Default)]
struct Window {
    used: u64,
    carried: u64,
    begun: Option<Instant>,
    answers: HashMap<String, String>,
    is_denied: bool,
}

#[derive(Debug, Default)]
struct Memory {
    now: HashMap<String, Window>,
    disk: HashMap<String, Window>,
    connections: Vec<TcpStream>,
    changes: u64,
}

impl Memory {
    /// Loses what is not on disk, and all connections.
    fn crash(&mut self) {
        self.now = self.disk.clone();
        self.connections.drain(..).for_each(|connection| drop(connection.shutdown(Shutdown::Both)));
    }
}

#[derive(Debug, Clone)]
struct Limiter {
    bug: Bug,
    address: SocketAddr,
    memory: Arc<Mutex<Memory>>,
}

impl Limiter {
    fn start(bug: Bug) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let limiter = Self { bug, address: listener.local_addr().unwrap(), memory: Arc::default() };
        let serving = limiter.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let limiter = serving.clone();
                limiter.memory.lock().unwrap().connections.push(stream.try_clone().unwrap());
                thread::spawn(move || limiter.serve(stream));
            }
        });
        limiter
    }

    fn serve(&self, mut stream: TcpStream) -> Option<()> {
        stream.set_nodelay(true).ok()?;
        let mut reader = BufReader::new(stream.try_clone().ok()?);
        loop {
            let words = read_request(&mut reader)?;
            let reply = self.answer(&words);
            stream.write_all(reply.as_bytes()).ok()?;
        }
    }

    fn answer(&self, words: &[String]) -> String {
        let mut memory = self.memory.lock().unwrap();
        let name = words[1..3].join(" ");
        let mut window = memory.now.get(&name).cloned().unwrap_or_default();
        if self.bug == Bug::LostUpdate {
            drop(memory);
            thread::sleep(Duration::from_micros(50));
            memory = self.memory.lock().unwrap();
        }
        let reply = self.decide(&mut window, words);
        memory.now.insert(name.clone(), window.clone());
        if self.bug != Bug::EarlyReply {
            memory.disk.insert(name, window);
            return reply;
        }
        memory.changes += 1;
        if memory.changes.is_multiple_of(SYNC) {
            memory.disk = memory.now.clone();
        }
        if memory.changes.is_multiple_of(CRASH) {
            memory.crash();
        }
        reply
    }

    fn decide(&self, window: &mut Window, words: &[String]) -> String {
        if words[1] == "kind=brief" && window.begun.is_some_and(|begun| begun.elapsed() >= WINDOW) {
            let left = (LIMIT + window.carried).saturating_sub(window.used);
            let carried = if self.bug == Bug::CarriedCredit { left } else { 0 };
            *window = Window { carried, answers: std::mem::take(&mut window.answers), ..Window::default() };
        }
        let cost: u64 = words.get(4).map_or(0, |cost| cost.parse().unwrap());
        let key = words.get(6).map(|key| format!("{} {key}", words[0]));
        let first = key.as_ref().and_then(|key| window.answers.get(key));
        if let Some(first) = first.filter(|_| self.bug != Bug::ForgottenKey) {
            return first.clone();
        }
        let limit = LIMIT + window.carried;
        let mut allowed = window.used + cost <= limit && !(self.bug == Bug::StaleDenial && window.is_denied);
        let reply = match words[0].as_str() {
            "DIVVY.HIT" => {
                window.used += if allowed { cost } else { 0 };
                window.is_denied = !allowed;
                String::new()
            }
            "DIVVY.PEEK" => String::new(),
            "DIVVY.CHARGE" | "DIVVY.REFUND" => {
                window.used =
                    if words[0] == "DIVVY.CHARGE" { window.used + cost } else { window.used.saturating_sub(cost) };
                format!("*2\r\n:{}\r\n:1\r\n", limit as i64 - window.used as i64)
            }
            _ => {
                *window = Window { answers: std::mem::take(&mut window.answers), ..Window::default() };
                allowed = true;
                ":1\r\n".to_owned()
            }
        };
        window.begun = (window.used > 0).then(|| window.begun.unwrap_or_else(Instant::now));
        // A limiter that does not let its clients see more than its limit.
        let left = limit.saturating_sub(window.used).min(LIMIT);
        let reply = if reply.is_empty() { format!("*3\r\n:{}\r\n:{left}\r\n:1\r\n", u8::from(allowed)) } else { reply };
        if let Some(key) = key {
            window.answers.insert(key, reply.clone());
        }
        reply
    }
}

/// Reads an array of bulk strings; `None` at the end of the connection.
fn read_request(reader: &mut impl BufRead) -> Option<Vec<String>> {
    let number = |reader: &mut dyn BufRead| {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        line.get(1..)?.trim_end().parse::<usize>().ok()
    };
    let count = number(reader)?;
    let mut words = Vec::new();
    for _ in 0..count {
        let mut word = vec![0; number(reader)? + 2];
        reader.read_exact(&mut word).ok()?;
        word.truncate(word.len() - 2);
        words.push(String::from_utf8(word).ok()?);
    }
    Some(words)
}

/// Returns the number of histories until the first that breaks a promise, and the report about it.
fn find(bug: Bug, kind: Kind, crashes: bool) -> (usize, Option<String>) {
    let limiter = Limiter::start(bug);
    let here = limiter.address;
    let (servers, signals) = ([Addresses { line: here, resp: here, http: here, grpc: here }], Signals::default());
    let pause = Duration::from_millis(if kind == Kind::Brief {
        30
    } else if crashes {
        5
    } else {
        0
    });
    let course = Course {
        servers: &servers,
        kinds: &[kind],
        fronts: &[Front::Resp],
        pace: Pace { group: 8, turns: if kind == Kind::Brief { 8 } else { 4 }, pause },
        loss: Loss::Nothing,
        seed: seed(),
        signals: &signals,
    };
    let mut judged = 0;
    while judged < MOST {
        let histories = record_during(&course, 24, |_| {
            if crashes {
                limiter.memory.lock().unwrap().crash();
            }
        });
        for (model, history) in &histories {
            judged += 1;
            if let Some(report) = judge(model, history) {
                return (judged, Some(report));
            }
        }
        if bug == Bug::None {
            break;
        }
    }
    (judged, None)
}

fn assert_found(bug: Bug, kind: Kind, crashes: bool) {
    let (judged, report) = find(bug, kind, crashes);
    let report = report.unwrap_or_else(|| panic!("{bug:?} was not found in {judged} histories"));
    println!("{bug:?}, in history {judged}:\n{report}");
    assert!(report.starts_with("counter kind=") && report.contains("why: `"), "{report}");
}

#[test]
fn lost_update_is_found() {
    assert_found(Bug::LostUpdate, Kind::SlidingLog, false);
}

#[test]
fn reply_before_the_change_is_durable_is_found() {
    assert_found(Bug::EarlyReply, Kind::SlidingLog, false);
}

#[test]
fn retry_that_counts_twice_is_found() {
    assert_found(Bug::ForgottenKey, Kind::SlidingLog, false);
}

#[test]
fn stale_denial_after_a_refund_is_found() {
    assert_found(Bug::StaleDenial, Kind::SlidingLog, false);
}

#[test]
fn credit_carried_over_a_windows_end_is_found() {
    assert_found(Bug::CarriedCredit, Kind::Brief, false);
}

#[test]
fn nothing_is_found_in_a_correct_limiter() {
    for (kind, crashes) in [(Kind::SlidingLog, false), (Kind::SlidingLog, true), (Kind::Brief, false)] {
        let (_, report) = find(Bug::None, kind, crashes);
        assert_eq!(report, None);
    }
}
