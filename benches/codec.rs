//! Cost of decoding requests and encoding verdicts, one request at a time.

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

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use divvy::protocol::DEFAULT_MAX_PAIRS;
use divvy::protocol::command::Command;
use divvy::protocol::line::{self, DEFAULT_MAX_LINE, LineDecoder};
use divvy::protocol::resp::{Decoder, Limits, ReplyWriter, Version, write_request};
use divvy::rules::Operation;
use redis_protocol::resp2::decode::decode_range;

const LINE: &[u8] = b"HIT method=GET path=/pantry/cookies/chocolate-chip ip=192.168.1.1\n";
const ARGUMENTS: [&str; 4] = ["DIVVY.HIT", "method=GET", "path=/pantry/cookies/chocolate-chip", "ip=192.168.1.1"];

fn line_protocol(c: &mut Criterion) {
    let mut group = c.benchmark_group("line");
    group.throughput(Throughput::Elements(1));
    let (mut decoder, mut operation) = (LineDecoder::new(DEFAULT_MAX_LINE), Operation::new());
    group.bench_function("frame", |b| b.iter(|| decoder.next_line(black_box(LINE)).unwrap().unwrap().consumed));
    group.bench_function("request", |b| {
        b.iter(|| {
            let line = decoder.next_line(black_box(LINE)).unwrap().unwrap();
            line::parse_request(line.text, &mut operation, DEFAULT_MAX_PAIRS).unwrap();
            line.consumed
        });
    });
    let mut out = Vec::with_capacity(64);
    group.bench_function("verdict", |b| {
        b.iter(|| {
            out.clear();
            line::write_verdict(&mut out, true, black_box(57), black_box(60));
            out.len()
        });
    });
    group.finish();
}

fn resp(c: &mut Criterion) {
    let mut group = c.benchmark_group("resp");
    group.throughput(Throughput::Elements(1));
    let mut bytes = Vec::new();
    write_request(&mut bytes, &ARGUMENTS);
    let (mut decoder, mut operation) = (Decoder::new(Limits::default()), Operation::new());
    group.bench_function("frame", |b| b.iter(|| decoder.decode(black_box(&bytes)).unwrap().unwrap()));
    group.bench_function("frame by redis-protocol", |b| b.iter(|| decode_range(black_box(&bytes)).unwrap().unwrap().1));
    group.bench_function("request", |b| {
        b.iter(|| {
            let bytes = black_box(&bytes);
            let consumed = decoder.decode(bytes).unwrap().unwrap();
            match Command::parse(decoder.arguments(bytes)).unwrap() {
                Command::Ask(_, hit) => hit.pairs.read_into(&mut operation, DEFAULT_MAX_PAIRS).unwrap(),
                other => panic!("{other:?}"),
            }
            consumed
        });
    });
    let mut out = Vec::with_capacity(64);
    group.bench_function("verdict", |b| {
        b.iter(|| {
            out.clear();
            ReplyWriter::new(&mut out, Version::Resp2).verdict(true, black_box(57), black_box(60));
            out.len()
        });
    });
    group.finish();
}

criterion_group!(benches, line_protocol, resp);
criterion_main!(benches);
