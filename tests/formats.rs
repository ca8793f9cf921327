//! Data directories and backups of releases, in tests/formats: no counter, reservation or remembered answer is
//! lost.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::calendar::divvy_at_unix_time;
use crate::support::{RespClient, Server};

pub const FORMATS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats");
/// Maximum difference in seconds between two answers about a counter, due to rounding and the time of reading.
const ROUNDING: u64 = 2;

#[test]
fn killed_servers_directory_keeps_every_counter() {
    for format in formats() {
        opens_with_every_counter(&format, "killed");
    }
}

#[test]
fn closed_servers_directory_keeps_every_counter() {
    for format in formats() {
        opens_with_every_counter(&format, "closed");
    }
}

#[test]
fn backup_keeps_every_counter() {
    for format in formats() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let record = Record::read(&format, "backup");
        // By the system's clock, most counters of the backup would have expired, and `restore` would forget them.
        let mut restore = divvy_at_unix_time(record.at);
        let restore = restore.arg("restore").arg(format.join("backup")).arg("--data-dir").arg(&data).output().unwrap();
        assert!(restore.status.success(), "{}: {}", format.display(), String::from_utf8_lossy(&restore.stderr));
        keeps_its_counters(&data, &record);
    }
}

/// Returns the formats with records.
fn formats() -> Vec<PathBuf> {
    let entries = fs::read_dir(FORMATS).unwrap().map(|entry| entry.unwrap().path());
    let formats: Vec<_> = entries.filter(|path| path.is_dir()).collect();
    assert!(!formats.is_empty());
    formats
}

fn opens_with_every_counter(format: &Path, name: &str) {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let copied = Command::new("cp").arg("-r").arg(format.join(name)).arg(&data).status().unwrap();
    assert!(copied.success());
    keeps_its_counters(&data, &Record::read(format, name));
}

/// Checks the directory when it is first opened, after a crash, and after it was closed. The server's clock starts at
/// the time of the record, because most reservations and all remembered answers end within a day.
fn keeps_its_counters(data: &Path, record: &Record) {
    let (rules, data) = (record.rules.to_str().unwrap(), data.to_str().unwrap());
    let args = [rules, "--data-dir", data, "--durability", "wal", "--max-reservation-ttl", "86400"];
    let open = || Server::start_as(&mut divvy_at_unix_time(record.at), &args);
    let server = open();
    record.check(&server);
    server.kill();
    let server = open();
    record.check(&server);
    assert!(server.terminate().success());
    record.check(&open());
}

/// Questions about counters, and their recorded answers.
pub struct Record {
    pub rules: PathBuf,
    /// Unix time of the recording.
    at: u64,
    answers: Vec<(String, String)>,
}

impl Record {
    pub fn read(format: &Path, name: &str) -> Self {
        let text = fs::read_to_string(format.join(name).with_extension("txt")).unwrap();
        let (at, answers) = text.strip_prefix("# at ").unwrap().split_once('\n').unwrap();
        let answers: Vec<_> = answers.lines().map(|line| line.rsplit_once(": ").unwrap()).collect();
        assert!(!answers.is_empty());
        Self {
            rules: format.join("rules.ini"),
            at: at.parse().unwrap(),
            answers: answers.iter().map(|(question, reply)| ((*question).into(), (*reply).into())).collect(),
        }
    }

    pub fn check(&self, server: &Server) {
        let mut client = server.resp();
        for (question, recorded) in &self.answers {
            let reply = ask(&mut client, question);
            let (words, seconds) = parts(question, &reply);
            let (recorded_words, recorded_seconds) = parts(question, recorded);
            assert_eq!(words, recorded_words, "{question}: {reply}");
            let elapsed = now(&mut client).saturating_sub(self.at);
            let due = recorded_seconds.map(|seconds| seconds.saturating_sub(elapsed));
            assert_eq!(seconds.is_some(), due.is_some());
            let off = seconds.zip(due).map_or(0, |(seconds, due)| seconds.abs_diff(due));
            assert!(off <= ROUNDING, "{question}: {reply}, {off} s off");
        }
    }
}

/// Asks a question. It is either a command, or `COMMIT cost reservation`, which asks for the outcome of a commit.
fn ask(client: &mut RespClient, question: &str) -> String {
    let Some((cost, reservation)) = question.strip_prefix("COMMIT ").and_then(|rest| rest.split_once(' ')) else {
        return client.command(question);
    };
    let reserved = client.command(&format!("DIVVY.RESERVE {reservation}"));
    let id = reserved.trim_end_matches(']').rsplit(' ').next().unwrap();
    client.command(&format!("DIVVY.COMMIT {id} COST {cost}"))
}

/// Splits a reply into the words that do not change while time passes, and the seconds until something happens, which
/// decrease. Remembered replies have no such seconds, and their ids may change.
fn parts<'a>(question: &str, reply: &'a str) -> (Vec<&'a str>, Option<u64>) {
    // A comma in a reason is a space in the record.
    let words = reply.trim_matches(['[', ']']).split([' ', ',']).filter(|word| !word.is_empty());
    let mut words: Vec<_> = words.map(|word| word.trim_matches('"')).collect();
    let has_seconds = match question.split(' ').next() {
        Some("DIVVY.PEEK" | "CL.THROTTLE") => true,
        Some("DIVVY.RESERVE") => {
            words.truncate(3);
            true
        }
        Some("DIVVY.LIMIT") => words.last() != Some(&"-1"),
        Some("DIVVY.BLOCK" | "DIVVY.ALLOW") => {
            words.rotate_left(1);
            words.last() != Some(&"-1")
        }
        _ => false,
    };
    let seconds = if has_seconds { words.pop() } else { None };
    (words, seconds.map(|seconds| seconds.parse().unwrap_or_else(|_| panic!("{question}: {reply}"))))
}

/// Returns the server's Unix time.
fn now(client: &mut RespClient) -> u64 {
    let time = client.command("TIME");
    time.trim_start_matches('[').split(' ').next().and_then(|seconds| seconds.parse().ok()).expect(&time)
}
