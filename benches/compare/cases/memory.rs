//! Resident memory as the number of counters grows. Each row is of the same servers, after more actors have hit them.

use super::{FEW_RULES, INCR, PIPELINE, RESP_HIT, Setting, load, over, serve};
use crate::divvy::PLENTY;
use crate::redis::{Fsync, Redis};
use crate::rounds::{Subject, interleave_as};
use crate::table::Table;

const SIZES: [u64; 7] = [10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000];

pub fn run(setting: &Setting, table: &mut Table) -> anyhow::Result<()> {
    let redis = Redis::start(&setting.directory, Fsync::EverySecond)?;
    let (_home, divvy) = serve(setting, "wal", FEW_RULES, PLENTY)?;
    let mut filled = 0;
    for actors in SIZES.into_iter().filter(|actors| *actors <= setting.actors) {
        let subjects = [
            Subject::new("redis INCR", over(load(redis.target(), INCR, PIPELINE), actors, "uniform")),
            Subject::new("divvy RESP", over(load(divvy.resp(), RESP_HIT, PIPELINE), actors, "uniform")),
        ];
        let samples = interleave_as(&subjects, 1, |load, _| load.fill_range(filled, actors))?;
        table.add_rows("memory", &subjects, &samples);
        filled = actors;
    }
    Ok(())
}
