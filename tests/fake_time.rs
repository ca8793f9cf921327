//! The server under libfaketime, a library that people preload for tests at another time.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{RulesFile, Server, divvy};

const RULES: &str = "[user=*]\ncreditLimit=3\nwindow=year\nactorField=user\n[default]\ncreditLimit=0\n";

/// Paths of the library on Debian, on any architecture.
fn libraries() -> Vec<PathBuf> {
    let systems = fs::read_dir("/usr/lib").unwrap().map(|entry| entry.unwrap().path().join("faketime"));
    let found = systems.flat_map(|dir| ["libfaketime.so.1", "libfaketimeMT.so.1"].map(|name| dir.join(name)));
    let found: Vec<_> = found.filter(|library| library.exists()).collect();
    assert!(!found.is_empty(), "libfaketime is missing; run `make test-setup` first");
    found
}

/// Returns a divvy whose clock starts at `time`, in UTC.
fn divvy_at(time: &str, library: &Path) -> Command {
    let mut command = divvy();
    command.env("LD_PRELOAD", library).env("FAKETIME", format!("@{time}")).env("TZ", "UTC");
    // Otherwise the library leaves files behind when the server is killed.
    command.env("FAKETIME_DISABLE_SHM", "1");
    command
}

/// Returns a divvy whose clock starts at the Unix time `seconds`.
pub fn divvy_at_unix_time(seconds: u64) -> Command {
    let mut command = divvy_at(&seconds.to_string(), &libraries()[0]);
    command.env("FAKETIME_FMT", "%s");
    command
}

#[test]
fn server_uses_the_time_of_libfaketime() {
    let rules = RulesFile::ini(RULES);
    for library in libraries() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().to_str().unwrap();
        let serve = |time: &str, args: &[&str]| {
            Server::start_as(&mut divvy_at(time, &library), &[&[rules.path()], args].concat())
        };
        for args in [&["--store", "memory"][..], &["--data-dir", data], &["--data-dir", data, "--durability", "sync"]] {
            let at_night = serve("2031-12-31 23:00:00", args);
            let mut client = at_night.resp();
            let time = client.command("TIME");
            assert!(time.starts_with("[19565"), "{library:?} {args:?}: {time}");
            let hit = client.command("DIVVY.HIT user=ann");
            let reset: u64 = hit.trim_end_matches(']').rsplit(' ').next().unwrap().parse().unwrap();
            assert!(hit.starts_with("[1 ") && (1..=3600).contains(&reset), "{library:?} {args:?}: {hit}");
            assert!(at_night.terminate().success());
        }
        let next_year = serve("2032-01-01 00:00:00", &["--data-dir", data]);
        assert!(next_year.resp().command("DIVVY.HIT user=ann").starts_with("[1 2 "));
        assert!(next_year.terminate().success());
    }
}
