//! The stages of a hit, and whole hits. Each stage repeats its work for a given number of hits.

use std::fmt::Write;
use std::hint::black_box;

use divvy::access::{self, Authority, Category, Users};
use divvy::algorithm::{Ask, FixedWindow, Limit};
use divvy::clock::{Clock, NANOS_PER_SECOND, ceil_seconds};
use divvy::config::{self, Format};
use divvy::limiter::exceptions::{ExceptionKind, ExceptionTarget, ExceptionTerms};
use divvy::limiter::{ActiveRules, CounterNames, Intent, Limiter, Plan, PlanBuilder, Reserve, Scope, Settlement};
use divvy::metrics::Metrics;
use divvy::protocol::command;
use divvy::protocol::line::{LineDecoder, parse_request, write_verdict};
use divvy::protocol::resp::{Decoder, Limits, ReplyWriter, Version};
use divvy::rules::{Operation, RuleSet, Scratch};
use divvy::store::{Action, Backend, Batch, Bounds, MemoryStore, RocksOptions, RocksStore, Store};
use tempfile::TempDir;
use tokio::runtime::Runtime;

pub struct Stage {
    pub name: &'static str,
    pub run: fn(u64),
    /// Whether cache misses are counted, too.
    pub has_many_counters: bool,
}

const fn stage(name: &'static str, run: fn(u64)) -> Stage {
    Stage { name, run, has_many_counters: false }
}

pub const STAGES: [Stage; 21] = [
    stage("codec: line protocol", line),
    stage("codec: RESP", resp),
    stage("rights of a user", rights),
    stage("matching: 4 rules", |hits| matching(4, hits)),
    stage("matching: 10,000 rules", |hits| matching(10_000, hits)),
    stage("store: RocksDB's hot table", |hits| store(1_000, hits)),
    stage("three fields: line protocol", line_hits),
    stage("three fields: RESP", |hits| resp_hits(RULES, Scope::EVERYTHING, hits)),
    stage("three fields: RESP, within a scope", |hits| resp_hits(RULES, Scope::new(["*"], []), hits)),
    stage("three fields: RESP, without ranking", |hits| resp_hits_of(HitBench::without_ranking(RULES), hits)),
    stage("three fields: RESP, addresses", |hits| address_hits(0, hits)),
    stage("three fields: RESP, addresses and 100,000 networks", |hits| address_hits(100_000, hits)),
    stage("three fields: RESP, in memory", |hits| blocked_hits("by-ip", 0, "", hits)),
    stage("three fields: RESP, in memory, 100,000 blocks of a rule", |hits| blocked_hits("by-ip", 100_000, "", hits)),
    stage("three fields: RESP, in memory, 100,000 blocks of all rules", |hits| blocked_hits("*", 100_000, "", hits)),
    stage("three fields: RESP, in memory, 100,000 blocks of networks", |hits| blocked_hits("*", 100_000, "/24", hits)),
    stage("a stack of three: RESP", |hits| resp_hits(STACK, Scope::EVERYTHING, hits)),
    stage("two hits of one bucket, from the limiter on", two_hits),
    stage("reserve and commit next to 10 reservations", |hits| reserve_and_commit(10, hits)),
    stage("reserve and commit next to 10,000 reservations", |hits| reserve_and_commit(10_000, hits)),
    Stage { has_many_counters: true, ..stage("store: 1,000,000 counters", many_counters) },
];
/// Number of counters, and of hits, of the stage with many counters.
pub const MANY: u64 = 1_000_000;
/// Function that performs the hits of that stage, apart from the set-up.
pub const HITS_THAT_COUNT: &str = "hits_that_count";
/// Number of hits in a batch.
const BATCH: u64 = 32;

fn line(hits: u64) {
    let (mut decoder, mut operation, mut out) = (LineDecoder::new(1 << 14), Operation::new(), Vec::new());
    for _ in 0..hits {
        let line =
            decoder.next_line(black_box(b"HIT method=GET path=/pantry/cookies ip=192.168.1.1\n")).unwrap().unwrap();
        parse_request(line.text, &mut operation, 256).unwrap();
        out.clear();
        write_verdict(&mut out, true, black_box(57), 60);
    }
}

fn resp(hits: u64) {
    const REQUEST: &[u8] =
        b"*4\r\n$9\r\nDIVVY.HIT\r\n$10\r\nmethod=GET\r\n$20\r\npath=/pantry/cookies\r\n$14\r\nip=192.168.1.1\r\n";
    let (mut decoder, mut operation, mut out) = (Decoder::new(Limits::default()), Operation::new(), Vec::new());
    for _ in 0..hits {
        decoder.decode(black_box(REQUEST)).unwrap().unwrap();
        let command::Command::Ask(Intent::Hit, hit) = command::Command::parse(decoder.arguments(REQUEST)).unwrap()
        else {
            unreachable!("a hit")
        };
        hit.pairs.read_into(&mut operation, 256).unwrap();
        out.clear();
        ReplyWriter::new(&mut out, Version::Resp2).verdict(true, black_box(57), 60);
    }
}

/// Brings a user's rights up to date, and checks them.
fn rights(hits: u64) {
    let users =
        access::parse("user app on cert:app -@all +@hit ~label:*", "users.acl", None).expect("a valid file").users;
    let authority =
        Authority::new(Users::new(users).expect("random bytes"), Metrics::new().access.password_hashes.clone());
    let mut identity = authority.by_certificate(&"app".into()).expect("a user");
    for _ in 0..hits {
        authority.refresh(black_box(&mut identity));
        black_box(identity.may(black_box(Category::Hit))).expect("a right");
    }
}

fn rules(count: usize) -> RuleSet {
    let mut text = String::new();
    for i in 1..count {
        let _ = write!(text, "[method=GET path=/resource-{i}/* ip=*]\ncreditLimit=9\nresetSeconds=60\nactorField=ip\n");
    }
    text.push_str("[default]\ncreditLimit=0\nresetSeconds=0\n");
    config::parse(&text, Format::Ini, "bench.ini").expect("valid rules").rules
}

fn matching(count: usize, hits: u64) {
    let rules = rules(count);
    let mut scratch = Scratch::default();
    let path = format!("/resource-{}/x", count / 2);
    let operation: Operation =
        [("method", "GET"), ("path", path.as_str()), ("ip", "192.168.1.1")].into_iter().collect();
    for _ in 0..hits {
        black_box(rules.matches(black_box(&operation), &mut scratch).last().expect("a rule").0);
    }
}

fn store(counters: u64, hits: u64) {
    let bench = StoreBench::new();
    bench.take(0..hits, counters, BATCH);
}

/// Hits each counter once, in an order unrelated to the table's.
fn many_counters(hits: u64) {
    let bench = StoreBench::new();
    // Batches are large, because the set-up is not measured.
    bench.take(0..MANY, MANY, 1024);
    hits_that_count(&bench, hits);
}

/// Valgrind finds this function by its name.
#[inline(never)]
fn hits_that_count(bench: &StoreBench, hits: u64) {
    /// Odd, and coprime to [`MANY`].
    const STRIDE: u64 = 382_123;
    bench.take((0..hits).map(|hit| hit * STRIDE), MANY, BATCH);
}

/// An embedded store in its own directory.
struct StoreBench {
    store: RocksStore,
    clock: Clock,
    runtime: Runtime,
    _dir: TempDir,
}

impl StoreBench {
    fn new() -> Self {
        let (clock, dir) = (Clock::system(), tempfile::tempdir().expect("a temporary directory"));
        let options = RocksOptions { cache_memory: 64 << 20, clock, ..RocksOptions::default() };
        let store = RocksStore::open(dir.path(), options).expect("a new directory");
        Self { store, clock, runtime: runtime(), _dir: dir }
    }

    /// Takes one credit for each of `hits`, which are numbers of counters modulo `counters`.
    fn take(&self, hits: impl Iterator<Item = u64>, counters: u64, at_once: u64) {
        let limit = Limit::FixedWindow(FixedWindow::new(1 << 40, 3600 * NANOS_PER_SECOND).expect("a limit"));
        let mut batch = Batch::default();
        let mut hits = hits.peekable();
        while hits.peek().is_some() {
            let now = self.clock.now();
            batch.begin(now);
            for hit in hits.by_ref().take(at_once as usize) {
                batch.push(limit, Action::Ask(Ask::Take { cost: 1 }), now, |key| {
                    key.extend_from_slice(b"\x01\x01\x00\x01\x04path\x06/login");
                    key.extend_from_slice(&(hit % counters).to_be_bytes());
                });
            }
            self.runtime.block_on(self.store.apply(&mut batch));
        }
    }
}

/// The whole path of a hit except for the socket: bytes, request, rules, store, verdict, bytes.
struct HitBench {
    limiter: Limiter,
    runtime: Runtime,
    builder: PlanBuilder,
    plan: Plan,
    operation: Operation,
    scope: Scope,
    output: Vec<u8>,
    _dir: Option<TempDir>,
}

/// Two fields that the first rule names, one of them with a `*`, and the actor.
const RULES: &str = "[method=POST path=/v1/search* ip=*]\ncreditLimit=1000000000\nresetSeconds=3600\nactorField=ip\n\
    [method=POST path=/v1/orders* ip=*]\ncreditLimit=1000000000\nresetSeconds=3600\nactorField=ip\n\
    [ip=*]\ncreditLimit=1000000000\nresetSeconds=3600\nactorField=ip\n\
    [default]\ncreditLimit=0\nresetSeconds=0\n";
/// Three limits on the same requests: the README's first rules, and one more.
const STACK: &str = "[method=POST path=/v1/search* ip=*]\ncreditLimit=1000000000\nresetSeconds=60\nactorField=ip\nmatchPolicy=and\n\
    [method=POST path=/v1/search* ip=*]\ncreditLimit=1000000000\nwindow=day\nactorField=ip\nmatchPolicy=and\n\
    [method=POST path=/v1/search* ip=*]\ncreditLimit=1000000000\nresetSeconds=3600\nactorField=ip\n\
    [default]\ncreditLimit=0\nresetSeconds=0\n";
/// Number of actors in whole hits.
const ACTORS: u64 = 1_024;

impl HitBench {
    fn new(rules: &str) -> Self {
        Self::with_list(rules, "")
    }

    /// Creates a bench whose rules may name the list `networks.txt`.
    fn with_list(rules: &str, list: &str) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let bounds = Bounds { max_reservations: u64::MAX, ..Bounds::default() };
        let options = RocksOptions { clock: Clock::system(), bounds, ..RocksOptions::default() };
        let store = Backend::Rocks(RocksStore::open(dir.path(), options).expect("a new directory"));
        Self { _dir: Some(dir), ..Self::on(store, rules, list) }
    }

    fn on(store: Backend, rules: &str, list: &str) -> Self {
        let files = tempfile::tempdir().expect("a temporary directory");
        std::fs::write(files.path().join("networks.txt"), list).expect("a list");
        let rules = config::parse(rules, Format::Ini, files.path().join("bench.ini")).expect("valid rules").rules;
        let metrics = Metrics::new();
        let policy = ActiveRules::new(rules, &metrics, CounterNames::Usual);
        Self {
            limiter: Limiter::new(Some(policy), store, Clock::system(), metrics).with_max_reservation_ttl(u32::MAX),
            runtime: runtime(),
            builder: PlanBuilder::default(),
            plan: Plan::default(),
            operation: Operation::new(),
            scope: Scope::EVERYTHING,
            output: Vec::new(),
            _dir: None,
        }
    }

    /// Creates a bench whose limiter does not rank actors.
    fn without_ranking(rules: &str) -> Self {
        let bench = Self::new(rules);
        Self { limiter: bench.limiter.with_top_memory(0), ..bench }
    }

    /// Begins a plan that reuses the buffers of the last one.
    fn begin(&mut self) {
        self.builder.reuse(std::mem::take(&mut self.plan));
        self.limiter.begin(&mut self.builder, &self.scope);
    }

    fn apply(&mut self) {
        self.plan = self.builder.build();
        self.runtime.block_on(self.limiter.apply(&mut self.plan));
        self.output.clear();
    }
}

/// Returns the bytes of batches of [`BATCH`] hits, one batch per group of actors.
fn bursts(hit: impl Fn(u64) -> String) -> Vec<Vec<u8>> {
    (0..ACTORS / BATCH).map(|burst| (0..BATCH).flat_map(|i| hit(burst * BATCH + i).into_bytes()).collect()).collect()
}

fn line_hits(hits: u64) {
    let mut bench = HitBench::new(RULES);
    let mut decoder = LineDecoder::new(1 << 14);
    let bursts = bursts(|actor| format!("HIT method=POST path=/v1/search/items ip={actor:012}\n"));
    for burst in bursts.iter().cycle().take((hits / BATCH) as usize) {
        bench.begin();
        let mut rest = black_box(burst.as_slice());
        while let Ok(Some(line)) = decoder.next_line(rest) {
            parse_request(line.text, &mut bench.operation, 256).expect("a request");
            bench.builder.add(&bench.operation, Intent::Hit, None);
            rest = &rest[line.consumed..];
        }
        bench.apply();
        for index in 0..bench.plan.report().len() {
            let verdict = bench.plan.report().verdict(index).expect("a verdict");
            write_verdict(&mut bench.output, verdict.allowed, verdict.credit, ceil_seconds(verdict.reset_ns));
        }
    }
}

fn resp_hits(rules: &str, scope: Scope, hits: u64) {
    let mut bench = HitBench::new(rules);
    bench.scope = scope;
    resp_hits_of(bench, hits);
}

/// Hits by addresses that are not blocked, next to `count` blocks of other addresses, or of networks with this prefix. Counters
/// are in memory, because storing the blocks would take more than the hits.
fn blocked_hits(rule: &str, count: u32, prefix: &str, hits: u64) {
    let labeled = RULES.replacen("actorField=ip\n", "actorField=ip\nlabel=by-ip\n", 1);
    let bench = HitBench::on(Backend::Memory(MemoryStore::default()), &labeled, "");
    for number in 0..count {
        let number = if prefix.is_empty() { number } else { number << 8 };
        let address = std::net::Ipv4Addr::from_bits(0xc000_0000 + number);
        let field = if rule == "*" { "ip=" } else { "" };
        let actor = format!("{field}{address}{prefix}");
        let of = ExceptionTarget { kind: ExceptionKind::Block, rule, actor: &actor };
        bench
            .runtime
            .block_on(bench.limiter.set_exception(of, ExceptionTerms::default(), &Scope::EVERYTHING))
            .expect("a block");
    }
    resp_hits_from(bench, |actor| format!("10.0.{}.{}", 100 + actor / 150, 100 + actor % 150), hits);
}

fn resp_hits_of(bench: HitBench, hits: u64) {
    resp_hits_from(bench, |actor| format!("{actor:012}"), hits);
}

/// Hits by addresses, half of them IPv4. If there are networks, a rule denies the addresses in them: none of these.
fn address_hits(networks: u64, hits: u64) {
    // Every other network, so that they do not merge.
    let network = |n: u64| match n % 2 {
        0 => format!("{}.{}.{}.0/25\n", 100 + (n >> 16), n >> 8 & 255, n & 255),
        _ => format!("2001:{:x}:{:x}::/48\n", n >> 16, n & 0xffff),
    };
    let rule = "[ip=*]\nlist=ip: networks.txt\ncreditLimit=0\nlabel=blocked\n";
    let rules = if networks == 0 { RULES.to_owned() } else { rule.to_owned() + RULES };
    let list: String = (0..networks).map(network).collect();
    let ip = |actor: u64| match actor % 2 {
        0 => format!("100.{}.{}.200", actor >> 8, actor & 255),
        _ => format!("2001:0:{:x}::1", actor & 0xfffe),
    };
    resp_hits_from(HitBench::with_list(&rules, &list), ip, hits);
}

/// Hits by actors whose `ip` is this text.
fn resp_hits_from(mut bench: HitBench, ip: impl Fn(u64) -> String, hits: u64) {
    let mut decoder = Decoder::new(Limits::default());
    let bursts = bursts(|actor| {
        let ip = format!("ip={}", ip(actor));
        let length = ip.len();
        format!(
            "*4\r\n$9\r\nDIVVY.HIT\r\n$11\r\nmethod=POST\r\n$21\r\npath=/v1/search/items\r\n\
             ${length}\r\n{ip}\r\n"
        )
    });
    for burst in bursts.iter().cycle().take((hits / BATCH) as usize) {
        bench.begin();
        let mut rest = black_box(burst.as_slice());
        while !rest.is_empty() {
            let consumed = decoder.decode(rest).expect("valid RESP").expect("a whole request");
            let Ok(command::Command::Ask(Intent::Hit, hit)) = command::Command::parse(decoder.arguments(rest)) else {
                unreachable!("a hit")
            };
            hit.pairs.read_into(&mut bench.operation, 256).expect("pairs");
            bench.builder.add(&bench.operation, Intent::Hit, None);
            rest = &rest[consumed..];
        }
        bench.apply();
        let mut reply = ReplyWriter::new(&mut bench.output, Version::Resp2);
        for index in 0..bench.plan.report().len() {
            let verdict = bench.plan.report().verdict(index).expect("a verdict");
            reply.verdict(verdict.allowed, verdict.credit, ceil_seconds(verdict.reset_ns));
        }
    }
}

/// A budget of tokens for each tenant.
const TOKENS: &str = "[tenant=*]\ncreditLimit=1000000000\nalgorithm=token-bucket\nresetSeconds=3600\nactorField=tenant\n\
    [default]\ncreditLimit=0\nresetSeconds=0\n";

/// Hits twice, as the baseline for a reservation and its commit.
fn two_hits(pairs: u64) {
    let mut bench = HitBench::new(TOKENS);
    let tenant: Operation = [("tenant", "acme")].into_iter().collect();
    for _ in 0..pairs / BATCH {
        for _ in 0..2 {
            bench.begin();
            (0..BATCH).for_each(|_| bench.builder.add(&tenant, Intent::Hit, Some(3)));
            bench.apply();
        }
    }
}

/// TTL of a reservation (seconds). Its end is rounded up to a multiple of a hundred seconds.
const LONG: u32 = 3_200;

/// Reserves and commits on a bucket with `others` reservations at many different ends. The ids are sealed for the
/// client, and the commits check the seals.
fn reserve_and_commit(others: u64, pairs: u64) {
    let mut bench = HitBench::new(TOKENS);
    let tenant: Operation = [("tenant", "acme")].into_iter().collect();
    let reserve = |ttl_seconds| Reserve { credits: 5, ttl_seconds: Some(ttl_seconds), id: None };
    // Long enough that the number of different ends, 31, does not depend on the current second.
    let ttls = (1..=31).map(|part| part * LONG).cycle().take(others as usize).collect::<Vec<_>>();
    for ttls in ttls.chunks(BATCH as usize) {
        bench.begin();
        ttls.iter().for_each(|ttl| bench.builder.add_reservation(&tenant, reserve(*ttl)));
        bench.apply();
    }
    for _ in 0..pairs / BATCH {
        bench.begin();
        (0..BATCH).for_each(|_| bench.builder.add_reservation(&tenant, reserve(LONG)));
        bench.apply();
        let reserved = (0..BATCH as usize).map(|index| bench.plan.report().reserved(index).expect("an answer"));
        let ids = reserved.map(|reserved| reserved.id.expect("it is allowed"));
        let ids: Vec<_> = ids.map(|id| bench.limiter.write_id(id).expect("a key")).collect();
        bench.begin();
        for id in &ids {
            let id = bench.limiter.read_id(black_box(id).as_bytes()).expect("the same id");
            bench.builder.settle(&id, Settlement::Commit { cost: 3 });
        }
        bench.apply();
        assert!((0..BATCH as usize).all(|index| bench.plan.report().settled(index).is_ok()), "commits are answered");
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime")
}
