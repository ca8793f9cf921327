//! Times: calendar windows compared with Python's `zoneinfo` on the same zone data, and the server under libfaketime, a
//! library that people preload for tests at another time.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use divvy::calendar::{Calendar, Unit, Window, time_of_day};
use divvy::clock::Timestamp;

use crate::clients::{PYTHON, installed};
use crate::support::{RulesFile, Server, divvy};

/// Set for a process that uses the zone data of Python's package `tzdata`. jiff reads them from `TZDIR`.
const ZONE_DATA: &str = "TZDIR";

/// Returns a Python program that uses the zone data of the package `tzdata` instead of the system's.
fn python(program: &str) -> Command {
    let mut command = Command::new(installed(Path::new(PYTHON).join(".venv/bin/python")));
    command.arg(Path::new(PYTHON).join(program)).env("PYTHONTZPATH", "");
    command
}

#[test]
fn boundaries_equal_those_of_pythons_zoneinfo() {
    let found = python("print_zone_data.py").output().unwrap();
    let zone_data = String::from_utf8(found.stdout).unwrap();
    let this_program = std::env::current_exe().unwrap();
    let (_, here) = module_path!().split_once("::").unwrap();
    let compared = Command::new(this_program)
        .args(["--exact", &format!("{here}::boundaries_match_with_the_same_zone_data"), "--ignored", "--nocapture"])
        .env(ZONE_DATA, zone_data.trim())
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&compared.stdout);
    let errors = String::from_utf8_lossy(&compared.stderr);
    assert!(compared.status.success() && output.contains("1 passed"), "{output}{errors}");
}

/// Compares 8 zones over 60 years, around every change of their clocks. `DIVVY_TEST_ZONES=all` compares 31 zones.
#[test]
#[ignore = "another test runs it, with the zone data of Python's package"]
fn boundaries_match_with_the_same_zone_data() {
    let mut reference = python("calendar_windows.py").stdout(Stdio::piped()).spawn().unwrap();
    let mut compared = 0u64;
    for line in BufReader::new(reference.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        let words: Vec<_> = line.split(' ').collect();
        let [zone, unit, reset_at, at, starts, ends] = words[..] else { panic!("{line}") };
        let unit = Unit::ALL.into_iter().find(|known| known.name() == unit).unwrap();
        let calendar = Calendar::new(unit, zone, time_of_day(reset_at).unwrap()).unwrap();
        let seconds = |text: &str| Timestamp::from_secs(text.parse().unwrap()).unwrap();
        let [window, _] = calendar.windows(seconds(at));
        assert_eq!(window, Window { starts: seconds(starts), ends: seconds(ends) }, "{line}");
        compared += 1;
    }
    assert!(reference.wait().unwrap().success());
    let expected = if std::env::var("DIVVY_TEST_ZONES").as_deref() == Ok("all") { 500_000 } else { 250_000 };
    assert!(compared > expected, "{compared} windows");
}

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

/// Returns a divvy whose clock is ahead by this many seconds.
pub fn divvy_ahead(seconds: i64) -> Command {
    let mut command = divvy_at("0", &libraries()[0]);
    command.env("FAKETIME", format!("{seconds:+}"));
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
            let (is_allowed, _, reset) = client.hit("user=ann");
            assert!(is_allowed && (1..=3600).contains(&reset), "{library:?} {args:?}: {reset}");
            assert!(at_night.terminate().success());
        }
        let next_year = serve("2032-01-01 00:00:00", &["--data-dir", data]);
        assert!(next_year.resp().command("DIVVY.HIT user=ann").starts_with("[1 2 "));
        assert!(next_year.terminate().success());
    }
}
