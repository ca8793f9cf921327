//! Operations on a running server: backups, and listing or forgetting counters.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;

use crate::support::{
    Place, RespClient, SERVE, divvy_with, done, done_at, encode, memory_of, refused, restore, run_at,
};

const LIMIT: u64 = 1_000_000;
const RULES: &str = "
[api=upload user=*] creditLimit=1000000 resetSeconds=36000 actorField=user label=uploads
[api=other user=*] creditLimit=5 resetSeconds=36000 actorField=user
[default] creditLimit=0 resetSeconds=0
";

fn entries(dir: impl AsRef<Path>) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Makes a backup while clients send hits. The restored server must have every hit that was answered before the backup
/// was requested, and none that was never sent.
fn check_backup_under_load(durability: &str) {
    const CLIENTS: usize = 4;
    let place = Place::new(RULES);
    let server = place.on_disk(&["--durability", durability]);
    let answered: Vec<AtomicU64> = (0..CLIENTS).map(|_| AtomicU64::new(0)).collect();
    let stop = AtomicBool::new(false);
    let (before, after) = thread::scope(|scope| {
        for (number, answered) in answered.iter().enumerate() {
            let mut client = server.line();
            let stop = &stop;
            scope.spawn(move || {
                while !stop.load(SeqCst) {
                    client.send(format!("HIT api=upload user=u{number}\n").repeat(50).as_bytes());
                    for _ in 0..50 {
                        assert!(client.try_read_verdict().is_some_and(|(allowed, ..)| allowed));
                        answered.fetch_add(1, SeqCst);
                    }
                }
            });
        }
        let counts = || answered.iter().map(|count| count.load(SeqCst)).collect::<Vec<_>>();
        while counts().iter().any(|count| *count < 2_000) {
            thread::yield_now();
        }
        let before = counts();
        let printed = server.resp().command("DIVVY.BACKUP first");
        assert_eq!(printed, place.path("backups/first"));
        // The load continues after the backup, which does not contain the later hits.
        let later: u64 = counts().iter().sum::<u64>() + 2_000;
        while counts().iter().sum::<u64>() < later {
            thread::yield_now();
        }
        stop.store(true, SeqCst);
        (before, later)
    });
    let at_the_end: Vec<u64> = answered.iter().map(|count| count.load(SeqCst)).collect();
    assert!(at_the_end.iter().sum::<u64>() >= after);
    assert_eq!(entries(place.path("backups")), ["first"]);
    server.kill();

    let printed = done(&format!("restore {} --data-dir {}", place.path("backups/first"), place.path("restored")));
    assert!(printed.contains("4 counters"), "{printed}");
    let server = place.serve(&["--data-dir", "DIR/restored"]);
    let mut client = server.line();
    for (number, (before, at_the_end)) in before.into_iter().zip(at_the_end).enumerate() {
        let (_, credit, _) = client.hit(&format!("api=upload user=u{number}"));
        let in_backup = LIMIT - credit - 1;
        assert!((before..=at_the_end).contains(&in_backup), "u{number}: {before} <= {in_backup} <= {at_the_end}");
    }
}

#[test]
fn backup_under_load_is_complete_in_every_mode() {
    ["wal", "sync", "lazy"].into_iter().for_each(check_backup_under_load);
}

#[test]
fn backup_includes_the_journal_and_does_not_change() {
    let place = Place::new(RULES);
    let server = place.on_disk(&["--durability", "lazy"]);
    let mut client = server.resp();
    // Both are sent in one write, so that no housekeeping runs between the hit and the backup.
    let hit = encode(&[b"DIVVY.HIT", b"api=other", b"user=ada"]);
    client.send(&[hit, encode(&[b"DIVVY.BACKUP", b"one"])].concat());
    assert_eq!(client.read_reply(), "[1 4 36000]");
    assert_eq!(client.read_reply(), place.path("backups/one"));
    client.command("DIVVY.HIT api=other user=ada");
    assert_eq!(client.command("DIVVY.BACKUP two"), place.path("backups/two"));
    for (backup, credit) in [("one", "3"), ("two", "2"), ("one", "3")] {
        let _ = fs::remove_dir_all(place.path("restored"));
        restore(place.path(&format!("backups/{backup}")), place.path("restored"));
        let restored = place.serve(&["--data-dir", "DIR/restored"]);
        let reply = restored.resp().command("DIVVY.HIT api=other user=ada");
        assert!(reply.starts_with(&format!("[1 {credit} ")), "{backup}: {reply}");
    }
}

#[test]
fn backup_is_only_written_below_the_operators_directory() {
    let place = Place::new(RULES);
    let server = place.on_disk(&[]);
    let mut client = server.resp();
    assert!(client.command("DIVVY.HIT api=other user=ada").starts_with("[1 "));
    for name in ["-rf", "../escaped", "/tmp/escaped", "a/b", ".hidden", "..", &place.path("escaped")] {
        let reply = client.command(&format!("DIVVY.BACKUP {name}"));
        assert!(reply.starts_with("-ERR a backup needs a name of letters"), "{name}: {reply}");
    }
    fs::create_dir(place.path("backups/empty")).unwrap();
    fs::create_dir_all(place.path("backups/full/inside")).unwrap();
    assert_eq!(client.command("DIVVY.BACKUP empty"), place.path("backups/empty"));
    for taken in ["empty", "full"] {
        let reply = client.command(&format!("DIVVY.BACKUP {taken}"));
        assert!(reply.contains("already exists and is not empty"), "{reply}");
    }
    assert_eq!(entries(place.path("backups")), ["empty", "full"]);
    assert_eq!(entries(place.path("backups/full")), ["inside"]);
    assert_eq!(entries(place.dir()), ["backups", "data", "rules.ini"], "nothing escaped");
}

#[test]
fn only_complete_backups_are_restored_and_only_into_empty_directories() {
    let place = Place::new(RULES);
    let server = place.on_disk(&[]);
    let mut client = server.resp();
    for user in 0..1_000 {
        client.command(&format!("DIVVY.HIT api=other user=u{user}"));
    }
    let backup = client.command("DIVVY.BACKUP a");
    let restore = |from: &str, to: &str| refused(&format!("restore {from} --data-dir {}", place.path(to)));

    let error = restore(&backup, "data");
    assert!(error.contains("not empty") && error.contains("stop the server"), "{error}");
    let error = restore(&place.path("data"), "new");
    assert!(error.contains("is not a divvy backup"), "{error}");
    let error = refused(&format!("{} --data-dir {backup}", SERVE.join(" ")));
    assert!(error.contains("is a backup") && error.contains("divvy restore"), "{error}");

    let format = format!("{backup}/DIVVY-FORMAT");
    let written = fs::read(&format).unwrap();
    fs::write(&format, "99\n").unwrap();
    let error = restore(&backup, "new");
    assert!(error.contains("format 99"), "{error}");
    fs::write(&format, written).unwrap();

    // Changes one byte in the middle of the table with the counters. The backup's files may be shared with the data
    // directory.
    server.kill();
    let tables = entries(&backup).into_iter().filter(|name| name.ends_with(".sst"));
    let tables = tables.map(|name| format!("{backup}/{name}"));
    let table = tables.max_by_key(|table| fs::metadata(table).unwrap().len()).unwrap();
    let whole = fs::read(&table).unwrap();
    let mut damaged = whole.clone();
    damaged[whole.len() / 4] ^= 0xff;
    fs::remove_file(&table).unwrap();
    for wrong in [Some(damaged), None] {
        if let Some(bytes) = wrong {
            fs::write(&table, bytes).unwrap();
        } else {
            fs::remove_file(&table).unwrap();
        }
        let error = restore(&backup, "new");
        assert!(error.contains("is damaged") && error.contains("use another one"), "{error}");
        assert!(entries(place.path("new")).is_empty(), "nothing half is left");
        fs::create_dir(place.path("empty")).unwrap();
        restore(&backup, "empty");
        fs::remove_dir(place.path("empty")).expect("it is still empty");
    }
    fs::write(&table, whole).unwrap();
    let printed = done(&format!("restore {backup} --data-dir {}", place.path("new")));
    assert!(printed.contains("1000 counters, all of them read"), "{printed}");
}

#[test]
fn forgotten_counters_stay_forgotten_after_a_crash() {
    let place = Place::new(RULES);
    let server = place.on_disk(&[]);
    let mut client = server.resp();
    for user in ["ada", "bob"] {
        client.command(&format!("DIVVY.HIT api=upload user={user}"));
    }
    assert_eq!(client.command("DIVVY.FORGET uploads ACTOR ada"), "[0 1]");
    server.kill();
    let server = place.on_disk(&[]);
    let mut client = server.resp();
    let page = client.command("DIVVY.COUNTERS uploads");
    assert!(page.starts_with("[0 [[bob 999999 ") && !page.contains("ada"), "{page}");
}

/// Sends `commands` in pipelines, and passes each reply to `check`.
fn pipeline(client: &mut RespClient, commands: impl Iterator<Item = Vec<u8>>, mut check: impl FnMut(&str)) {
    let commands: Vec<_> = commands.collect();
    for chunk in commands.chunks(1_000) {
        client.send(&chunk.concat());
        chunk.iter().for_each(|_| check(&client.read_reply()));
    }
}

fn hit_of(user: &str) -> Vec<u8> {
    encode(&[b"DIVVY.HIT", b"api=upload", format!("user={user}").as_bytes()])
}

#[test]
fn million_counters_are_listed_and_forgotten_in_bounded_memory() {
    const COUNTERS: usize = 1_000_000;
    const MIB: u64 = 1 << 20;
    let place = Place::new(RULES);
    let server = place.on_disk(&["--cache-memory", "1Mi"]);
    let mut client = server.resp();
    pipeline(&mut client, (0..COUNTERS).map(|number| hit_of(&format!("user-{number}"))), |reply| {
        assert!(reply.starts_with("[1 999999 "), "{reply}");
    });
    let before = server.peak_resident();
    let mut listing = divvy_with(&format!("counters --rule uploads --server {}", server.http));
    let mut child = listing.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().contains("actor"));
    // The command cannot end before these lines are read, because the pipe holds fewer.
    const UNREAD: usize = 20_000;
    let mut listed = lines.by_ref().take(COUNTERS - UNREAD).count();
    let of_client = memory_of(child.id(), "VmHWM");
    listed += lines.count();
    assert!(child.wait().unwrap().success());
    assert_eq!(listed, COUNTERS);
    // The program itself takes up to 32 MiB. All counters would take more than 64.
    assert!(of_client < 48 * MIB, "the client's memory: {} MiB", of_client / MIB);
    // The kernel's peak is exact to a few pages per processor, so it may even decrease.
    let grown = server.peak_resident().saturating_sub(before);
    assert!(grown < 64 * MIB, "the server grew by {} MiB", grown / MIB);

    let (_, forgotten, _) = run_at(&server, "forget --rule uploads --yes");
    assert_eq!(forgotten, format!("{COUNTERS} forgotten\n"));
    assert_eq!(client.command("DIVVY.COUNTERS uploads"), "[0 []]");
}

#[test]
fn stats_match_the_requests() {
    let place = Place::new(RULES);
    let server = place.on_disk(&["--durability", "lazy"]);
    let mut client = server.resp();
    for _ in 0..7 {
        client.command("DIVVY.HIT api=other user=ada");
    }
    let json: serde_json::Value = serde_json::from_str(&done_at(&server, "stats --json")).unwrap();
    assert_eq!(json["hits"], serde_json::json!({ "accepted": 5, "rejected": 2 }), "{json}");
    assert_eq!(json["metrics"]["divvy_hits_total{rule_label=\"rule-2\",status=\"rejected\"}"], 2, "{json}");
    let store = &json["store"];
    assert_eq!(
        (&store["name"], &store["durability"], &store["failing"]),
        (&"rocksdb".into(), &"lazy".into(), &false.into())
    );
    assert!(store["diskBytes"].as_u64().unwrap() > 0, "{json}");
    assert!(json["server"]["residentBytes"].as_u64().unwrap() > 1 << 20, "{json}");
    assert_eq!(done_at(&server, "stats hits"), "# hits\naccepted:5\nrejected:2\n");
}
