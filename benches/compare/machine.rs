//! Description of the machine and the versions.

use std::process::Command;

/// Describes the machine in one line.
pub fn describe() -> String {
    let facts = facts();
    let text = |key: &str| facts.get(key).and_then(|value| value.as_str()).unwrap_or_default().to_owned();
    let cores = facts.get("cores").map(ToString::to_string).unwrap_or_default();
    format!("{} × {}, Linux {}; {}; divvy {}", cores, text("cpu"), text("kernel"), text("redis"), text("divvy"))
}

pub fn facts() -> serde_json::Value {
    let cpu_info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu_info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    serde_json::json!({
        "cpu": model.map_or("unknown CPU", |(_, name)| name),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "kernel": kernel.trim(),
        "redis": version_of_redis(),
        "divvy": env!("CARGO_PKG_VERSION"),
        "unix_time": std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.as_secs()),
    })
}

/// Returns the first three words of `Redis server v=7.0.15 sha=…`.
fn version_of_redis() -> String {
    let output = Command::new("redis-server").arg("--version").output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&output).split(' ').take(3).collect::<Vec<_>>().join(" ")
}
