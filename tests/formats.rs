//! Directories and backups that earlier releases wrote, under tests/formats: no counter of them is lost.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use crate::support::{RespClient, Server, divvy};

pub const FORMATS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats");
/// Seconds between two answers about one counter, as they are rounded and the clocks were read.
const ROUNDING: u64 = 2;

#[test]
fn a_killed_server_s_directory_keeps_every_counter() {
    for format in formats() {
        opens_with_every_counter(&format, "killed");
    }
}

#[test]
fn a_closed_server_s_directory_keeps_every_counter() {
    for format in formats() {
        opens_with_every_counter(&format, "closed");
    }
}

#[test]
fn a_backup_keeps_every_counter() {
    for format in formats() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let restore = divvy().arg("restore").arg(format.join("backup")).arg("--data-dir").arg(&data).output().unwrap();
        assert!(restore.status.success(), "{}: {}", format.display(), String::from_utf8_lossy(&restore.stderr));
        keeps_its_counters(&data, &Record::read(&format, "backup"));
    }
}

/// Those that there are records of.
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

/// When it is first opened, after a crash, and after it was closed.
fn keeps_its_counters(data: &Path, record: &Record) {
    let open = || Server::on_disk(record.rules.to_str().unwrap(), data, "wal");
    let server = open();
    record.check(&server);
    server.kill();
    let server = open();
    record.check(&server);
    assert!(server.terminate().success());
    record.check(&open());
}

/// What was answered about counters.
pub struct Record {
    pub rules: PathBuf,
    /// Unix time.
    at: u64,
    answers: Vec<(String, Vec<u64>)>,
}

impl Record {
    pub fn read(format: &Path, name: &str) -> Self {
        let text = fs::read_to_string(format.join(name).with_extension("txt")).unwrap();
        let (at, answers) = text.strip_prefix("# at ").unwrap().split_once('\n').unwrap();
        let answers: Vec<_> = answers.lines().map(|line| line.split_once(": ").unwrap()).collect();
        assert!(!answers.is_empty());
        Self {
            rules: format.join("rules.ini"),
            at: at.parse().unwrap(),
            answers: answers.iter().map(|(question, reply)| ((*question).to_owned(), numbers(reply))).collect(),
        }
    }

    pub fn check(&self, server: &Server) {
        let mut client = RespClient::connect(server.resp);
        for (question, recorded) in &self.answers {
            let reply = client.command(question);
            let (credits, seconds) = parts(question, numbers(&reply));
            let (recorded_credits, recorded_seconds) = parts(question, recorded.clone());
            assert_eq!(credits, recorded_credits, "{question}: {reply}");
            let elapsed = now().saturating_sub(self.at);
            let due = recorded_seconds.map(|seconds| seconds.saturating_sub(elapsed));
            assert_eq!(seconds.is_some(), due.is_some());
            let off = seconds.zip(due).map_or(0, |(seconds, due)| seconds.abs_diff(due));
            assert!(off <= ROUNDING, "{question}: {reply}, {off} s off");
        }
    }
}

/// What stays as it is while time passes, and the seconds to something, of which there are fewer then.
fn parts(question: &str, mut reply: Vec<u64>) -> (Vec<u64>, Option<u64>) {
    let has_seconds = ["DIVVY.PEEK ", "CL.THROTTLE "].iter().any(|command| question.starts_with(command));
    let seconds = if has_seconds { reply.pop() } else { None };
    (reply, seconds)
}

/// The numbers of a reply; -1, which stands for none, is left out.
fn numbers(reply: &str) -> Vec<u64> {
    let words = reply.trim_matches(['[', ']']).split(' ').filter(|word| *word != "-1");
    words.map(|word| word.parse().unwrap_or_else(|_| panic!("{reply}"))).collect()
}

fn now() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs()
}
