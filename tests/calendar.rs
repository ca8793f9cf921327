//! Calendar windows: compares their boundaries with Python's `zoneinfo` on the same zone data, and tests whole servers.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use divvy::calendar::{Calendar, Unit, Window, time_of_day};
use divvy::clock::Timestamp;

use crate::clients::{PYTHON, installed};

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
