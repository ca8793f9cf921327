//! Many live counters: the cost of creating and hitting them, their memory and disk space, the delay that flushes and
//! compactions cause, and the time until they are served after a restart.

use anyhow::Context;

use super::builds::{Build, Builds};
use super::{FEW_RULES, INCR, PIPELINE, RESP_HIT, Setting, compare, load, over, serve};
use crate::bars;
use crate::divvy::{Divvy, Home, PLENTY, rules};
use crate::load::Load;
use crate::redis::{Fsync, Redis};
use crate::rounds::{Samples, Subject, interleave, interleave_as};
use crate::table::Table;

const MIB: f64 = (1 << 20) as f64;
/// Duration of the load before the server is killed, and of each load after its restart.
const RESTART_SECONDS: f64 = 10.0;
const MISSED: &str = "share of hits whose counter was not in memory: divvy";
const UNIFORM: &str = "uniform";
const ZIPF: &str = "zipf:1";

pub fn run(setting: &Setting, table: &mut Table) -> anyhow::Result<()> {
    let redis = Redis::start(&setting.directory, Fsync::EverySecond)?;
    let builds = Builds::serve(setting, "wal", PLENTY)?;
    let subjects = |distribution| {
        let over = |load| over(load, setting.actors, distribution);
        let mut subjects = vec![Subject::new("redis INCR", over(load(redis.target(), INCR, PIPELINE)))];
        subjects.extend(
            builds.subjects(|divvy| vec![Subject::new("divvy RESP", over(load(divvy.resp(), RESP_HIT, PIPELINE)))]),
        );
        subjects
    };
    table.add_note(format!("The rows `filling`, `uniform`, `zipf` and `open-loop` are of {} actors.", setting.actors));

    let filled = subjects(UNIFORM);
    let samples = interleave_as(&filled, setting.rounds, |load, round| load.fill_part(round, setting.rounds))?;
    table.add_rows("filling", &filled, &samples);
    let before = builds.current().divvy.lookups()?;
    let uniform = compare("uniform", setting, &subjects(UNIFORM), table)?;
    let missed = builds.current().divvy.lookups()?.missed_since(before);
    table.add_figure("uniform", MISSED, missed, None);
    let zipf = compare("zipf", setting, &subjects(ZIPF), table)?;
    add_memory(setting.actors, table, [&uniform[0], &zipf[0]], [&uniform[1], &zipf[1]]);
    let per_actor = |bytes: u64| bytes as f64 / setting.actors as f64;
    table.add_figure("actors", "bytes on disk per actor: redis", per_actor(redis.disk_bytes()?), None);
    let bytes = builds.current().home.disk_bytes()?;
    table.add_figure("actors", "bytes on disk per actor: divvy, its journal included", per_actor(bytes), None);

    drop(redis);
    let build = builds.into_current();
    let highest = uniform[1].median(|sample| sample.requests_per_second);
    open_loop(setting, table, &build, highest / 2.0)?;
    restart("actors", table, build, setting.actors)
}

/// Measures ten times as many actors, and compares them with a Redis that has as many as the case above.
pub fn run_tenfold(setting: &Setting, table: &mut Table) -> anyhow::Result<()> {
    let actors = setting.actors * 10;
    let redis = Redis::start(&setting.directory, Fsync::EverySecond)?;
    let home = Home::new(&setting.directory, "wal", &rules(FEW_RULES, PLENTY))?.with_max_counters(actors * 2);
    let divvy = home.start()?;
    let subjects = [
        Subject::new(
            "redis INCR, a tenth of the actors",
            over(load(redis.target(), INCR, PIPELINE), setting.actors, UNIFORM),
        ),
        Subject::new("divvy RESP", over(load(divvy.resp(), RESP_HIT, PIPELINE), actors, UNIFORM)),
    ];
    table.add_note(format!("The rows `tenfold` are of {actors} actors."));
    let filled = interleave_as(&subjects, 1, |load, _| load.fill())?;
    table.add_rows("tenfold-fill", &subjects, &filled);
    let before = divvy.lookups()?;
    let samples = compare("tenfold", setting, &subjects, table)?;
    table.add_figure("tenfold", MISSED, divvy.lookups()?.missed_since(before), None);
    table.add_figure("tenfold", "MiB resident: divvy", resident(&samples[1]), Some(bars::RESIDENT_MIB));
    let bytes = home.disk_bytes()? as f64;
    table.add_figure("tenfold", "bytes on disk per actor: divvy, its journal included", bytes / actors as f64, None);
    drop(redis);
    restart("tenfold", table, Build { home, divvy }, actors)
}

fn add_memory(actors: u64, table: &mut Table, redis: [&Samples; 2], divvy: [&Samples; 2]) {
    let most = |samples: [&Samples; 2]| samples.into_iter().map(resident).fold(0.0, f64::max);
    let (redis, divvy) = (most(redis), most(divvy));
    table.add_figure("actors", "MiB resident: redis", redis, None);
    table.add_figure("actors", "MiB resident: divvy", divvy, Some(bars::RESIDENT_MIB));
    let ratio_target = (actors >= bars::RESIDENT_RATIO_ACTORS).then_some(bars::RESIDENT_RATIO);
    table.add_figure("actors", "memory: divvy / redis", divvy / redis, ratio_target);
}

/// Returns the resident memory in MiB.
fn resident(samples: &Samples) -> f64 {
    samples.max(|sample| sample.server.resident_bytes as f64) / MIB
}

/// Measures the latency of an open loop at half of the server's maximum throughput, with few actors (whose counters are
/// seldom flushed) and with many (which keep RocksDB flushing and compacting).
fn open_loop(setting: &Setting, table: &mut Table, build: &Build, rate: f64) -> anyhow::Result<()> {
    let (_home, few) = serve(setting, "wal", FEW_RULES, PLENTY)?;
    let at_rate = |divvy: &Divvy| Load { rate: Some(rate.round()), ..load(divvy.resp(), RESP_HIT, PIPELINE) };
    let subjects = [
        Subject::new("divvy RESP, idle", at_rate(&few)),
        Subject::new("divvy RESP", over(at_rate(&build.divvy), setting.actors, UNIFORM)),
    ];
    let before = build.home.tables()?;
    // Long enough for tables to be written and compacted in every measurement.
    let samples = interleave(&subjects, setting.rounds, setting.seconds * 4.0)?;
    let after = build.home.tables()?;
    table.add_rows("open-loop", &subjects, &samples);
    let (written, compacted) = (after.difference(&before).count(), before.difference(&after).count());
    table.add_note(match compacted {
        0 => format!(
            "`open-loop`: {rate:.0} hits a second. Nothing was compacted meanwhile: the bar of p99.9 says nothing in \
             this run."
        ),
        _ => format!(
            "`open-loop`: {rate:.0} hits a second. Meanwhile, at least {written} tables were written and {compacted} \
             compacted away."
        ),
    });
    Ok(())
}

/// Measures restarts. The server is killed right after a load, when its journal is longest.
fn restart(case: &'static str, table: &mut Table, build: Build, actors: u64) -> anyhow::Result<()> {
    const HIT: &str = "HIT method=POST path=/v1/search/items ip=000000000000\n";
    let rate = |divvy: &Divvy, round: u32| {
        let load = over(load(divvy.resp(), RESP_HIT, PIPELINE), actors, UNIFORM);
        anyhow::Ok(load.run_after(RESTART_SECONDS, 0.0, round)?.requests_per_second)
    };
    let Build { home, divvy } = build;
    eprintln!("  restart");
    let before = rate(&divvy, 0)?;
    drop(divvy);
    let (divvy, after_kill) = home.time_to_serve(HIT).context("after SIGKILL")?;
    let (first, second) = (rate(&divvy, 1)?, rate(&divvy, 2)?);
    divvy.stop()?;
    let (divvy, after_stop) = home.time_to_serve(HIT).context("after SIGTERM")?;
    // Until this is done, some counters are only in the journal.
    divvy.write_back()?;
    divvy.stop()?;
    let (seconds, full_speed) = (Some(bars::RESTART_SECONDS), Some(bars::FULL_SPEED));
    table.add_figure(case, "seconds until the first answer after SIGKILL", after_kill.as_secs_f64(), seconds);
    table.add_figure(case, "throughput in the first 10 s after it / before", first / before, None);
    table.add_figure(case, "throughput in the next 10 s / before", second / before, full_speed);
    table.add_figure(case, "seconds until the first answer after SIGTERM", after_stop.as_secs_f64(), seconds);
    let per_counter = home.compacted_bytes_per_counter(actors)?;
    table.add_figure(case, "bytes on disk per counter, compacted", per_counter, Some(bars::DISK_BYTES_PER_COUNTER));
    Ok(())
}
