//! Resource usage of a process on this machine, as the kernel reports it in `/proc`.

use std::time::Duration;

use anyhow::Context;

/// Returns the CPU time of all threads of a process, including those that have ended.
///
/// The kernel reports it in clock ticks (10 ms), so measure over at least a second.
pub fn cpu_time(pid: u32) -> anyhow::Result<Duration> {
    let path = format!("/proc/{pid}/stat");
    let stat = std::fs::read_to_string(&path).with_context(|| format!("reading {path} for the server's CPU time"))?;
    let ticks = cpu_ticks(&stat).with_context(|| format!("{path} is not of the form that proc(5) documents"))?;
    Ok(Duration::from_secs(ticks) / u32::try_from(rustix::param::clock_ticks_per_second())?.max(1))
}

/// Returns `utime` plus `stime`, fields 14 and 15 of `/proc/PID/stat` (see proc(5)). The second field is the program's
/// name in parentheses, which may contain any character.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

/// Returns the resident memory of a process in bytes.
pub fn resident_bytes(pid: u32) -> anyhow::Result<u64> {
    let path = format!("/proc/{pid}/status");
    let status = std::fs::read_to_string(&path).with_context(|| format!("reading {path} for the server's memory"))?;
    resident_kib(&status).map(|kib| kib * 1024).with_context(|| format!("{path} has no VmRSS"))
}

fn resident_kib(status: &str) -> Option<u64> {
    let (_, value) = status.lines().filter_map(|line| line.split_once(':')).find(|(name, _)| *name == "VmRSS")?;
    value.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_ticks_are_found_after_any_program_name() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194560 5 6 7 8 120 30 9 9 20 0 3 0 100 1 2";
        assert_eq!(cpu_ticks(stat), Some(150));
        assert_eq!(cpu_ticks("42 (x"), None);
        assert_eq!(cpu_ticks("42 (x) S 1"), None);
    }

    #[test]
    fn resident_memory_is_parsed() {
        assert_eq!(resident_kib("Name:\tx\nVmHWM:\t 9 kB\nVmRSS:\t  1234 kB\n"), Some(1234));
        assert_eq!(resident_kib("Name:\tx\n"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_uses_memory() {
        assert!(resident_bytes(std::process::id()).unwrap() > 100_000);
        assert!(cpu_time(std::process::id()).is_ok());
    }
}
