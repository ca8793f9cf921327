//! Latency at a given load: requests are due at fixed times, from a tenth to nine tenths of the throughput that the same
//! server reaches in a closed loop.

use super::{FEW_RULES, INCR, RESP_HIT, Setting, compare, load, serve};
use crate::divvy::PLENTY;
use crate::load::Load;
use crate::redis::{Fsync, Redis};
use crate::rounds::Subject;
use crate::table::Table;

const CASE: &str = "offered-load";
/// Percent of the highest throughput.
const SHARES: [u32; 9] = [10, 20, 30, 40, 50, 60, 70, 80, 90];

pub fn run(setting: &Setting, table: &mut Table) -> anyhow::Result<()> {
    let redis = Redis::start(&setting.directory, Fsync::EverySecond)?;
    let (_home, divvy) = serve(setting, "wal", FEW_RULES, PLENTY)?;
    let closed = [
        Subject::new("redis INCR", load(redis.target(), INCR, 1)),
        Subject::new("divvy RESP", load(divvy.resp(), RESP_HIT, 1)),
    ];
    let highest = compare("closed-loop", setting, &closed, table)?;
    let mut subjects = Vec::new();
    for (subject, samples) in closed.iter().zip(&highest) {
        let highest = samples.median(|sample| sample.requests_per_second);
        subjects.extend(SHARES.map(|share| {
            let rate = (highest * f64::from(share) / 100.0).round();
            Subject::new(format!("{}, {share} %", subject.name), Load { rate: Some(rate), ..subject.load.clone() })
        }));
    }
    compare(CASE, setting, &subjects, table)?;
    Ok(())
}
