//! Reservation ids with a valid seal around any bytes: an id is either rejected, or is written again unchanged and can
//! be renewed, committed and released.

#![no_main]

use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use divvy::clock::Clock;
use divvy::config::{self, Format};
use divvy::limiter::{ActiveRules, CounterNames, Limiter, PlanBuilder, Scope, Settlement};
use divvy::metrics::Metrics;
use divvy::store::{Backend, MemoryStore};
use libfuzzer_sys::fuzz_target;
use tokio::runtime::{Builder, Runtime};

/// Version of the ids' layout.
const VERSION: u8 = 2;
const RULES: &str = "[user=*]\ncreditLimit = 100\nresetSeconds = 600\nactorField = user\n\n\
                     [job=*]\ncreditLimit = 3\nresetSeconds = 600\nalgorithm = concurrency\nactorField = job\n\n\
                     [default]\ncreditLimit = 5\nwindow = day\ntimezone = Asia/Tokyo\n";

static LIMITER: LazyLock<Limiter> = LazyLock::new(|| {
    let rules = config::parse(RULES, Format::Ini, "rules.ini").expect("valid rules").rules;
    let metrics = Metrics::new();
    let policy = ActiveRules::new(rules, &metrics, CounterNames::Usual);
    Limiter::new(Some(policy), Backend::Memory(MemoryStore::default()), Clock::system(), metrics)
});
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Builder::new_current_thread().build().expect("a runtime"));

fuzz_target!(|records: &[u8]| {
    let key = LIMITER.store().seal().key().expect("the key of a store in memory");
    let mut sealed = [&[VERSION], records].concat();
    sealed.extend(key.seal(&sealed));
    let text = URL_SAFE_NO_PAD.encode(sealed);
    let Ok(id) = LIMITER.read_id(text.as_bytes()) else { return };
    assert_eq!(LIMITER.write_id(id.clone()).expect("a known key"), text);
    let mut builder = PlanBuilder::default();
    LIMITER.begin(&mut builder, &Scope::EVERYTHING);
    builder.settle(&id, Settlement::Renew { ttl_seconds: None });
    builder.settle(&id, Settlement::Commit { cost: 7 });
    builder.settle(&id, Settlement::Release);
    let mut plan = builder.build();
    RUNTIME.block_on(LIMITER.apply(&mut plan));
    for index in 0..plan.report().len() {
        let _ = (plan.report().settled(index), plan.report().committed(index));
    }
});
