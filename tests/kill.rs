//! Crashes: a server is killed with SIGKILL under load, and no acknowledged hit is missing afterwards.
//!
//! `DIVVY_TEST_KILLS` sets how many kills a test makes (3 unless set; the slow suite makes 50).

use std::collections::HashMap;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{LineClient, RespClient, RulesFile, Server, encode};

const RULES: &str = "
[kind=login user=*]
creditLimit = 1000000000
resetSeconds = 3600
actorField = user

[kind=canary user=*]
creditLimit = 1000000000
resetSeconds = 3600
actorField = user
matchPolicy = canary

[kind=canary]
creditLimit = 1000000000
resetSeconds = 3600

[default]
creditLimit = 0
resetSeconds = 0
";
const CLIENTS: usize = 6;
const USERS: usize = 50;
const PIPELINE: usize = 16;

/// The last credit that a client read of a bucket, the seconds left then, and when that was.
type Acknowledged = HashMap<String, (u64, u64, Instant)>;

fn kills() -> u32 {
    std::env::var("DIVVY_TEST_KILLS").map_or(3, |kills| kills.parse().expect("DIVVY_TEST_KILLS is a number"))
}

#[test]
fn no_hit_acknowledged_in_wal_mode_is_lost() {
    kill_and_restart("wal");
}

#[test]
fn no_hit_acknowledged_in_sync_mode_is_lost() {
    kill_and_restart("sync");
}

fn kill_and_restart(durability: &str) {
    let rules = RulesFile::ini(RULES);
    let dir = tempfile::tempdir().unwrap();
    let mut acknowledged = Acknowledged::new();
    for round in 0..kills() {
        let server = Server::on_disk(rules.path(), dir.path(), durability);
        verify(&server, &acknowledged);
        let clients: Vec<_> = (0..CLIENTS).map(|client| spawn_client(&server, client, round)).collect();
        // Anything from the first commit to after several write-backs of the counters.
        thread::sleep(Duration::from_millis(50 + u64::from(round) * 977 % 2500));
        server.kill();
        for client in clients {
            for (bucket, seen) in client.join().unwrap() {
                let last = acknowledged.entry(bucket).or_insert(seen);
                if seen.0 < last.0 {
                    *last = seen;
                }
            }
        }
    }
    verify(&Server::on_disk(rules.path(), dir.path(), durability), &acknowledged);
    assert!(acknowledged.len() > CLIENTS, "hits were acknowledged");
    assert_no_leftovers(dir.path());
}

/// Half of the clients pipeline on the line protocol, half on RESP, all over the same few users.
fn spawn_client(server: &Server, client: usize, round: u32) -> thread::JoinHandle<Acknowledged> {
    let (line, resp) = (server.line, server.resp);
    thread::spawn(move || {
        let mut seen = Acknowledged::new();
        let mut turn = client * 7 + round as usize * 13;
        if client.is_multiple_of(2) {
            let mut connection = LineClient::connect(line);
            while line_burst(&mut connection, &mut turn, &mut seen).is_some() {}
        } else {
            let mut connection = RespClient::connect(resp);
            // A kill in the middle of a reply ends the connection with a panic of the test's reader: caught here.
            let quiet = std::panic::AssertUnwindSafe(|| while resp_burst(&mut connection, &mut turn, &mut seen) {});
            let _ = std::panic::catch_unwind(quiet);
        }
        seen
    })
}

fn line_burst(connection: &mut LineClient, turn: &mut usize, seen: &mut Acknowledged) -> Option<()> {
    let users: Vec<_> = (0..PIPELINE).map(|_| next_user(turn)).collect();
    let burst: String = users.iter().map(|user| format!("HIT kind=login user={user}\n")).collect();
    std::io::Write::write_all(&mut connection.stream(), burst.as_bytes()).ok()?;
    for user in users {
        let (allowed, credit, reset) = connection.try_read_verdict()?;
        assert!(allowed);
        seen.insert(format!("kind=login user={user}"), (credit, reset, Instant::now()));
    }
    Some(())
}

fn resp_burst(connection: &mut RespClient, turn: &mut usize, seen: &mut Acknowledged) -> bool {
    let users: Vec<_> = (0..PIPELINE).map(|_| next_user(turn)).collect();
    let burst: Vec<u8> = users
        .iter()
        .flat_map(|user| encode(&[b"DIVVY.HIT", b"kind=canary", format!("user={user}").as_bytes()]))
        .collect();
    connection.send(&burst);
    for _ in users {
        let reply = connection.read_reply();
        let numbers: Vec<u64> =
            reply.trim_matches(['[', ']']).split(' ').filter_map(|number| number.parse().ok()).collect();
        let [1, credit, reset] = numbers[..] else { return false };
        seen.insert("kind=canary".to_owned(), (credit, reset, Instant::now()));
    }
    true
}

fn next_user(turn: &mut usize) -> String {
    *turn = turn.wrapping_mul(31).wrapping_add(17);
    format!("user-{}", *turn % USERS)
}

/// The next hit of every bucket finds less credit than the last one that was answered, and its window goes on.
fn verify(server: &Server, acknowledged: &Acknowledged) {
    let mut client = LineClient::connect(server.line);
    for (bucket, (credit, reset, read_at)) in acknowledged {
        let (allowed, credit_now, reset_now) = client.hit(bucket);
        assert!(allowed && credit_now < *credit, "{bucket}: {credit_now} after a restart, {credit} before");
        let elapsed = read_at.elapsed().as_secs();
        let expected = reset.saturating_sub(elapsed + 2)..=*reset;
        assert!(expected.contains(&reset_now), "{bucket}: {reset_now} s left, {reset} s left {elapsed} s ago");
    }
}

/// The write-ahead logs of finished rounds do not pile up.
fn assert_no_leftovers(dir: &Path) {
    let logs = std::fs::read_dir(dir).unwrap().filter(|entry| {
        entry.as_ref().is_ok_and(|entry| entry.path().extension().is_some_and(|extension| extension == "log"))
    });
    assert!(logs.count() < 10);
}
