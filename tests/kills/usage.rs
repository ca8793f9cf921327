//! Hits, charges, refunds, idempotent requests and reservations, on counters of every algorithm and on a stack of them.
//! A client without an answer repeats its request if it has a key. Then every balance equals the usage.

use std::collections::HashMap;
use std::ops::AddAssign;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};

use rand::RngExt;
use rand::rngs::Xoshiro256PlusPlus as Rng;

use super::campaign::{Campaign, kill_divvy, kill_redis, send, words};
use crate::plans::RHYTHMS;
use crate::support::{HttpClient, RespClient, Server};

const CREDITS: i64 = 1_000_000_000;
/// Credits charged at the start, so that refunds never reach the limit.
const CHARGED: i64 = 100_000_000;
const USERS: usize = 3;
const PIPELINE: usize = 8;
const FLAGS: [&str; 2] = ["--max-reservation-ttl", "10m"];
/// A long campaign makes more reservations than the default bound, and all of them are remembered. Redis has no bound.
const MORE_RESERVATIONS: [&str; 2] = ["--max-reservations", "10000000"];
/// Longer than a round of a campaign, in seconds.
const TTL: &str = "TTL 600";

/// Returns a rule for each algorithm, and a stack of all algorithms and a limit for all users together.
fn rules() -> String {
    let rule = |fields: &str, (algorithm, rhythm): (&str, &str), more: &str| {
        // This bucket leaks a credit per month.
        let limit = if algorithm == "leaky" { format!("1\nburst = {CREDITS}") } else { CREDITS.to_string() };
        format!("[{fields} user=*]\ncreditLimit = {limit}\n{rhythm}\nactorField = user\n{more}{algorithm}\n\n")
    };
    let alone = RHYTHMS.map(|rhythm| rule(&format!("by={}", rhythm.0), rhythm, "overrun = debt\nlabel = "));
    let stacked = RHYTHMS.map(|rhythm| rule("tenant=*", rhythm, "matchPolicy = and\nlabel = stack-"));
    let tenant = format!("[tenant=*]\ncreditLimit = {CREDITS}\nresetSeconds = 2592000\nlabel = tenant\n\n");
    alone.concat() + &stacked.concat() + &tenant + "[default]\ncreditLimit = 0\n"
}

/// A user's counters: those of one rule, or those of the stack, which all have taken the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Target {
    algorithm: Option<&'static str>,
    user: usize,
}

impl Target {
    fn all() -> impl Iterator<Item = Self> {
        let algorithms = RHYTHMS.into_iter().map(|(algorithm, _)| Some(algorithm)).chain([None]);
        algorithms.flat_map(|algorithm| (0..USERS).map(move |user| Self { algorithm, user }))
    }

    fn random(rng: &mut Rng) -> Self {
        let all: Vec<_> = Self::all().collect();
        all[rng.random_range(0..all.len())]
    }

    fn pairs(self) -> String {
        match self.algorithm {
            Some(algorithm) => format!("by={algorithm} user=u{}", self.user),
            None => format!("tenant=t user=u{}", self.user),
        }
    }

    /// Returns the usage of each of its counters.
    fn used(self, http: &mut HttpClient) -> i64 {
        let labels = match self.algorithm {
            Some(algorithm) => vec![algorithm.to_owned()],
            None => RHYTHMS.map(|(algorithm, _)| format!("stack-{algorithm}")).into(),
        };
        let used: Vec<_> = labels.iter().map(|label| used(http, label, &format!("u{}", self.user))).collect();
        assert!(used.iter().all(|one| *one == used[0]), "a part of a group: {used:?} of {self:?}");
        used[0]
    }
}

fn used(http: &mut HttpClient, rule: &str, actor: &str) -> i64 {
    let listed = http.get(&format!("/v1/counters?rule={rule}&actor={actor}"), &[]).json();
    CREDITS - listed["counters"][0]["balance"].as_i64().unwrap_or_else(|| panic!("{rule} {actor}: {listed}"))
}

/// A hit, a charge or a refund.
#[derive(Debug)]
struct Request {
    target: Target,
    command: String,
    /// Credits that it takes if it is carried out.
    effect: i64,
    has_key: bool,
    /// The reply, unless it is an error.
    reply: Option<String>,
}

impl Request {
    fn random(rng: &mut Rng) -> Self {
        let (target, mut cost) = (Target::random(rng), rng.random_range(1..100));
        let (verb, mut effect) = [("HIT", cost), ("CHARGE", cost), ("REFUND", -cost)][rng.random_range(0..3)];
        // A hit that costs more than the stack allows takes nothing from any rule.
        if target.algorithm.is_none() && verb == "HIT" && rng.random_bool(0.25) {
            (cost, effect) = (CREDITS + 1, 0);
        }
        // The rules of a stack are charged one by one. After a crash in between, only a repetition charges the others.
        let is_divisible = target.algorithm.is_none() && verb != "HIT";
        let has_key = is_divisible || rng.random_bool(0.5);
        let key = if has_key { format!(" ID {:016x}", rng.random::<u64>()) } else { String::new() };
        let command = format!("DIVVY.{verb} {} COST {cost}{key}", target.pairs());
        Self { target, command, effect, has_key, reply: None }
    }

    fn note(&mut self, reply: Option<String>) {
        self.reply = reply.filter(|reply| reply.starts_with('['));
        if let Some(reply) = self.reply.as_ref().filter(|_| self.command.starts_with("DIVVY.HIT")) {
            assert!(reply.starts_with(if self.effect > 0 { "[1 " } else { "[0 " }), "{}: {reply}", self.command);
        }
    }

    /// Sends a request with a key again if there was no answer, and sometimes if there was one.
    fn repeat(&mut self, client: &mut RespClient, place: usize) {
        if self.has_key && (self.reply.is_none() || place.is_multiple_of(8)) {
            let first = self.reply.take();
            let again = client.command(&self.command);
            self.note(Some(again.clone()));
            assert!(self.reply.is_some() && first.is_none_or(|first| first == again), "{}: {again}", self.command);
            assert_eq!(client.command(&self.command), again, "{}", self.command);
        }
    }
}

/// A client's plan for a reservation, and the answer if one arrived.
#[derive(Debug, Clone)]
enum End {
    /// Commits this cost. The answer is the balance.
    Commit(i64, Option<i64>),
    /// Releases it. The answer says whether something was freed.
    Release(Option<bool>),
    /// Renews it, and leaves it open.
    Renew(Option<bool>),
}

/// A reservation from its client's point of view.
#[derive(Debug)]
struct Reservation {
    target: Target,
    name: String,
    amount: i64,
    id: Option<String>,
    end: End,
}

impl Reservation {
    fn random(rng: &mut Rng) -> Self {
        let end = match rng.random_range(0..6) {
            0 => End::Release(None),
            1 => End::Renew(None),
            _ => End::Commit(rng.random_range(0..150), None),
        };
        let (target, name) = (Target::random(rng), format!("{:016x}", rng.random::<u64>()));
        Self { target, name, amount: rng.random_range(1..100), id: None, end }
    }

    fn reserve(&self) -> String {
        format!("DIVVY.RESERVE {} AMOUNT {} {TTL} ID {}", self.target.pairs(), self.amount, self.name)
    }

    fn settle(&self) -> String {
        let id = self.id.as_deref().unwrap_or_default();
        match self.end {
            End::Commit(cost, _) => format!("DIVVY.COMMIT {id} COST {cost}"),
            End::Release(_) => format!("DIVVY.RELEASE {id}"),
            End::Renew(_) => format!("DIVVY.RENEW {id} {TTL}"),
        }
    }

    fn note_reserved(&mut self, reply: &str) {
        self.id = words(reply).map(|words| {
            assert_eq!(words[0], "1", "{self:?}: {reply}");
            words[3].clone()
        });
    }

    fn note_settled(&mut self, reply: &str) {
        let number = || reply.parse::<u64>().ok();
        match &mut self.end {
            End::Commit(_, balance) => *balance = words(reply).map(|words| words[0].parse().unwrap()),
            End::Release(freed) => *freed = number().map(|number| number == 1),
            End::Renew(renewed) => *renewed = number().map(|seconds| seconds > 0),
        }
    }

    /// Repeats unanswered requests, and checks that answered ones are still settled. Returns the credits used.
    fn settle_again(&mut self, client: &mut RespClient) -> i64 {
        // A released reservation is forgotten, so repeating it would make a new one.
        if !matches!(self.end, End::Release(Some(_))) || self.id.is_none() {
            let known = self.id.take();
            let reserved = client.command(&self.reserve());
            self.note_reserved(&reserved);
            assert!(self.id.is_some(), "{reserved}: {self:?}");
            // A release that was carried out freed the name for another reservation.
            let was_freed = matches!(self.end, End::Release(None));
            assert!(known.is_none() || known == self.id || was_freed, "{known:?}: {self:?}");
        }
        let before = self.end.clone();
        let settled = client.command(&self.settle());
        self.note_settled(&settled);
        match (before, &self.end) {
            (End::Commit(cost, reported), End::Commit(_, Some(balance))) => {
                let how = settled.trim_end_matches(']').rsplit(' ').next().unwrap();
                match reported {
                    Some(reported) => assert_eq!((*balance, how), (reported, "repeated"), "{self:?}"),
                    None => assert!(["settled", "repeated"].contains(&how), "{settled}: {self:?}"),
                }
                cost
            }
            (End::Release(reported), End::Release(Some(freed))) => {
                assert!(reported != Some(true) || !freed, "{self:?}");
                0
            }
            (End::Renew(reported), End::Renew(Some(true))) => {
                assert_ne!(reported, Some(false), "{self:?}");
                // The reservation was left open, and still is.
                let id = self.id.as_deref().unwrap();
                let committed = client.command(&format!("DIVVY.COMMIT {id} COST 7"));
                assert!(committed.ends_with(" settled]"), "{committed}: {self:?}");
                7
            }
            _ => panic!("{settled}: {self:?}"),
        }
    }
}

/// The known usage of each target, and what may have been added since.
#[derive(Default)]
struct Usage {
    used: HashMap<Target, i64>,
    acknowledged: usize,
    lost: usize,
}

impl Campaign for Usage {
    const VARIABLE: &'static str = "DIVVY_TEST_USAGE_KILLS";
    const PROBE: &'static str = "DIVVY.CHARGE by=tokens user=other COST 0";
    type Work = (Vec<Request>, Vec<Reservation>);

    fn begin(server: &Server) -> Self {
        let mut client = server.resp();
        let mut usage = Self::default();
        for target in Target::all() {
            assert!(client.command(&format!("DIVVY.CHARGE {} COST {CHARGED}", target.pairs())).starts_with('['));
            usage.used.insert(target, CHARGED);
        }
        usage
    }

    fn work(stop: Arc<AtomicBool>, mut client: RespClient, mut rng: Rng) -> JoinHandle<Self::Work> {
        thread::spawn(move || {
            let (mut requests, mut reservations) = (Vec::new(), Vec::new());
            let mut is_there = true;
            while is_there && !stop.load(Relaxed) {
                let mut asked: Vec<_> = (0..PIPELINE).map(|_| Request::random(&mut rng)).collect();
                let mut made: Vec<_> = (0..PIPELINE / 2).map(|_| Reservation::random(&mut rng)).collect();
                let commands = asked.iter().map(|request| request.command.clone());
                send(&mut client, commands.chain(made.iter().map(Reservation::reserve)));
                asked.iter_mut().for_each(|request| request.note(client.try_read_reply()));
                made.iter_mut().for_each(|it| it.note_reserved(&client.try_read_reply().unwrap_or_default()));
                is_there = made.iter().all(|reservation| reservation.id.is_some());
                let known: Vec<_> = made.iter_mut().filter(|reservation| reservation.id.is_some()).collect();
                send(&mut client, known.iter().map(|reservation| reservation.settle()));
                for reservation in known {
                    reservation.note_settled(&client.try_read_reply().unwrap_or_default());
                }
                requests.append(&mut asked);
                reservations.append(&mut made);
            }
            (requests, reservations)
        })
    }

    /// Settles everything. Then checks that each usage is the known one, plus at most what has no answer and no key.
    fn verify(&mut self, server: &Server, work: Vec<Self::Work>) {
        let mut client = server.resp();
        let [mut least, mut most] = [self.used.clone(), self.used.clone()];
        let mut add = |target: Target, at_least: i64, at_most: i64| {
            least.get_mut(&target).unwrap().add_assign(at_least);
            most.get_mut(&target).unwrap().add_assign(at_most);
        };
        for (requests, reservations) in work {
            for (place, mut request) in requests.into_iter().enumerate() {
                request.repeat(&mut client, place);
                match request.reply {
                    Some(_) => add(request.target, request.effect, request.effect),
                    None => add(request.target, request.effect.min(0), request.effect.max(0)),
                }
                self.acknowledged += usize::from(request.reply.is_some());
                self.lost += usize::from(request.reply.is_none());
            }
            for mut reservation in reservations {
                let cost = reservation.settle_again(&mut client);
                add(reservation.target, cost, cost);
            }
        }
        let mut http = server.http();
        for (target, known) in &mut self.used {
            *known = target.used(&mut http);
            let expected = least[target]..=most[target];
            assert!(expected.contains(known), "{target:?}: {known} used, not {expected:?}");
        }
        let of_users: i64 =
            self.used.iter().filter(|(target, _)| target.algorithm.is_none()).map(|(_, used)| used).sum();
        assert_eq!(used(&mut http, "tenant", ""), of_users, "the tenant and its users disagree");
    }
}

fn report(usage: &Usage) {
    assert!(usage.acknowledged > 0);
    println!("{} requests acknowledged, {} neither answered nor repeated", usage.acknowledged, usage.lost);
}

#[test]
#[cfg_attr(not(feature = "rocksdb"), ignore = "needs the embedded store")]
fn sigkill_of_divvy_neither_loses_nor_doubles_usage() {
    report(&kill_divvy(&rules(), &[FLAGS, MORE_RESERVATIONS].concat()));
}

#[test]
fn sigkill_of_redis_neither_loses_nor_doubles_usage() {
    report(&kill_redis(&rules(), &FLAGS));
}
