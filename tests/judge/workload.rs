//! Clients that work on many counters at once, and record a history of each.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rand::rngs::Xoshiro256PlusPlus as Rng;
use rand::{RngExt, SeedableRng};

use super::fronts::{Addresses, Client, Commands, Counter, Front, Known, Sent, has};
use super::history::{History, Operation, Request, now};
use super::models::{Credits, Flow, Loss, Model, Refills};

/// Credits of every counter.
pub const LIMIT: u64 = 8;
/// Windows of [`Kind::Brief`], in milliseconds.
const BRIEF: u64 = 400;

pub const RULES: &str = "
[kind=fixed user=*] creditLimit=8 resetSeconds=36000 actorField=user
[kind=sliding-window user=*] creditLimit=8 resetSeconds=3000000000 algorithm=sliding-window actorField=user
[kind=sliding-log user=*] creditLimit=8 resetSeconds=36000 algorithm=sliding-log actorField=user
[kind=token-bucket user=*] creditLimit=8 resetSeconds=36000 algorithm=token-bucket actorField=user
[kind=leaky-bucket user=*] creditLimit=1 resetSeconds=360000 algorithm=leaky-bucket burst=8 actorField=user
[kind=debt user=*] creditLimit=8 resetSeconds=36000 overrun=debt actorField=user
[kind=concurrency user=*] creditLimit=8 resetSeconds=600 algorithm=concurrency actorField=user
[kind=brief user=*] creditLimit=8 resetSeconds=0.4 actorField=user
[kind=refilling user=*] creditLimit=8 resetSeconds=1 algorithm=token-bucket refillCredits=2 refillSeconds=0.2 actorField=user
[kind=leaking user=*] creditLimit=10 resetSeconds=1 algorithm=leaky-bucket burst=8 actorField=user
[kind=rolling user=*] creditLimit=8 resetSeconds=0.4 algorithm=sliding-log actorField=user
[default] creditLimit=0
";

/// A kind of counter. Only the last five give credits back while a history lasts, unless a client does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Fixed,
    SlidingWindow,
    SlidingLog,
    TokenBucket,
    LeakyBucket,
    Debt,
    Concurrency,
    Throttle,
    Increx,
    /// A bucket of `RL.REDUCE` that refills, at times that the clients send.
    Reduce,
    /// A fixed window that ends several times during a history.
    Brief,
    /// A token bucket, a leaky bucket and a sliding log that give credits back all the time.
    Refilling,
    Leaking,
    Rolling,
}

/// The kinds whose answers do not depend on the clock.
pub const TIMELESS: [Kind; 10] = {
    use Kind::{
        Concurrency, Debt, Fixed, Increx, LeakyBucket, Reduce, SlidingLog, SlidingWindow, Throttle, TokenBucket,
    };
    [Fixed, SlidingWindow, SlidingLog, TokenBucket, LeakyBucket, Debt, Concurrency, Throttle, Increx, Reduce]
};
/// The kinds that give credits back while a history lasts.
pub const TIMED: [Kind; 4] = [Kind::Brief, Kind::Refilling, Kind::Leaking, Kind::Rolling];
pub const ALL_FRONTS: [Front; 4] = [Front::Line, Front::Resp, Front::Http, Front::Grpc];

/// How many histories overlap, and how long they last.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Histories that a lane works on by turns.
    pub group: usize,
    /// Turns of each history.
    pub turns: usize,
    /// Longest pause between two turns.
    pub pause: Duration,
}

/// Lanes work side by side, and the clients of a lane on one history at a time.
const LANES: usize = 3;
const CLIENTS: usize = 3;
/// Most requests of a client in a turn.
const BURST: usize = 3;
/// A client that got no answer waits for this long.
const BACK_OFF: Duration = Duration::from_millis(20);
/// A history with more unknown results than this gets no further requests, because the search would take too long.
const MOST_UNKNOWN: usize = 10;
/// A history with this many gets none until all is well again.
const UNKNOWN_WHILE_BROKEN: usize = 3;

/// Servers, and what clients do there.
pub struct Course<'a> {
    pub servers: &'a [Addresses],
    pub kinds: &'a [Kind],
    pub fronts: &'a [Front],
    pub pace: Pace,
    pub loss: Loss,
    pub seed: u64,
    pub signals: &'a Signals,
}

/// Signals of a fault to the clients.
#[derive(Debug, Default)]
pub struct Signals {
    /// Ends all histories.
    pub stop: AtomicBool,
    /// The second half of the turns waits until this is false.
    pub is_broken: AtomicBool,
}

/// The requests that clients send about a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flavor {
    /// They take, and look.
    Plain,
    /// They also send requests again.
    Retries,
    /// They do everything that the kind allows.
    Full,
}

struct Subject {
    number: u64,
    kind: Kind,
    flavor: Flavor,
    counter: Counter,
    known: Known,
    operations: Mutex<Vec<Operation>>,
    unknown: AtomicUsize,
}

/// Numbers histories, so that each has a counter of its own.
static NUMBER: AtomicUsize = AtomicUsize::new(0);

impl Course<'_> {
    /// Records histories, at least as many as asked for.
    pub fn record(&self, count: usize) -> Vec<(Model, History)> {
        let groups = AtomicUsize::new(count.div_ceil(self.pace.group));
        let recorded = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for lane in 0..LANES {
                let (groups, recorded) = (&groups, &recorded);
                scope.spawn(move || {
                    while !self.signals.stop.load(SeqCst)
                        && groups.try_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok()
                    {
                        let subjects = self.work(lane);
                        let histories =
                            subjects.into_iter().map(|subject| (self.model(subject.kind), subject.history(self.seed)));
                        recorded.lock().unwrap().extend(histories);
                    }
                });
            }
        });
        recorded.into_inner().unwrap()
    }

    /// Works on a group of histories.
    fn work(&self, lane: usize) -> Vec<Subject> {
        let subjects: Vec<_> = (0..self.pace.group).map(|_| self.subject()).collect();
        let barrier = Barrier::new(CLIENTS);
        thread::scope(|scope| {
            for client in 0..CLIENTS {
                let (subjects, barrier) = (&subjects, &barrier);
                scope.spawn(move || self.run_client(lane * CLIENTS + client, subjects, barrier));
            }
        });
        subjects
    }

    fn run_client(&self, number: usize, subjects: &[Subject], barrier: &Barrier) {
        let mut clients: Vec<_> = self.servers.iter().map(|addresses| Client::new(*addresses)).collect();
        let mut rngs: Vec<_> =
            subjects.iter().map(|one| Rng::seed_from_u64(self.seed ^ (one.number << 8) ^ number as u64)).collect();
        for turn in 0..self.pace.turns {
            if turn == self.pace.turns / 2 {
                while self.signals.is_broken.load(SeqCst) && !self.signals.stop.load(SeqCst) {
                    thread::sleep(Duration::from_millis(5));
                }
            }
            for (subject, rng) in subjects.iter().zip(&mut rngs) {
                // All clients are at one history, which makes its requests overlap.
                barrier.wait();
                for _ in 0..rng.random_range(1..=BURST) {
                    let unknown = subject.unknown.load(SeqCst);
                    let waits = self.signals.is_broken.load(SeqCst) && unknown >= UNKNOWN_WHILE_BROKEN;
                    if waits
                        || self.signals.stop.load(SeqCst)
                        || unknown > MOST_UNKNOWN
                        || !self.send(number, &mut clients, subject, rng)
                    {
                        break;
                    }
                }
                thread::sleep(self.pace.pause.mul_f64(rng.random()));
            }
        }
    }

    /// Sends a request, and records it. Returns whether it was answered.
    fn send(&self, client: usize, clients: &mut [Client], subject: &Subject, rng: &mut Rng) -> bool {
        let request = subject.draw(rng);
        let fronts: Vec<_> =
            self.fronts.iter().filter(|front| has(**front, subject.counter.commands, request)).collect();
        let front = *fronts[rng.random_range(0..fronts.len())];
        let server = rng.random_range(0..clients.len());
        let called = now();
        let sent = clients[server].send(front, &subject.counter, request, &subject.known);
        let returned = now();
        let (returned, reply, error) = match sent {
            Sent::Answered(reply) => (returned, Some(reply), None),
            Sent::Unknown(error) => (u64::MAX, None, Some(error)),
            Sent::Never => (u64::MAX, None, None),
        };
        if reply.is_some() || error.is_some() {
            let place = format!("{front:?} {}", server + 1);
            subject.operations.lock().unwrap().push(Operation {
                client,
                place,
                request,
                called,
                returned,
                reply,
                error,
            });
        }
        if reply.is_none() {
            subject.unknown.fetch_add(1, SeqCst);
            thread::sleep(BACK_OFF);
        }
        reply.is_some()
    }

    fn subject(&self) -> Subject {
        let number = NUMBER.fetch_add(1, SeqCst) as u64;
        let mut rng = Rng::seed_from_u64(self.seed ^ number);
        let kind = self.kinds[rng.random_range(0..self.kinds.len())];
        let flavors = [Flavor::Plain, Flavor::Retries, Flavor::Full, Flavor::Full];
        let flavor = if kind.flow().is_some() { Flavor::Plain } else { flavors[rng.random_range(0..4)] };
        Subject {
            number,
            kind,
            flavor,
            counter: kind.counter(number),
            known: Known::default(),
            operations: Mutex::default(),
            unknown: AtomicUsize::new(0),
        }
    }

    fn model(&self, kind: Kind) -> Model {
        if kind == Kind::Reduce {
            return Model::Refills(Refills { max: LIMIT, every: 10, tokens: 2, loss: self.loss });
        }
        if let Some(flow) = kind.flow() {
            return Model::Flow(flow);
        }
        Model::Credits(Credits {
            limit: LIMIT,
            window: (kind == Kind::Brief).then_some(BRIEF * 1_000_000),
            debt: kind == Kind::Debt,
            leases: kind == Kind::Concurrency,
            loss: self.loss,
        })
    }
}

impl Kind {
    /// Returns the flow of credits by the rule, if it gives them back all the time.
    fn flow(self) -> Option<Flow> {
        let ms = 1_000_000;
        Some(match self {
            Self::Refilling => Flow { burst: LIMIT, credits: 2, every: 200 * ms, limit: LIMIT, full_after: 1_000 * ms },
            Self::Leaking => Flow { burst: LIMIT, credits: 1, every: 100 * ms, limit: LIMIT, full_after: 800 * ms },
            Self::Rolling => Flow { burst: 0, credits: LIMIT, every: 400 * ms, limit: LIMIT, full_after: 400 * ms },
            _ => return None,
        })
    }

    fn counter(self, number: u64) -> Counter {
        let rule = match self {
            Self::Fixed => "fixed",
            Self::SlidingWindow => "sliding-window",
            Self::SlidingLog => "sliding-log",
            Self::TokenBucket => "token-bucket",
            Self::LeakyBucket => "leaky-bucket",
            Self::Debt => "debt",
            Self::Concurrency => "concurrency",
            Self::Brief => "brief",
            Self::Refilling => "refilling",
            Self::Leaking => "leaking",
            Self::Rolling => "rolling",
            Self::Throttle | Self::Increx | Self::Reduce => "",
        };
        let commands = match self {
            Self::Throttle => Commands::Throttle,
            Self::Increx => Commands::Increx,
            Self::Reduce => Commands::Reduce { every: 10, tokens: 2 },
            _ => Commands::Rules,
        };
        let name = if rule.is_empty() { format!("{self:?}:{number}") } else { format!("kind={rule} user=u{number}") };
        Counter { commands, name, limit: LIMIT, has_ttl: self != Self::Concurrency }
    }

    fn can_charge(self) -> bool {
        !matches!(self, Self::SlidingLog | Self::Concurrency | Self::Throttle | Self::Increx | Self::Reduce)
    }

    fn can_refund(self) -> bool {
        self.can_charge() || matches!(self, Self::SlidingLog | Self::Increx)
    }

    fn can_reserve(self) -> bool {
        self == Self::Concurrency || self.can_charge() && self != Self::Brief
    }
}

impl Subject {
    /// Draws a request that the kind and the flavor allow.
    fn draw(&self, rng: &mut Rng) -> Request {
        loop {
            if let Some(request) = self.try_draw(rng) {
                return request;
            }
        }
    }

    fn try_draw(&self, rng: &mut Rng) -> Option<Request> {
        if self.kind == Kind::Reduce {
            let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
            return Some(Request::Reduce { take: rng.random_range(0..=3), at: clock + rng.random_range(100..140) });
        }
        let has_rule = self.counter.commands == Commands::Rules;
        let cost = [1, 1, 1, 2, 3][rng.random_range(0..5)];
        // A key belongs to one request, and so has one cost. The numbers of hits, charges and refunds are separate.
        let key = rng.random_range(0..2);
        let keyed =
            |rng: &mut Rng| (has_rule && self.flavor != Flavor::Plain && rng.random_range(0..4) == 0).then_some(key);
        let cost_of = |key: Option<u8>| key.map_or(cost, |key| u64::from(key) + 1);
        let known = self.known.count();
        let roll = rng.random_range(0..100);
        let (takes_hits, is_full) = (self.kind != Kind::Concurrency, self.flavor == Flavor::Full);
        Some(match roll {
            0..45 if takes_hits => {
                let key = keyed(rng);
                Request::Hit { cost: cost_of(key), key }
            }
            45..55 if has_rule => Request::Peek { cost },
            55..63 if is_full && self.kind.can_refund() => {
                let key = keyed(rng);
                Request::Refund { cost: cost_of(key), key }
            }
            63..67 if is_full && self.kind.can_charge() => {
                let key = keyed(rng);
                Request::Charge { cost: cost_of(key), key }
            }
            67..83 if (is_full || !takes_hits) && self.kind.can_reserve() => {
                let name = (rng.random_range(0..3) == 0).then(|| rng.random_range(0..2));
                // A name belongs to one amount.
                Request::Reserve { amount: name.map_or(cost, |name| u64::from(name) + 2), name }
            }
            83..89 if known > 0 => Request::Commit { id: rng.random_range(0..known), cost },
            89..94 if known > 0 => Request::Release { id: rng.random_range(0..known) },
            94..97 if known > 0 => Request::Renew { id: rng.random_range(0..known) },
            97..100 if has_rule && is_full => Request::Reset,
            _ => return None,
        })
    }

    fn history(self, seed: u64) -> History {
        let mut operations = self.operations.into_inner().unwrap();
        operations.sort_by_key(|one| one.called);
        let name = format!("{} ({:?}, history {} of seed {seed})", self.counter.name, self.flavor, self.number);
        History { name, operations }
    }
}
