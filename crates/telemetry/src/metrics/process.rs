//! The process's own metrics, by the names that Prometheus's client libraries give them. proc(5) describes the files.

use std::fs;
use std::sync::LazyLock;

use rustix::process::{Resource, getrlimit};

use super::registry::Metric;

const CPU: (&str, &str) = ("process_cpu_seconds_total", "Total user and system CPU time spent in seconds.");
const OPEN_FDS: (&str, &str) = ("process_open_fds", "Number of open file descriptors.");
const MAX_FDS: (&str, &str) = ("process_max_fds", "Maximum number of open file descriptors.");
const VIRTUAL: (&str, &str) = ("process_virtual_memory_bytes", "Virtual memory size in bytes.");
const RESIDENT: (&str, &str) = ("process_resident_memory_bytes", "Resident memory size in bytes.");
const START: (&str, &str) = ("process_start_time_seconds", "Start time of the process since unix epoch in seconds.");
const THREADS: (&str, &str) = ("process_threads", "Number of OS threads in the process.");

/// Returns the metrics. A file that cannot be read leaves its metrics out.
pub fn process_metrics() -> Vec<Metric> {
    /// Seconds from the Unix epoch to the start of the machine.
    static BOOT_TIME: LazyLock<Option<u64>> = LazyLock::new(|| boot_time(&read("/proc/stat")));
    let gauge = |(name, help), value| Metric::gauge(name, help, value);
    let mut metrics = Vec::new();
    if let Ok(files) = fs::read_dir("/proc/self/fd") {
        // One of them is open for this directory.
        metrics.push(gauge(OPEN_FDS, (files.count() as u64).saturating_sub(1)));
    }
    metrics.extend(getrlimit(Resource::Nofile).current.map(|max| gauge(MAX_FDS, max)));
    if let Some(stat) = Stat::parse(&read("/proc/self/stat")) {
        let ticks = rustix::param::clock_ticks_per_second().max(1);
        metrics.push(Metric::counter(CPU.0, CPU.1, stat.cpu / ticks));
        metrics.push(gauge(VIRTUAL, stat.virtual_bytes));
        metrics.push(gauge(RESIDENT, stat.resident_pages * rustix::param::page_size() as u64));
        metrics.extend(BOOT_TIME.map(|boot| gauge(START, boot + stat.start / ticks)));
        metrics.push(gauge(THREADS, stat.threads));
    }
    metrics
}

/// Returns the text of a file, or an empty text if it cannot be read. A program's name may be cut within a character.
fn read(path: &str) -> String {
    fs::read(path).map(|text| String::from_utf8_lossy(&text).into_owned()).unwrap_or_default()
}

fn boot_time(stat: &str) -> Option<u64> {
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

/// Fields of `/proc/self/stat`. Times are in clock ticks.
#[derive(Debug, PartialEq)]
struct Stat {
    cpu: u64,
    threads: u64,
    start: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl Stat {
    /// Parses the line. Its second field is the program's name in parentheses, which may contain any character.
    fn parse(stat: &str) -> Option<Self> {
        let (_, after_name) = stat.rsplit_once(')')?;
        let fields: Vec<_> = after_name.split_whitespace().collect();
        // proc(5) counts from 1, and the third field is the first after the name.
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Self {
            cpu: field(14)? + field(15)?,
            threads: field(20)?,
            start: field(22)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_after_any_program_name() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194560 5 6 7 8 120 30 9 9 20 0 3 0 100 4096 2 99";
        let expected = Stat { cpu: 150, threads: 3, start: 100, virtual_bytes: 4096, resident_pages: 2 };
        assert_eq!(Stat::parse(stat), Some(expected));
        assert_eq!(Stat::parse("42 (x"), None);
        assert_eq!(Stat::parse("42 (x) S 1"), None);
        assert_eq!(boot_time("cpu 1 2\nbtime 1700000000\nprocesses 9\n"), Some(1_700_000_000));
        assert_eq!(boot_time(""), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn every_metric_of_this_process_has_a_value() {
        let families: Vec<_> = process_metrics().into_iter().map(Metric::into_family).collect();
        assert_eq!(families.len(), 7);
        for family in families {
            let metric = &family.get_metric()[0];
            let value = metric.get_gauge().get_value() + metric.get_counter().get_value();
            assert!(value > 0.0 || family.name() == CPU.0, "{}", family.name());
        }
    }
}
