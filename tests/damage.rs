//! Damaged or locked data directories, and how the server handles them.

use std::fs;
use std::path::PathBuf;

use crate::support::{Log, Place, RespClient, SERVE, Server, divvy, http, number, refused, until};

const RULES: &str = "
[api=hit user=*] creditLimit=1000000 resetSeconds=36000 actorField=user
[default] creditLimit=0 resetSeconds=0
";

/// Returns the data files whose names contain this text, in order.
fn files(place: &Place, text: &str) -> Vec<PathBuf> {
    let paths = fs::read_dir(place.path("data")).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = paths.filter(|path| path.file_name().unwrap().to_str().unwrap().contains(text)).collect();
    files.sort();
    files
}

#[test]
fn damaged_block_is_logged_and_counted_and_interrupts_readiness() {
    let place = Place::new(RULES);
    let server = place.on_disk(&[]);
    let mut client = server.resp();
    for user in 0..2_000 {
        client.command(&format!("DIVVY.HIT api=hit user=u{user}"));
    }
    // A listing writes the counters into a file.
    client.command("DIVVY.COUNTERS api=hit user=* COUNT 1");
    assert!(server.terminate().success());
    let largest = files(&place, ".sst").into_iter().max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap();
    let mut bytes = fs::read(&largest).unwrap();
    let middle = bytes.len() / 4;
    bytes[middle] ^= 0xff;
    fs::write(&largest, bytes).unwrap();

    let (server, log) = place.logged_on_disk(&[]);
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
    let place = Place::new(RULES);
    let server = place.on_disk(&["--durability", "sync"]);
    let mut client = server.resp();
    for user in 0..100 {
        assert!(client.command(&format!("DIVVY.HIT api=hit user=u{user}")).starts_with("[1 999999 "));
    }
    server.kill();
    let logs = files(&place, ".log");
    assert!(!logs.is_empty());
    logs.iter().for_each(|log| fs::remove_file(log).unwrap());

    let mut command = divvy();
    let log = Log::of(&mut command);
    let started = Server::try_start_as(&mut command, &[&place.path("rules.ini"), "--data-dir", &place.path("data")]);
    assert!(started.is_err(), "it serves as if nothing were missing");
    log.await_line(&["is damaged"]);
}

/// Tries to start a server on damaged data, which must be refused with advice.
fn damage_is_refused(place: &Place) {
    let error = refused(&format!("{} --data-dir {}", SERVE.join(" "), place.path("data")));
    assert!(error.contains("damaged") && error.contains("backup"), "{error}");
}

#[test]
fn damaged_database_is_rejected_and_left_unchanged() {
    let place = Place::new(RULES);
    place.on_disk(&[]).terminate();
    let manifest = &files(&place, "MANIFEST")[0];
    let mut bytes = fs::read(manifest).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0xff;
    fs::write(manifest, &bytes).unwrap();
    damage_is_refused(&place);
    assert_eq!(fs::read(manifest).unwrap(), bytes);
}

/// Without a check, RocksDB silently drops the records after a damaged one, which are acknowledged hits.
#[test]
fn damaged_log_is_rejected() {
    let place = Place::new(RULES);
    let server = place.on_disk(&[]);
    let mut client = server.line();
    for _ in 0..100 {
        client.hit("api=hit user=ann");
    }
    // The shutdown ends with an fsync. Missing records are then damage, not the tail that a power cut removes.
    server.terminate();
    let log = files(&place, ".log").pop().unwrap();
    let intact = fs::read(&log).unwrap();
    let mut bytes = intact.clone();
    let third = bytes.iter().rposition(|byte| *byte != 0).unwrap() / 3;
    bytes[third..third + 64].fill(0xa5);
    fs::write(&log, &bytes).unwrap();
    damage_is_refused(&place);
    damage_is_refused(&place);
    fs::write(&log, &intact).unwrap();
    let again = place.on_disk(&[]);
    assert_eq!(again.line().hit("api=hit user=ann").1, 999_899, "nothing was overwritten");
}
