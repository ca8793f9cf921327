//! The comparisons. Each case is a function that starts its servers, loads them in turn, and adds rows to the table.
//!
//! Unless a subject's name says otherwise, a hit has the three fields of the README's rule: two that it names, one of
//! them with a `*`, and the actor.

mod actors;
mod builds;
mod memory;
mod offered_load;
mod tier;

use std::path::PathBuf;

use anyhow::ensure;
use serde::Serialize;

use self::builds::Builds;
use crate::divvy::{Divvy, Home, PLENTY, RESET_SECONDS, rules};
use crate::load::{Generator, Load};
use crate::peers::{self, Peers};
use crate::redis::{Fsync, Redis};
use crate::rounds::{Samples, Subject, interleave};
use crate::sample::Target;
use crate::table::Table;

/// The extent of the measurements.
#[derive(Debug, Serialize)]
pub struct Setting {
    pub rounds: u32,
    pub seconds: f64,
    /// Actors in the cases with many of them. All others have [`FEW_ACTORS`].
    pub actors: u64,
    pub directory: PathBuf,
    /// Another build of divvy to measure together with this one.
    pub against: Option<PathBuf>,
    pub peers: peers::Choice,
}

pub struct Case {
    pub name: &'static str,
    pub about: &'static str,
    pub run: fn(&Setting, &mut Table) -> anyhow::Result<()>,
    /// Whether the case runs only if it is named.
    pub is_long: bool,
}

const fn case(name: &'static str, about: &'static str, run: fn(&Setting, &mut Table) -> anyhow::Result<()>) -> Case {
    Case { name, about, run, is_long: false }
}

/// The first case is what users do, and the last one the easiest.
pub const CASES: [Case; 9] = [
    case("single", "one request in flight on each connection", single),
    case("sync", "every hit on stable storage before its reply", sync),
    case("actors", "many live counters: filling, hits, memory, disk, open loop, restart", actors::run),
    Case { is_long: true, ..case("hundred-million", "ten times as many", actors::run_tenfold) },
    case(
        "offered-load",
        "latency of an open loop, from a tenth to nine tenths of the highest throughput",
        offered_load::run,
    ),
    case("memory", "resident memory with 10,000 actors and more, up to --actors", memory::run),
    case("tier", "divvy in front of redis", tier::run),
    case("denied", "every hit is denied", denied),
    case("pipelined", "32 requests in flight on each connection", pipelined),
];

const FEW_ACTORS: u64 = 10_000;
const FEW_RULES: usize = 4;
const MANY_RULES: usize = 10_000;
const PIPELINE: u32 = 32;

const INCR: &str = "INCR hit:{}";
const RESP_HIT: &str = "DIVVY.HIT method=POST path=/v1/search/items ip={}";
const LINE_HIT: &str = "HIT method=POST path=/v1/search/items ip={}";
const HTTP_HIT: &str = "method=POST path=/v1/search/items ip={}";
const GRPC_HIT: &str = "divvy method=POST path=/v1/search/items ip={}";
/// Five counters of the same rule.
const GRPC_HIT_OF_5: &str = "divvy method=POST path=/v1/search/items ip=a{} / method=POST path=/v1/search/items ip=b{} / \
     method=POST path=/v1/search/items ip=c{} / method=POST path=/v1/search/items ip=d{} / \
     method=POST path=/v1/search/items ip=e{}";
const RESP_HIT_1: &str = "DIVVY.HIT ip={}";
const LINE_HIT_1: &str = "HIT ip={}";
const RESP_HIT_5: &str = "DIVVY.HIT method=POST path=/v1/orders/items ip={} tenant=acme plan=free";

fn single(setting: &Setting, table: &mut Table) -> anyhow::Result<()> {
    compare_with_peers("single", 1, setting, table, vec![], |divvy| {
        vec![
            Subject::new("divvy HTTP", load(divvy.http(), HTTP_HIT, 1)),
            Subject::new("divvy gRPC, five descriptors", load(divvy.grpc(), GRPC_HIT_OF_5, 1)),
        ]
    })
}

fn pipelined(setting: &Setting, table: &mut Table) -> anyhow::Result<()> {
    let (_home, many_rules) = serve(setting, "wal", MANY_RULES, PLENTY)?;
    let with_many_rules = Subject::new("divvy RESP, 10,000 rules", load(many_rules.resp(), RESP_HIT, PIPELINE));
    compare_with_peers("pipelined", PIPELINE, setting, table, vec![with_many_rules], |divvy| {
        vec![
            Subject::new("divvy RESP, five fields", load(divvy.resp(), RESP_HIT_5, PIPELINE)),
            Subject::new("divvy RESP, one field", load(divvy.resp(), RESP_HIT_1, PIPELINE)),
            Subject::new("divvy line, one field", load(divvy.line(), LINE_HIT_1, PIPELINE)),
        ]
    })
}

/// Compares `INCR` with other rate limiters, each build of divvy, and more loads.
fn compare_with_peers(
    case: &'static str,
    pipeline: u32,
    setting: &Setting,
    table: &mut Table,
    others: Vec<Subject>,
    of_build: impl Fn(&Divvy) -> Vec<Subject>,
) -> anyhow::Result<()> {
    let redis = Redis::start(&setting.directory, Fsync::EverySecond)?;
    let builds = Builds::serve(setting, "wal", PLENTY)?;
    let peers = Peers::start(&setting.peers, &setting.directory, &redis, GRPC_HIT, table)?;
    let mut subjects = vec![
        Subject::new("redis INCR", load(redis.target(), INCR, pipeline)),
        Subject::new("redis, Divvy's script", load(redis.target(), &script(&redis, PLENTY)?, pipeline)),
    ];
    let of_peers = peers.peers.iter();
    subjects.extend(of_peers.map(|peer| Subject::new(&peer.name, load(peer.target.clone(), &peer.command, pipeline))));
    subjects.extend(builds.subjects(|divvy| {
        let mut subjects = vec![
            Subject::new("divvy RESP", load(divvy.resp(), RESP_HIT, pipeline)),
            Subject::new("divvy line", load(divvy.line(), LINE_HIT, pipeline)),
            Subject::new("divvy CL.THROTTLE", load(divvy.resp(), &peers::throttle("CL.THROTTLE"), pipeline)),
            Subject::new("divvy gRPC", load(divvy.grpc(), GRPC_HIT, pipeline)),
        ];
        subjects.extend(of_build(divvy));
        subjects
    }));
    subjects.extend(others);
    let samples = compare(case, setting, &subjects, table)?;
    for (subject, samples) in subjects.iter().zip(&samples).skip(1) {
        ensure!(samples.most_denied() == 0.0, "{} denied a hit: its actors have credit", subject.name);
    }
    Ok(())
}

fn sync(setting: &Setting, table: &mut Table) -> anyhow::Result<()> {
    let redis = Redis::start(&setting.directory, Fsync::Always)?;
    let (_home, divvy) = serve(setting, "sync", FEW_RULES, PLENTY)?;
    let subjects = [
        Subject::new("redis INCR, appendfsync always", load(redis.target(), INCR, 1)),
        Subject::new("divvy RESP", load(divvy.resp(), RESP_HIT, 1)),
        Subject::new("divvy RESP, one field", load(divvy.resp(), RESP_HIT_1, 1)),
    ];
    compare("sync", setting, &subjects, table)?;
    Ok(())
}

fn denied(setting: &Setting, table: &mut Table) -> anyhow::Result<()> {
    const ONE_CREDIT: u64 = 1;
    let redis = Redis::start(&setting.directory, Fsync::EverySecond)?;
    let (_home, divvy) = serve(setting, "wal", FEW_RULES, ONE_CREDIT)?;
    let subjects = [
        Subject::new("redis, Divvy's script", load(redis.target(), &script(&redis, ONE_CREDIT)?, PIPELINE)),
        Subject::new("divvy RESP", load(divvy.resp(), RESP_HIT, PIPELINE)),
        Subject::new("divvy line", load(divvy.line(), LINE_HIT, PIPELINE)),
        Subject::new("divvy RESP, one field", load(divvy.resp(), RESP_HIT_1, PIPELINE)),
    ];
    for subject in &subjects {
        subject.load.fill()?;
    }
    let samples = compare("denied", setting, &subjects, table)?;
    for (subject, samples) in subjects.iter().zip(&samples) {
        ensure!(samples.least_denied() == 1.0, "{} allowed a hit: its actors had used up their credit", subject.name);
    }
    Ok(())
}

/// Starts a server with rules that give every actor `credit_limit`. Dropping its home removes the data directory.
fn serve(
    setting: &Setting,
    durability: &'static str,
    count: usize,
    credit_limit: u64,
) -> anyhow::Result<(Home, Divvy)> {
    let home = Home::new(&setting.directory, durability, &rules(count, credit_limit))?;
    let divvy = home.start()?;
    Ok((home, divvy))
}

fn script(redis: &Redis, credit_limit: u64) -> anyhow::Result<String> {
    redis.load_divvy_script(credit_limit, RESET_SECONDS)
}

fn load(target: Target, command: &str, pipeline: u32) -> Load {
    Load {
        target,
        command: command.to_owned(),
        pipeline,
        actors: FEW_ACTORS,
        distribution: "uniform",
        rate: None,
        generator: Generator::DivvyBench,
    }
}

fn over(load: Load, actors: u64, distribution: &'static str) -> Load {
    Load { actors, distribution, ..load }
}

fn compare(
    case: &'static str,
    setting: &Setting,
    subjects: &[Subject],
    table: &mut Table,
) -> anyhow::Result<Vec<Samples>> {
    let samples = interleave(subjects, setting.rounds, setting.seconds)?;
    table.add_rows(case, subjects, &samples);
    Ok(samples)
}
