//! Reservations and commits survive crashes, and are in backups.

use super::*;
use crate::support::command_line::restore;

struct TestDirectory(tempfile::TempDir);

impl TestDirectory {
    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    /// Starts a server with a small table, so that counters are evicted and read back.
    fn serve(&self, rules: &RulesFile, data: &str) -> Server {
        let (data, backups) = (self.path(data), self.path("backups"));
        Server::start(&[rules.path(), "--data-dir", &data, "--backup-dir", &backups, "--cache-memory", "1Mi"])
    }
}

#[test]
#[cfg_attr(not(feature = "rocksdb"), ignore = "needs the embedded store")]
fn reservations_survive_a_sigkill_and_commits_are_remembered() {
    let (rules, place) = (rules(), TestDirectory(tempfile::tempdir().unwrap()));
    let server = place.serve(&rules, "data");
    let mut client = Client::of(&server);
    let reserve = |client: &mut Client, (algorithm, _): (&str, &str)| {
        let pairs = format!("by={algorithm} user=a");
        let ids = ["one", "two"].map(|name| client.reserve(&pairs, 30, &format!("TTL 60 ID {name}")).1);
        (pairs, ids)
    };
    let made = RHYTHMS.map(|rhythm| reserve(&mut client, rhythm));
    server.kill();

    let server = place.serve(&rules, "data");
    let mut client = Client::of(&server);
    assert_eq!(metrics::scrape(server.http).value("divvy_reservations", &[]), 2.0 * RHYTHMS.len() as f64);
    for (pairs, [one, two]) in &made {
        assert_eq!(client.left(pairs), 40, "{pairs}");
        assert_eq!(client.commit(one, 50), commit_answer(20, "settled"), "{pairs}: two is still set aside");
        assert_eq!(client.commit(one, 50), commit_answer(20, "repeated"), "{pairs}");
        assert_eq!(&client.reserve(pairs, 30, "TTL 60 ID two").1, two, "{pairs}: the same one");
        assert_ne!(client.ask(&format!("DIVVY.RENEW {two} TTL 60")), "0", "{pairs}");
    }
    server.kill();

    let server = place.serve(&rules, "data");
    let mut client = Client::of(&server);
    for (pairs, [one, two]) in &made {
        assert_eq!(client.commit(one, 50), commit_answer(20, "repeated"), "{pairs}");
        assert_eq!(client.ask(&format!("DIVVY.RELEASE {two}")), "1", "{pairs}");
        assert_eq!(client.left(pairs), 50, "{pairs}");
    }
    server.kill();

    let server = place.serve(&rules, "data");
    let mut client = Client::of(&server);
    for (pairs, [_, two]) in &made {
        assert_eq!(client.ask(&format!("DIVVY.RELEASE {two}")), "0", "{pairs}");
        assert_eq!(client.left(pairs), 50, "{pairs}");
    }
}

#[test]
#[cfg_attr(not(feature = "rocksdb"), ignore = "needs the embedded store")]
fn backup_includes_reservations() {
    let (rules, place) = (rules(), TestDirectory(tempfile::tempdir().unwrap()));
    let server = place.serve(&rules, "data");
    let mut client = Client::of(&server);
    let (_, open) = client.reserve("by=tokens user=a", 30, "TTL 60");
    let (_, committed) = client.reserve("by=tokens user=a", 10, "TTL 60");
    assert_eq!(client.commit(&committed, 20), commit_answer(50, "settled"));
    assert!(client.ask("DIVVY.BACKUP first").contains("first"));
    assert_eq!(client.commit(&open, 0), commit_answer(80, "settled"), "after the backup");
    server.kill();

    let backup = Path::new(&place.path("backups")).join("first");
    restore(backup, place.path("restored"));
    let server = place.serve(&rules, "restored");
    let mut client = Client::of(&server);
    assert_eq!(client.left("by=tokens user=a"), 50);
    assert_eq!(client.commit(&committed, 20), commit_answer(50, "repeated"));
    assert_eq!(client.commit(&open, 25), commit_answer(55, "settled"));
}
