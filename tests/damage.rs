//! Damaged or locked data directories, and how the server handles them.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{Log, RespClient, RulesFile, Server, divvy, http, number, until};

const RULES: &str = "
[api=hit user=*] creditLimit=1000000 resetSeconds=36000 actorField=user
[default] creditLimit=0 resetSeconds=0
";

fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let paths = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|it| it == extension)).collect()
}

#[test]
fn damaged_block_is_logged_and_counted_and_interrupts_readiness() {
    let rules = RulesFile::ini(RULES);
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let server = Server::on_disk(rules.path(), &data, "wal");
    let mut client = server.resp();
    for user in 0..2_000 {
        client.command(&format!("DIVVY.HIT api=hit user=u{user}"));
    }
    // A listing writes the counters into a file.
    client.command("DIVVY.COUNTERS api=hit user=* COUNT 1");
    assert!(server.terminate().success());
    let largest = files(&data, "sst").into_iter().max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap();
    let mut bytes = fs::read(&largest).unwrap();
    let middle = bytes.len() / 4;
    bytes[middle] ^= 0xff;
    fs::write(&largest, bytes).unwrap();

    let (server, log) = Server::logged(&[rules.path(), "--data-dir", data.to_str().unwrap()]);
    assert_eq!(http::get(server.http, "/readyz").status, 200);
    let mut client = server.resp();
    let hit = |client: &mut RespClient, user| client.command(&format!("DIVVY.HIT api=hit user=u{user}"));
    let damaged: Vec<_> = (0..2_000).filter(|user| hit(&mut client, *user).starts_with("-ERR")).collect();
    assert!(!damaged.is_empty() && damaged.len() < 1_000, "{}", damaged.len());
    assert!(hit(&mut client, damaged[0]).starts_with("-ERR"));
    until(|| http::get(server.http, "/readyz").status == 503);
    log.await_line(&["ERROR", "cannot read counters"]);
    assert!(number(&server, "divvy_failed_reads_total") >= damaged.len() as u64);
    until(|| http::get(server.http, "/readyz").status == 200);
}

#[test]
fn deleted_write_ahead_log_is_reported_and_not_treated_as_empty() {
    let (rules, dir) = (RulesFile::ini(RULES), tempfile::tempdir().unwrap());
    let server = Server::on_disk(rules.path(), dir.path(), "sync");
    let mut client = server.resp();
    for user in 0..100 {
        assert!(client.command(&format!("DIVVY.HIT api=hit user=u{user}")).starts_with("[1 999999 "));
    }
    server.kill();
    let logs = files(dir.path(), "log");
    assert!(!logs.is_empty());
    logs.iter().for_each(|log| fs::remove_file(log).unwrap());

    let mut command = divvy();
    let log = Log::of(&mut command);
    let started = Server::try_start_as(&mut command, &[rules.path(), "--data-dir", dir.path().to_str().unwrap()]);
    assert!(started.is_err(), "it serves as if nothing were missing");
    log.await_line(&["is damaged"]);
}
