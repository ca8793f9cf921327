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

[kind=sliding-window user=*]
creditLimit = 1000000000
resetSeconds = 360000000
algorithm = sliding-window
actorField = user

[kind=sliding-log user=*]
creditLimit = 1000
resetSeconds = 360000
algorithm = sliding-log
actorField = user

[kind=token-bucket user=*]
creditLimit = 1000000000
resetSeconds = 360000
algorithm = token-bucket
actorField = user

[kind=leaky-bucket user=*]
creditLimit = 1
resetSeconds = 360000
algorithm = leaky-bucket
burst = 1000000000
actorField = user

[default]
creditLimit = 0
resetSeconds = 0
";
const CLIENTS: usize = 6;
const USERS: usize = 50;
const PIPELINE: usize = 16;

/// What clients read last.
#[derive(Default)]
struct Acknowledged {
    /// By the operation: the credit left, the seconds left, and when that was read.
    windows: HashMap<String, (u64, u64, Instant)>,
    /// By the command: the number in its reply that only goes down, since its credits take days to come back.
    falling: HashMap<String, u64>,
}

impl Acknowledged {
    /// Keeps the lower number of each bucket.
    fn merge(&mut self, other: Self) {
        for (bucket, seen) in other.windows {
            let last = self.windows.entry(bucket).or_insert(seen);
            if seen.0 < last.0 {
                *last = seen;
            }
        }
        for (command, number) in other.falling {
            let last = self.falling.entry(command).or_insert(number);
            *last = number.min(*last);
        }
    }
}

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
    let mut acknowledged = Acknowledged::default();
    for round in 0..kills() {
        let server = Server::on_disk(rules.path(), dir.path(), durability);
        verify(&server, &acknowledged);
        let clients: Vec<_> = (0..CLIENTS).map(|client| spawn_client(&server, client, round)).collect();
        // Anything from the first commit to after several write-backs of the counters.
        thread::sleep(Duration::from_millis(50 + random() % 2000));
        server.kill();
        for client in clients {
            acknowledged.merge(client.join().unwrap());
        }
    }
    verify(&Server::on_disk(rules.path(), dir.path(), durability), &acknowledged);
    assert!(acknowledged.windows.len() > CLIENTS, "hits were acknowledged");
    assert!(acknowledged.falling.len() > CLIENTS, "takes from the clients' own buckets were acknowledged");
    assert_no_leftovers(dir.path());
}

/// The clients pipeline hits on the line protocol, hits on RESP, or commands that bring their own limit, all over the
/// same few users.
fn spawn_client(server: &Server, client: usize, round: u32) -> thread::JoinHandle<Acknowledged> {
    let (line, resp) = (server.line, server.resp);
    thread::spawn(move || {
        let mut seen = Acknowledged::default();
        let mut turn = client * 7 + round as usize * 13;
        if client.is_multiple_of(3) {
            let mut connection = LineClient::connect(line);
            while line_burst(&mut connection, &mut turn, &mut seen).is_some() {}
        } else {
            let burst = if client % 3 == 1 { resp_burst } else { falling_burst };
            let mut connection = RespClient::connect(resp);
            while burst(&mut connection, &mut turn, &mut seen).is_some() {}
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
        seen.windows.insert(format!("kind=login user={user}"), (credit, reset, Instant::now()));
    }
    Some(())
}

fn resp_burst(connection: &mut RespClient, turn: &mut usize, seen: &mut Acknowledged) -> Option<()> {
    let users: Vec<_> = (0..PIPELINE).map(|_| next_user(turn)).collect();
    let burst: Vec<u8> = users
        .iter()
        .flat_map(|user| encode(&[b"DIVVY.HIT", b"kind=canary", format!("user={user}").as_bytes()]))
        .collect();
    connection.try_send(&burst)?;
    for _ in users {
        let reply = connection.try_read_reply()?;
        let [1, credit, reset] = numbers(&reply)[..] else { panic!("not a verdict: {reply}") };
        seen.windows.insert("kind=canary".to_owned(), (credit.unsigned_abs(), reset.unsigned_abs(), Instant::now()));
    }
    Some(())
}

fn falling_burst(connection: &mut RespClient, turn: &mut usize, seen: &mut Acknowledged) -> Option<()> {
    let commands: Vec<_> = (0..PIPELINE).map(|_| falling_command(turn)).collect();
    connection.try_send((commands.join("\r\n") + "\r\n").as_bytes())?;
    for command in commands {
        let reply = connection.try_read_reply()?;
        let number = falling(&reply).unwrap_or_else(|| panic!("{command}: {reply}"));
        seen.falling.insert(command, number);
    }
    Some(())
}

/// A take from one of a user's buckets, of every algorithm, none of which gives a credit back in four days.
fn falling_command(turn: &mut usize) -> String {
    let user = next_user(turn);
    match *turn % 7 {
        0 => format!("RL.REDUCE {user} 1000000000 360000"),
        1 => format!("RL.PSESSIONIZE {user} 1000000001 360000000"),
        2 => format!("CL.THROTTLE {user} 1000000000 1 360000"),
        3 => format!("DIVVY.HIT kind=sliding-window user={user}"),
        4 => format!("DIVVY.HIT kind=sliding-log user={user}"),
        5 => format!("DIVVY.HIT kind=token-bucket user={user}"),
        _ => format!("DIVVY.HIT kind=leaky-bucket user={user}"),
    }
}

/// The tokens before, or the credits left.
fn falling(reply: &str) -> Option<u64> {
    match numbers(reply)[..] {
        [number] | [number, _] | [_, number, _] | [0, _, number, -1, _] => u64::try_from(number).ok(),
        _ => None,
    }
}

/// The integers of a reply; none when it is anything else.
fn numbers(reply: &str) -> Vec<i64> {
    reply.trim_matches(['[', ']']).split(' ').map_while(|number| number.parse().ok()).collect()
}

/// Another number at every call: the standard library draws its hashers' keys at random.
fn random() -> u64 {
    std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), ())
}

fn next_user(turn: &mut usize) -> String {
    *turn = turn.wrapping_mul(31).wrapping_add(17);
    format!("user-{}", *turn % USERS)
}

/// The next ask of every bucket finds less credit than the last one that was answered, and its window goes on.
fn verify(server: &Server, acknowledged: &Acknowledged) {
    let mut client = LineClient::connect(server.line);
    for (bucket, (credit, reset, read_at)) in &acknowledged.windows {
        let (allowed, credit_now, reset_now) = client.hit(bucket);
        assert!(allowed && credit_now < *credit, "{bucket}: {credit_now} after a restart, {credit} before");
        let elapsed = read_at.elapsed().as_secs();
        let expected = reset.saturating_sub(elapsed + 2)..=*reset;
        assert!(expected.contains(&reset_now), "{bucket}: {reset_now} s left, {reset} s left {elapsed} s ago");
    }
    let mut client = RespClient::connect(server.resp);
    for (command, number) in &acknowledged.falling {
        let reply = client.command(command);
        assert!(
            // What is used up stays so.
            falling(&reply).is_some_and(|now| now < *number || (now, *number) == (0, 0)),
            "{command}: {reply} after a restart, {number} before"
        );
    }
}

/// The write-ahead logs of finished rounds do not pile up.
fn assert_no_leftovers(dir: &Path) {
    let logs = std::fs::read_dir(dir).unwrap().filter(|entry| {
        entry.as_ref().is_ok_and(|entry| entry.path().extension().is_some_and(|extension| extension == "log"))
    });
    assert!(logs.count() < 10);
}
