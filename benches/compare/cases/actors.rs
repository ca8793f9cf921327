//! Many live counters: what a hit costs among them, what they take in memory and on disk, how soon they are served
//! after a restart, and how much a flush or a compaction delays a hit.

use anyhow::Context;

use super::{FEW_RULES, INCR, PIPELINE, RESP_HIT, Setting, bars, compare, load, serve};
use crate::divvy::{Divvy, Home, PLENTY};
use crate::load::Load;
use crate::redis::{Fsync, Redis};
use crate::rounds::{Samples, Subject, interleave};
use crate::table::{Bound, Metric, Table};

const MIB: f64 = (1 << 20) as f64;

pub fn run(setting: &Setting, table: &mut Table) -> anyhow::Result<()> {
    let redis = Redis::start(&setting.directory, Fsync::EverySecond)?;
    let (_few_home, few) = serve(setting, "wal", FEW_RULES, PLENTY)?;
    let (home, many) = serve(setting, "wal", FEW_RULES, PLENTY)?;
    let actors = setting.many_actors;
    let subjects = [
        Subject::new("divvy RESP, 10000 actors", load(few.resp(), RESP_HIT, PIPELINE)),
        Subject::new(format!("divvy RESP, {actors} actors"), Load { actors, ..load(many.resp(), RESP_HIT, PIPELINE) }),
        Subject::new(format!("redis INCR, {actors} actors"), Load { actors, ..load(redis.target(), INCR, PIPELINE) }),
    ];
    for subject in subjects.iter().filter(|subject| subject.load.actors == actors) {
        eprintln!("  filling: {}", subject.name);
        subject.load.fill()?;
    }
    let samples = compare("actors", setting, &subjects, table)?;
    bars("actors", &subjects, &samples)(table, Metric::Cpu, 1, 0, Bound::AtMost(2.0));
    let [_, many_samples, redis_samples] = &samples[..] else { unreachable!("as many samples as subjects") };
    let resident = |samples: &Samples| samples.max(|sample| sample.server.resident_bytes as f64) / MIB;
    table.add_bar("actors", "MiB resident with many actors", resident(many_samples), Bound::AtMost(512.0));
    table.add_note(format!("redis-server held {:.0} MiB resident with {actors} actors.", resident(redis_samples)));

    drop(redis);
    compaction(setting, table, &home, subjects, many_samples)?;
    restart(setting, table, home, many)
}

/// The latency of an open loop at half of the most that the server could do, with few actors (whose counters seldom
/// reach a flush) and with many (which keep RocksDB flushing and compacting).
fn compaction(
    setting: &Setting,
    table: &mut Table,
    home: &Home,
    subjects: [Subject; 3],
    many_samples: &Samples,
) -> anyhow::Result<()> {
    let rate = (many_samples.median(|sample| sample.requests_per_second) / 2.0).round();
    let subjects: Vec<Subject> = subjects.into_iter().take(2).map(|subject| at_rate(subject, rate)).collect();
    let before = home.tables()?;
    // Long enough that tables are written and compacted in every measurement.
    let samples = interleave(&subjects, setting.rounds, setting.seconds * 4.0)?;
    let after = home.tables()?;
    table.add_rows("compaction", &subjects, &samples);
    bars("compaction", &subjects, &samples)(table, Metric::P99_9, 1, 0, Bound::AtMost(5.0));
    let (written, compacted) = (after.difference(&before).count(), before.difference(&after).count());
    table.add_note(match compacted {
        0 => "Nothing was compacted meanwhile: the bar of p99.9 says nothing in this run.".to_owned(),
        _ => format!("Meanwhile, at least {written} tables were written and {compacted} compacted away."),
    });
    Ok(())
}

fn at_rate(subject: Subject, rate: f64) -> Subject {
    Subject { load: Load { rate: Some(rate), ..subject.load }, name: format!("{}, {rate:.0}/s", subject.name) }
}

fn restart(setting: &Setting, table: &mut Table, home: Home, many: Divvy) -> anyhow::Result<()> {
    const HIT: &str = "HIT ip=000000000000\n";
    drop(many);
    let (divvy, after_kill) = home.time_to_serve(HIT).context("after SIGKILL")?;
    divvy.stop()?;
    let (divvy, after_stop) = home.time_to_serve(HIT).context("after SIGTERM")?;
    divvy.stop()?;
    table.add_bar("actors", "seconds to serve again after SIGKILL", after_kill.as_secs_f64(), Bound::AtMost(2.0));
    table.add_bar("actors", "seconds to serve again after SIGTERM", after_stop.as_secs_f64(), Bound::AtMost(2.0));
    let per_counter = home.compacted_bytes_per_counter(setting.many_actors)?;
    table.add_bar("actors", "bytes on disk per counter, compacted", per_counter, Bound::AtMost(60.0));
    Ok(())
}
