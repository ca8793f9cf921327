//! The whole path of a burst of 32 hits except for the socket: bytes → requests → rules → store → verdicts → bytes. Run
//! it with `cargo bench --bench pipeline`.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::string_slice,
    clippy::unwrap_used,
    reason = "a benchmark may panic, and measures"
)]

use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use divvy::clock::{Clock, ceil_seconds};
use divvy::config::{self, Format};
use divvy::limiter::{ActiveRules, CounterNames, Intent, Limiter, PlanBuilder, Scope};
use divvy::metrics::Metrics;
use divvy::protocol::command::Command;
use divvy::protocol::line::{LineDecoder, parse_request, write_verdict};
use divvy::protocol::resp::{Decoder, Limits, ReplyWriter, Version};
use divvy::rules::Operation;
use divvy::store::{Backend, RocksOptions, RocksStore, Store};
use tokio::runtime::Runtime;

const BURST: usize = 32;
const RULES: &str = "[method=GET path=/status]\ncreditLimit=1000\nresetSeconds=60\n\
    [method=GET path=/pantry/* ip=*]\ncreditLimit=1000000000\nresetSeconds=3600\nactorField=ip\n\
    [default]\ncreditLimit=0\nresetSeconds=0\n";

fn line_burst() -> Vec<u8> {
    (0..BURST).flat_map(|i| format!("HIT method=GET path=/pantry/cookies ip=10.0.0.{i}\n").into_bytes()).collect()
}

fn resp_burst() -> Vec<u8> {
    let request = |i| {
        let ip = format!("ip=10.0.0.{i}");
        format!(
            "*4\r\n$9\r\nDIVVY.HIT\r\n$10\r\nmethod=GET\r\n$20\r\npath=/pantry/cookies\r\n${}\r\n{ip}\r\n",
            ip.len()
        )
    };
    (0..BURST).flat_map(|i| request(i).into_bytes()).collect()
}

fn pipeline(c: &mut Criterion) {
    let clock = Clock::system();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let rules = config::parse(RULES, Format::Ini, "bench.ini").expect("valid rules").rules;
    let options = RocksOptions { cache_memory: 64 << 20, clock, ..RocksOptions::default() };
    let store = Backend::Rocks(RocksStore::open(dir.path(), options).expect("a new directory"));
    let metrics = Metrics::new();
    let limiter = Limiter::new(Some(ActiveRules::new(rules, &metrics, CounterNames::Usual)), store, clock, metrics);
    let runtime = Runtime::new().expect("a runtime");
    let (mut builder, mut operation, mut output) = (PlanBuilder::default(), Operation::new(), Vec::new());

    let mut group = c.benchmark_group("pipeline");
    group.throughput(Throughput::Elements(BURST as u64)).measurement_time(Duration::from_secs(3));
    group.bench_function("line protocol, rocksdb, wal", |b| {
        let burst = line_burst();
        let mut decoder = LineDecoder::new(1 << 14);
        b.iter(|| {
            limiter.begin(&mut builder, &Scope::EVERYTHING);
            let mut rest = burst.as_slice();
            while let Ok(Some(line)) = decoder.next_line(rest) {
                parse_request(line.text, &mut operation, 256).expect("a request");
                builder.add(&operation, Intent::Hit, None);
                rest = &rest[line.consumed..];
            }
            let mut plan = builder.build();
            runtime.block_on(limiter.apply(&mut plan));
            output.clear();
            for index in 0..plan.report().len() {
                let verdict = plan.report().verdict(index).expect("a verdict");
                write_verdict(&mut output, verdict.allowed, verdict.credit, ceil_seconds(verdict.reset_ns));
            }
            builder.reuse(plan);
        });
    });
    group.bench_function("RESP, rocksdb, wal", |b| {
        let burst = resp_burst();
        let mut decoder = Decoder::new(Limits::default());
        b.iter(|| {
            limiter.begin(&mut builder, &Scope::EVERYTHING);
            let mut rest = burst.as_slice();
            while let Ok(Some(consumed)) = decoder.decode(rest) {
                let Ok(Command::Ask(Intent::Hit, hit)) = Command::parse(decoder.arguments(rest)) else {
                    panic!("a hit")
                };
                hit.pairs.read_into(&mut operation, 256).expect("pairs");
                builder.add(&operation, Intent::Hit, None);
                rest = &rest[consumed..];
                if rest.is_empty() {
                    break;
                }
            }
            let mut plan = builder.build();
            runtime.block_on(limiter.apply(&mut plan));
            output.clear();
            let mut reply = ReplyWriter::new(&mut output, Version::Resp2);
            for index in 0..plan.report().len() {
                let verdict = plan.report().verdict(index).expect("a verdict");
                reply.verdict(verdict.allowed, verdict.credit, ceil_seconds(verdict.reset_ns));
            }
            builder.reuse(plan);
        });
    });
    group.finish();
    runtime.block_on(limiter.store().close()).expect("the store closes");
}

criterion_group!(benches, pipeline);
criterion_main!(benches);
