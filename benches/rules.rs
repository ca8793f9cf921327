//! Cost of matching with 10, 1,000 and 10,000 rules, which must not grow in proportion.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::string_slice,
    clippy::unwrap_used,
    reason = "a benchmark may panic, and measures"
)]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use divvy::config::{self, Format};
use divvy::rules::{Operation, RuleSet, Scratch};

const SIZES: [usize; 3] = [10, 1_000, 10_000];

/// A kind of rules: the header of rule number `i`, and an operation that this rule answers.
struct Kind {
    name: &'static str,
    header: fn(usize) -> String,
    operation: fn(usize) -> Operation,
}

fn get(path: &str) -> Operation {
    [("method", "GET"), ("path", path), ("ip", "192.168.1.1")].into_iter().collect()
}

const KINDS: [Kind; 5] = [
    Kind {
        name: "values",
        header: |i| format!("method=GET path=/service/{i} ip=*"),
        operation: |i| get(&format!("/service/{i}")),
    },
    Kind {
        name: "prefixes",
        header: |i| format!("method=GET path=/service-{i}/* ip=*"),
        operation: |i| get(&format!("/service-{i}/users/17")),
    },
    Kind {
        name: "infixes",
        header: |i| format!("method=GET path=/*/service-{i}/*.json ip=*"),
        operation: |i| get(&format!("/v1/service-{i}/users/17.json")),
    },
    Kind {
        // Each value occurs in a hundred rules. Only the combination of both identifies a rule.
        name: "pairs",
        header: |i| format!("tenant={} path=/service/{}", i / 100, i % 100),
        operation: |i| {
            let (tenant, path) = ((i / 100).to_string(), format!("/service/{}", i % 100));
            [("tenant", tenant.as_str()), ("path", path.as_str())].into_iter().collect()
        },
    },
    Kind {
        // Each rule has its own key.
        name: "keys",
        header: |i| format!("method=GET key{i}=*"),
        operation: |i| [("method", "GET"), (format!("key{i}").as_str(), "x")].into_iter().collect(),
    },
];

fn rules(kind: &Kind, count: usize) -> RuleSet {
    let section = |header: String| format!("[{header}]\ncreditLimit = 100\nresetSeconds = 60\n");
    let headers = (0..count - 1).map(kind.header).chain(["default".to_owned()]);
    let text: String = headers.map(section).collect();
    config::parse(&text, Format::Ini, "bench.ini").expect("the rules are valid").rules
}

fn matching(c: &mut Criterion) {
    for kind in &KINDS {
        let mut group = c.benchmark_group(format!("rules/{}", kind.name));
        for count in SIZES {
            let rules = rules(kind, count);
            let mut scratch = Scratch::default();
            let operations =
                [("first", (kind.operation)(0)), ("last", (kind.operation)(count - 2)), ("default", get("/other"))];
            for (which, operation) in operations {
                group.bench_function(BenchmarkId::new(which, count), |b| {
                    b.iter(|| rules.matches(black_box(&operation), &mut scratch).count())
                });
            }
        }
    }
}

fn loading(c: &mut Criterion) {
    let mut group = c.benchmark_group("rules/load");
    group.sample_size(10);
    for kind in &KINDS {
        group.bench_function(BenchmarkId::new(kind.name, 10_000), |b| b.iter(|| rules(kind, 10_000)));
    }
}

criterion_group!(benches, matching, loading);
criterion_main!(benches);
