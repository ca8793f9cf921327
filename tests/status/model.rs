//! The status of actors compared with a model, on every store and under load. Threads hit, charge, refund, reserve, renew,
//! settle, reset and forget counters of every kind, and change limits, each for actors of its own. All of them also use one
//! actor together.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;

use rand::rngs::Xoshiro256PlusPlus as Rng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use super::page;
use crate::support::{Place, RespClient, Server, http, on_every_store, seed, setting, words};

/// Credits of each rule.
const CREDITS: u64 = 30;
/// Credits of the actor that all threads use.
const MANY: u64 = 1_000_000;
const THREADS: u64 = 4;
/// Actors of a thread.
const USERS: u64 = 8;
const ARGS: [&str; 2] = ["--max-reservation-ttl", "3600"];

/// The rules by the values of `by` that they match, configured so that no credit comes back during a test.
const RULES: [(&str, &str, &str); 12] = [
    ("fixed", "fixed", "resetSeconds = 2592000"),
    ("year", "year", "window = year"),
    ("sliding", "sliding", "algorithm = sliding-window\nresetSeconds = 259200000"),
    ("log", "log", "algorithm = sliding-log\nresetSeconds = 2592000"),
    ("tokens", "tokens", "algorithm = token-bucket\nresetSeconds = 2592000"),
    ("leaky", "leaky", "algorithm = leaky-bucket\nresetSeconds = 2592000"),
    ("debt", "debt", "resetSeconds = 2592000\noverrun = debt"),
    ("named", "named", "resetSeconds = 2592000\ncounter = usage"),
    ("jobs", "jobs", "algorithm = concurrency\nresetSeconds = 3600"),
    ("stack", "watched", "algorithm = sliding-log\nresetSeconds = 2592000\nmatchPolicy = canary"),
    ("stack", "first", "algorithm = token-bucket\nresetSeconds = 2592000\nmatchPolicy = and"),
    ("stack", "second", "resetSeconds = 2592000"),
];

fn rules() -> String {
    let rule = |(by, label, settings): (&str, &str, &str)| {
        format!("[by={by} user=*]\ncreditLimit = {CREDITS}\n{settings}\nactorField = user\nlabel = {label}\n\n")
    };
    RULES.map(rule).concat() + "[default]\ncreditLimit = 0\n"
}

/// A counter.
#[derive(Debug, Clone, Default)]
struct Counter {
    /// Whether it is of a token bucket or a leaky bucket, whose usage is no debt under another limit.
    is_bucket: bool,
    own_limit: Option<u64>,
    /// The limit of its own that it was last used under.
    own_before: Option<u64>,
    used: u64,
    /// The credits of reservations, and the capacity under which they were reserved, by id.
    held: BTreeMap<String, (u64, u64)>,
}

impl Counter {
    fn limit(&self) -> u64 {
        self.own_limit.unwrap_or(CREDITS)
    }

    /// Returns the actor's own limit, unless it allows nothing. Then the rule's limit still counts usage.
    fn own(&self) -> Option<u64> {
        self.own_limit.filter(|credits| *credits > 0)
    }

    /// Returns the usage under the present limit.
    fn used(&self) -> u64 {
        let before = self.own_before.or(self.own().map(|_| CREDITS)).filter(|_| self.is_bucket);
        let fits = |before: u64| self.used.min(before).min(self.capacity());
        before.map_or(self.used, |before| fits(before) + self.used.saturating_sub(before))
    }

    fn set_used(&mut self, used: u64) {
        (self.used, self.own_before) = (used, self.own());
    }

    fn held(&self) -> u64 {
        self.held.values().map(|(credits, _)| credits).sum()
    }

    /// Returns the credits of the limit that counts usage.
    fn capacity(&self) -> u64 {
        self.own().unwrap_or(CREDITS)
    }

    /// Returns the part of `cost` that a commit counts. Credits that were reserved under a larger limit count as far as they fit.
    fn counted(&self, cost: u64, (reserved, capacity): (u64, u64)) -> u64 {
        if capacity <= self.capacity() {
            return cost;
        }
        let room = self.capacity().saturating_sub(self.used() + self.held());
        cost - cost.min(reserved) + cost.min(reserved).min(room)
    }

    fn left(&self) -> u64 {
        self.limit().saturating_sub(self.used() + self.held())
    }

    /// Returns the status under the rule with this label. `None` if the rule does not know the actor.
    fn status(&self, label: &str) -> Option<Value> {
        let (used, held, limit) = (self.used(), self.held(), self.limit());
        let (reserved, in_flight) = if label == "jobs" { (0, held) } else { (held, 0) };
        (used + held > 0 || self.own_limit.is_some()).then(|| {
            json!({
                "rule": label, "limit": limit, "used": used, "reserved": reserved, "inFlight": in_flight,
                "remaining": self.left(), "balance": limit as i64 - used as i64 - held as i64, "ownLimit": self.own_limit,
                "override": null,
            })
        })
    }
}

/// An actor's counters, in the order of [`RULES`].
struct Actor {
    name: String,
    counters: Vec<Counter>,
}

impl Actor {
    fn new(name: String) -> Self {
        let is_bucket = |settings: &str| settings.contains("token-bucket") || settings.contains("leaky-bucket");
        let counter = |(.., settings): (_, _, &str)| Counter { is_bucket: is_bucket(settings), ..Counter::default() };
        Self { name, counters: RULES.map(counter).to_vec() }
    }

    /// Sends a random request, and compares its reply with the model's.
    fn step(&mut self, client: &mut RespClient, rng: &mut Rng) {
        let Self { name, counters } = self;
        let index = rng.random_range(0..RULES.len());
        let (by, label, settings) = RULES[index];
        let operation = format!("by={by} user={name}");
        let cost = rng.random_range(1..12_u64);
        let mut ask = |command: String| client.command(&command);
        match rng.random_range(0..22) {
            0..2 => {
                let credits = rng.random_range(0..2 * CREDITS);
                assert_eq!(ask(format!("DIVVY.LIMIT SET {label} {name} {credits}")), "OK");
                counters[index].own_limit = Some(credits);
            }
            2..4 => {
                let had_limit = u64::from(counters[index].own_limit.take().is_some());
                assert_eq!(ask(format!("DIVVY.LIMIT DEL {label} {name}")), had_limit.to_string());
            }
            4 => {
                ask(format!("DIVVY.RESET {operation}"));
                for (counter, (other, ..)) in counters.iter_mut().zip(RULES) {
                    if other == by {
                        (counter.used, counter.held) = (0, BTreeMap::new());
                    }
                }
            }
            20 => {
                let counter = &mut counters[index];
                let reply = ask(format!("DIVVY.FORGET {label} ACTOR {name}"));
                assert!(["[0 0]", "[0 1]"].contains(&reply.as_str()), "{label} {counter:?}: {reply}");
                (counter.used, counter.held) = (0, BTreeMap::new());
            }
            _ if by == "stack" => {
                let [watched, first, second] = &mut counters[index_of("watched")..] else { panic!("three rules") };
                let is_allowed = cost <= first.left() && cost <= second.left();
                if cost <= watched.left() {
                    watched.set_used(watched.used() + cost);
                }
                for counter in [first, second].into_iter().filter(|_| is_allowed) {
                    counter.set_used(counter.used() + cost);
                }
                let reply = ask(format!("DIVVY.HIT {operation} COST {cost}"));
                assert_eq!(reply.starts_with("[1 "), is_allowed, "{reply}");
            }
            5..9 if by != "jobs" => {
                let counter = &mut counters[index];
                let wanted = if settings.contains("debt") { 1 } else { cost };
                let is_allowed = wanted <= counter.left();
                let reply = ask(format!("DIVVY.HIT {operation} COST {cost}"));
                assert_eq!(reply.starts_with("[1 "), is_allowed, "{label} {counter:?}: {reply}");
                if is_allowed {
                    counter.set_used(counter.used() + cost);
                }
            }
            9..11 if !["jobs", "log"].contains(&by) => {
                let counter = &mut counters[index];
                counter.set_used(counter.used() + cost);
                assert!(ask(format!("DIVVY.CHARGE {operation} COST {cost}")).starts_with('['));
            }
            11..13 if by != "jobs" => {
                let counter = &mut counters[index];
                counter.set_used(counter.used().saturating_sub(cost));
                assert!(ask(format!("DIVVY.REFUND {operation} COST {cost}")).starts_with('['));
            }
            13..16 if by != "log" => {
                let counter = &mut counters[index];
                let is_allowed = cost <= counter.left();
                let ttl = if by == "jobs" { "" } else { " TTL 3600" };
                let reply = ask(format!("DIVVY.RESERVE {operation} AMOUNT {cost}{ttl}"));
                assert_eq!(reply.starts_with("[1 "), is_allowed, "{label} {counter:?}: {reply}");
                if is_allowed {
                    counter.set_used(counter.used());
                    counter.held.insert(words(&reply)[3].to_owned(), (cost, counter.capacity()));
                }
            }
            21 => {
                let counter = &mut counters[index];
                let Some(id) = counter.held.keys().next() else { return };
                assert_ne!(ask(format!("DIVVY.RENEW {id} TTL 3600")), "0", "{label}");
                counter.set_used(counter.used());
            }
            kind => {
                let counter = &mut counters[index];
                let Some((id, reserved)) = counter.held.pop_first() else { return };
                counter.set_used(counter.used());
                if kind % 2 == 0 || by == "jobs" {
                    assert_eq!(ask(format!("DIVVY.RELEASE {id}")), "1");
                } else {
                    counter.set_used(counter.used() + counter.counted(cost, reserved));
                    let reply = ask(format!("DIVVY.COMMIT {id} COST {cost}"));
                    assert!(reply.ends_with(" settled]"), "{reply}");
                }
            }
        }
    }

    /// Compares the actor's status with the model, over RESP, over HTTP, or over HTTP page by page.
    fn check(&self, server: &Server, client: &mut RespClient, way: u64) {
        let labels = RULES.map(|(_, label, _)| label);
        let expected: Vec<_> =
            self.counters.iter().zip(labels).filter_map(|(counter, label)| counter.status(label)).collect();
        let actor = format!("user={}", self.name);
        let shown = match way % 3 {
            0 => read_reply(&client.command(&format!("DIVVY.STATUS {actor}"))),
            1 => page(server, &actor)["rules"].as_array().unwrap().clone(),
            _ => http::all_pages(server, &format!("/v1/status?{actor}&count=5"), "rules"),
        };
        let shown: Vec<_> = shown.into_iter().map(without_reset).collect();
        assert_eq!(shown, expected, "{}: {:?}", self.name, self.counters);
    }
}

fn index_of(label: &str) -> usize {
    RULES.iter().position(|(_, other, _)| *other == label).unwrap()
}

/// Removes the time to the reset, which must be positive if and only if credits are missing.
fn without_reset(mut rule: Value) -> Value {
    let reset = rule.as_object_mut().unwrap().remove("reset").unwrap().as_u64().unwrap();
    assert_eq!(reset > 0, rule["limit"] != rule["balance"], "{rule}");
    rule
}

/// Reads the rules in a reply to `DIVVY.STATUS` as the HTTP API would show them.
fn read_reply(reply: &str) -> Vec<Value> {
    let rule = |text: &str| {
        let words: Vec<_> = text.trim_end_matches([']', ' ', '[']).split(' ').collect();
        let pairs = std::iter::once("rule").chain(words).collect::<Vec<_>>();
        let value = |word: &str| match word.parse::<i64>() {
            Ok(number) => json!(number),
            Err(_) if word == "nil" => Value::Null,
            Err(_) => json!(word),
        };
        pairs.chunks(2).map(|pair| (pair[0].to_owned(), value(pair[1]))).collect::<serde_json::Map<_, _>>().into()
    };
    assert!(reply.starts_with("[0 ["), "{reply}");
    reply.split("[rule ").skip(1).map(rule).collect()
}

/// Requests to the actor that all threads use.
#[derive(Default)]
struct Shared {
    sent: AtomicU64,
    answered: AtomicU64,
    is_done: AtomicBool,
}

impl Shared {
    /// Takes one credit, by a hit or by a reservation of more.
    fn step(&self, client: &mut RespClient, rng: &mut Rng) {
        self.sent.fetch_add(1, SeqCst);
        if rng.random() {
            assert!(client.command("DIVVY.HIT by=fixed user=all").starts_with("[1 "));
        } else {
            let (_, id) = client.reserve("by=fixed user=all AMOUNT 5 TTL 3600");
            assert!(client.command(&format!("DIVVY.COMMIT {id} COST 1")).ends_with(" settled]"));
        }
        self.answered.fetch_add(1, SeqCst);
    }

    /// Asks for the status until all threads are done. Returns how often.
    fn watch(&self, server: &Server) -> u64 {
        let mut client = server.resp();
        for asked in 0.. {
            let is_done = self.is_done.load(SeqCst);
            let least = self.answered.load(SeqCst);
            let rules = match asked % 2 {
                0 => read_reply(&client.command("DIVVY.STATUS user=all")),
                _ => page(server, "user=all")["rules"].as_array().unwrap().clone(),
            };
            let most = self.sent.load(SeqCst);
            let number = |name: &str| rules[0][name].as_u64().unwrap();
            let (used, reserved) = (number("used"), number("reserved"));
            assert!((least..=most).contains(&used), "{used} is not from {least} to {most}");
            assert!(reserved % 5 == 0 && reserved <= 5 * THREADS, "{reserved}");
            assert_eq!(used + reserved + number("balance"), MANY);
            if is_done {
                assert_eq!((used, reserved), (most, 0));
                return asked;
            }
        }
        unreachable!("the loop returns")
    }
}

/// Uses many actors at once, and compares each with its model again and again. Returns the models.
fn run(store: &str, server: &Server) -> Vec<Actor> {
    let (seed, steps) = (seed(), setting("DIVVY_TEST_STATUS_STEPS", 400_u64));
    let reply = server.resp().command(&format!("DIVVY.LIMIT SET fixed all {MANY}"));
    assert_eq!(reply, "OK", "{store}");
    let shared = Shared::default();
    let work = |thread: u64| {
        let mut rng = Rng::seed_from_u64(seed + thread);
        let mut client = server.resp();
        let mut actors: Vec<_> = (0..USERS).map(|user| Actor::new(format!("u{thread}-{user}"))).collect();
        for step in 0..steps {
            let actor = &mut actors[rng.random_range(0..USERS as usize)];
            actor.step(&mut client, &mut rng);
            shared.step(&mut client, &mut rng);
            if step % 3 == 0 {
                actor.check(server, &mut client, step / 3);
            }
        }
        actors
    };
    thread::scope(|scope| {
        let watcher = scope.spawn(|| shared.watch(server));
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || work(thread))).collect();
        let joined: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        // Also after a failure, or the watcher would go on.
        shared.is_done.store(true, SeqCst);
        let actors = joined.into_iter().flat_map(Result::unwrap).collect();
        assert!(watcher.join().unwrap() > 10, "{store}");
        actors
    })
}

/// Compares all actors with their models.
fn check_all(server: &Server, actors: &[Actor]) {
    let mut client = server.resp();
    for (number, actor) in (0..).zip(actors) {
        actor.check(server, &mut client, number);
    }
}

#[test]
fn status_equals_a_model_under_load_on_every_store() {
    on_every_store(&rules(), &ARGS, |store, server| {
        let actors = run(store, server);
        check_all(server, &actors);
    });
}

#[test]
fn status_is_the_same_after_a_restart_and_a_kill() {
    let place = Place::new(&rules());
    let serve = || place.on_disk(&ARGS);
    let server = serve();
    let actors = run("RocksDB", &server);
    server.terminate();
    let server = serve();
    check_all(&server, &actors);
    server.kill();
    check_all(&serve(), &actors);
}
