//! What is compared: one function a case, which starts its servers, loads them in turn and adds to the table.

mod actors;
mod gateways;
mod tier;

use std::path::PathBuf;

use anyhow::ensure;
use serde::Serialize;

use crate::divvy::{Divvy, Home, PLENTY, RESET_SECONDS, rules};
use crate::load::{Generator, Load, Target};
use crate::redis::{Fsync, Redis};
use crate::rounds::{Samples, Subject, interleave};
use crate::table::{Bound, Metric, Table};

/// How much is measured.
#[derive(Debug, Serialize)]
pub struct Setting {
    pub rounds: u32,
    pub seconds: f64,
    /// In the case with many actors; all others have [`FEW_ACTORS`].
    pub many_actors: u64,
    pub directory: PathBuf,
}

pub struct Case {
    pub name: &'static str,
    pub about: &'static str,
    pub run: fn(&Setting, &mut Table) -> anyhow::Result<()>,
}

pub const CASES: [Case; 8] = [
    Case { name: "pipelined", about: "32 requests in flight on each connection", run: pipelined },
    Case { name: "single", about: "one request in flight on each connection", run: single },
    Case { name: "sync", about: "every hit on stable storage before its reply", run: sync },
    Case { name: "rules", about: "10,000 rules against 4", run: many_rules },
    Case { name: "denied", about: "every hit is denied", run: denied },
    Case {
        name: "actors",
        about: "many live counters against few: memory, disk, restart, compaction",
        run: actors::run,
    },
    Case { name: "gateways", about: "HTTP and gRPC beside RESP", run: gateways::run },
    Case { name: "tier", about: "divvy in front of redis", run: tier::run },
];

const FEW_ACTORS: u64 = 10_000;
const FEW_RULES: usize = 4;
const MANY_RULES: usize = 10_000;
const PIPELINE: u32 = 32;

const INCR: &str = "INCR hit:{}";
const RESP_HIT: &str = "DIVVY.HIT ip={}";
const LINE_HIT: &str = "HIT ip={}";
const RESP_HIT_3: &str = "DIVVY.HIT method=GET path=/api/items ip={}";

fn pipelined(setting: &Setting, table: &mut Table) -> anyhow::Result<()> {
    let redis = Redis::start(&setting.directory, Fsync::EverySecond)?;
    let (_home, divvy) = serve(setting, "wal", FEW_RULES, PLENTY)?;
    let subjects = [
        Subject::new("redis INCR", load(redis.target(), INCR, PIPELINE)),
        Subject::new("redis, Divvy's script", load(redis.target(), &script(&redis, PLENTY)?, PIPELINE)),
        Subject::new("divvy RESP", load(divvy.resp(), RESP_HIT, PIPELINE)),
        Subject::new("divvy line", load(divvy.line(), LINE_HIT, PIPELINE)),
        Subject::new("divvy RESP, 3 fields", load(divvy.resp(), RESP_HIT_3, PIPELINE)),
    ];
    let samples = compare("pipelined", setting, &subjects, table)?;
    let ratio = bars("pipelined", &subjects, &samples);
    ratio(table, Metric::Cpu, 2, 0, Bound::AtMost(1.0));
    ratio(table, Metric::Cpu, 3, 0, Bound::AtMost(1.0));
    ratio(table, Metric::Cpu, 2, 1, Bound::AtMost(0.25));
    ratio(table, Metric::Cpu, 3, 1, Bound::AtMost(0.25));
    Ok(())
}

fn single(setting: &Setting, table: &mut Table) -> anyhow::Result<()> {
    let redis = Redis::start(&setting.directory, Fsync::EverySecond)?;
    let (_home, divvy) = serve(setting, "wal", FEW_RULES, PLENTY)?;
    let subjects = [
        Subject::new("redis INCR", load(redis.target(), INCR, 1)),
        Subject::new("redis, Divvy's script", load(redis.target(), &script(&redis, PLENTY)?, 1)),
        Subject::new("divvy RESP", load(divvy.resp(), RESP_HIT, 1)),
        Subject::new("divvy line", load(divvy.line(), LINE_HIT, 1)),
    ];
    let samples = compare("single", setting, &subjects, table)?;
    let ratio = bars("single", &subjects, &samples);
    ratio(table, Metric::Cpu, 2, 0, Bound::AtMost(1.0));
    ratio(table, Metric::P99, 2, 0, Bound::AtMost(1.0));
    Ok(())
}

fn sync(setting: &Setting, table: &mut Table) -> anyhow::Result<()> {
    let redis = Redis::start(&setting.directory, Fsync::Always)?;
    let (_home, divvy) = serve(setting, "sync", FEW_RULES, PLENTY)?;
    let subjects = [
        Subject::new("redis INCR, appendfsync always", load(redis.target(), INCR, 1)),
        Subject::new("divvy RESP, sync", load(divvy.resp(), RESP_HIT, 1)),
    ];
    let samples = compare("sync", setting, &subjects, table)?;
    bars("sync", &subjects, &samples)(table, Metric::Throughput, 1, 0, Bound::AtLeast(1.0));
    Ok(())
}

fn many_rules(setting: &Setting, table: &mut Table) -> anyhow::Result<()> {
    let (_few_home, few) = serve(setting, "wal", FEW_RULES, PLENTY)?;
    let (_many_home, many) = serve(setting, "wal", MANY_RULES, PLENTY)?;
    let subjects = [
        Subject::new("divvy RESP, 3 fields, 4 rules", load(few.resp(), RESP_HIT_3, PIPELINE)),
        Subject::new("divvy RESP, 3 fields, 10,000 rules", load(many.resp(), RESP_HIT_3, PIPELINE)),
    ];
    let samples = compare("rules", setting, &subjects, table)?;
    bars("rules", &subjects, &samples)(table, Metric::Cpu, 1, 0, Bound::AtMost(1.3));
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

/// A server with rules that give every actor `credit_limit`; the data directory goes when the home is dropped.
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
        rate: None,
        generator: Generator::DivvyBench,
    }
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

/// Adds bars for the ratio of one subject to another, both by their place in `subjects`.
fn bars<'a>(
    case: &'static str,
    subjects: &'a [Subject],
    samples: &'a [Samples],
) -> impl Fn(&mut Table, Metric, usize, usize, Bound) + 'a {
    move |table, metric, subject, reference, bound| {
        let at = |index: usize| (&subjects[index], &samples[index]);
        table.add_ratio_bar(case, metric, at(subject), at(reference), bound);
    }
}
