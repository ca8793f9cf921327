//! Cost of a batch of 32 hits in each store, without sockets: `cargo bench --bench store`.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::string_slice,
    clippy::unwrap_used,
    reason = "a benchmark may panic, and measures"
)]

use std::num::NonZeroU64;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use divvy::algorithm::{Ask, CountBasis, FixedWindow, Limit};
use divvy::clock::{Clock, NANOS_PER_SECOND};
use divvy::store::{Action, Backend, Batch, Durability, MemoryStore, RocksOptions, RocksStore, Store};
use tokio::runtime::Runtime;

const BATCH: u64 = 32;

fn stores(dir: &std::path::Path, clock: Clock) -> Vec<(&'static str, Backend)> {
    let rocks = |name: &str, durability| {
        let options = RocksOptions { durability, cache_memory: 64 << 20, clock, ..RocksOptions::default() };
        Backend::Rocks(RocksStore::open(&dir.join(name), options).expect("a new directory"))
    };
    vec![
        ("memory", Backend::Memory(MemoryStore::default())),
        ("rocksdb, lazy", rocks("lazy", Durability::Lazy)),
        ("rocksdb, wal", rocks("wal", Durability::Wal)),
    ]
}

fn hits(c: &mut Criterion) {
    let clock = Clock::system();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let runtime = Runtime::new().expect("a runtime");
    let credits = NonZeroU64::MAX;
    let window_ns = NonZeroU64::new(3600 * NANOS_PER_SECOND).unwrap_or(NonZeroU64::MIN);
    let limit = Limit::FixedWindow(FixedWindow { credits, window_ns, basis: CountBasis::LeftOf(credits) });

    let mut group = c.benchmark_group("store");
    group.throughput(Throughput::Elements(BATCH)).measurement_time(Duration::from_secs(3));
    for (name, store) in stores(dir.path(), clock) {
        for actors in [10_000, 1_000_000] {
            let mut batch = Batch::default();
            let mut turn = 0u64;
            group.bench_function(BenchmarkId::new(name, format!("{actors} actors")), |b| {
                b.iter(|| {
                    let now = clock.now();
                    batch.begin(now);
                    for _ in 0..BATCH {
                        turn = turn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                        let actor = (turn >> 33) % actors;
                        batch.push(limit, Action::Ask(Ask::Take { cost: 1 }), now, |key| {
                            key.extend_from_slice(b"\x01\x01\x00\x01\x04path\x06/login");
                            key.extend_from_slice(&actor.to_be_bytes());
                        });
                    }
                    runtime.block_on(store.apply(&mut batch));
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, hits);
criterion_main!(benches);
