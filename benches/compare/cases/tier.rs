//! divvy in front of Redis, compared with the same script in Redis alone, and the savings of the denial cache.

use anyhow::ensure;

use super::{FEW_RULES, PIPELINE, RESP_HIT, RESP_HIT_1, Setting, compare, load};
use crate::divvy::{Divvy, Home, PLENTY, RESET_SECONDS, rules};
use crate::load::{Generator, Load};
use crate::redis::{Fsync, Redis};
use crate::rounds::{Samples, Subject};
use crate::table::Table;

/// Valid shares of denied hits, which are called 90 %. Actors are drawn at random, so the share varies.
const DENIED: std::ops::RangeInclusive<f64> = 0.85..=0.95;

pub fn run(setting: &Setting, table: &mut Table) -> anyhow::Result<()> {
    let redis = Redis::start(&setting.directory, Fsync::EverySecond)?;
    in_front("tier", setting, table, &redis, PIPELINE)?;
    in_front("tier-one", setting, table, &redis, 1)?;
    throttle("tier-throttle", setting, table, &redis)?;
    denied("tier-deny", setting, table, &redis)
}

/// Compares an algorithm that Redis must calculate with a window, where Redis only decreases a number.
fn throttle(case: &'static str, setting: &Setting, table: &mut Table, redis: &Redis) -> anyhow::Result<()> {
    let (_home, divvy) = serve(setting, redis, &[], &rules(FEW_RULES, PLENTY))?;
    let subjects = [
        Subject::new("a rule's window", load(divvy.resp(), RESP_HIT, PIPELINE)),
        Subject::new("CL.THROTTLE, many keys", load(divvy.resp(), "CL.THROTTLE k{} 1000000 1 1", PIPELINE)),
        Subject::new("CL.THROTTLE, one key", load(divvy.resp(), "CL.THROTTLE k 1000000 1 1", PIPELINE)),
    ];
    let samples = compare(case, setting, &subjects, table)?;
    add_throughput(case, table, &subjects, &samples);
    Ok(())
}

fn in_front(
    case: &'static str,
    setting: &Setting,
    table: &mut Table,
    redis: &Redis,
    pipeline: u32,
) -> anyhow::Result<()> {
    let (_home, divvy) = serve(setting, redis, &[], &rules(FEW_RULES, PLENTY))?;
    let direct = load(redis.target(), &redis.load_store_script(PLENTY, RESET_SECONDS)?, pipeline);
    let by_redis_benchmark = Load { generator: Generator::RedisBenchmark, ..direct.clone() };
    let subjects = [
        Subject::new("redis, by redis-benchmark", by_redis_benchmark),
        Subject::new("redis, by divvy-bench", direct),
        Subject::new("divvy RESP on redis, one field", load(divvy.resp(), RESP_HIT_1, pipeline)),
        Subject::new("divvy RESP on redis", load(divvy.resp(), RESP_HIT, pipeline)),
    ];
    let samples = compare(case, setting, &subjects, table)?;
    add_throughput(case, table, &subjects, &samples);
    Ok(())
}

/// Measures denials. Nine actors in ten have one credit, which is used up before the measurement. The others have more
/// than enough.
fn denied(case: &'static str, setting: &Setting, table: &mut Table, redis: &Redis) -> anyhow::Result<()> {
    const HEADER: &str = "method=POST path=/v1/search* ip=*";
    let rules = format!(
        "[{HEADER}7]\ncreditLimit = {PLENTY}\nresetSeconds = {RESET_SECONDS}\nactorField = ip\n\n\
         [{HEADER}]\ncreditLimit = 1\nresetSeconds = {RESET_SECONDS}\nactorField = ip\n\n\
         [default]\ncreditLimit = 1\nresetSeconds = {RESET_SECONDS}\n"
    );
    let (_without_home, without) = serve(setting, redis, &["--denial-cache", "0"], &rules)?;
    let (_with_home, with) = serve(setting, redis, &[], &rules)?;
    let subjects = [
        Subject::new("90 % denied, by redis", load(without.resp(), RESP_HIT, PIPELINE)),
        Subject::new("90 % denied, from memory", load(with.resp(), RESP_HIT, PIPELINE)),
    ];
    for subject in &subjects {
        subject.load.fill()?;
    }
    let samples = compare(case, setting, &subjects, table)?;
    for (subject, samples) in subjects.iter().zip(&samples) {
        let share = samples.least_denied();
        ensure!(DENIED.contains(&share), "{}: {share} of the hits were denied", subject.name);
    }
    add_throughput(case, table, &subjects, &samples);
    Ok(())
}

fn serve(setting: &Setting, redis: &Redis, flags: &[&str], rules: &str) -> anyhow::Result<(Home, Divvy)> {
    let home = Home::on_redis(&setting.directory, &redis.target().addr, flags, rules)?;
    let divvy = home.start()?;
    Ok((home, divvy))
}

/// Adds the ratios of the last subject's throughput to the throughput of the others.
fn add_throughput(case: &'static str, table: &mut Table, subjects: &[Subject], samples: &[Samples]) {
    let (Some((subject, references)), Some((of_subject, of_references))) =
        (subjects.split_last(), samples.split_last())
    else {
        return;
    };
    for (reference, of_reference) in references.iter().zip(of_references) {
        let ratio = of_subject.ratio(of_reference, |sample| sample.requests_per_second).median();
        table.add_figure(case, format!("throughput: {} / {}", subject.name, reference.name), ratio, None);
    }
}
