//! The maximum number and duration of reservations, and stores that are full or fail.

use super::*;
use crate::support::gateway::free_address;

fn refused(server: &Server) -> f64 {
    metrics::scrape(server.http).value("divvy_reservations_refused_total", &[])
}

/// Starts a server with these flags on each store.
fn servers(rules: &RulesFile, data: &Path, flags: &[&str]) -> Vec<Server> {
    let data = data.to_str().unwrap();
    let stores: [&[&str]; 2] = [&["--store", "memory"], &["--data-dir", data]];
    stores.map(|store| Server::start(&[&[rules.path()], store, flags].concat())).into()
}

#[test]
fn one_reservation_too_many_is_an_error_and_takes_nothing() {
    let (rules, data) = (rules(), tempfile::tempdir().unwrap());
    for server in servers(&rules, data.path(), &["--max-reservations", "2"]) {
        let mut client = Client::of(&server);
        let (_, first) = client.reserve("by=fixed user=a", 10, "TTL 60");
        let (_, second) = client.reserve("by=fixed user=a", 10, "TTL 60 ID x");
        for pairs in ["by=fixed user=a", "by=fixed user=b"] {
            let error = client.ask(&format!("DIVVY.RESERVE {pairs} AMOUNT 10 TTL 60"));
            assert!(error.starts_with("-ERR") && error.contains("--max-reservations"), "{error}");
        }
        assert_eq!((client.left("by=fixed user=a"), client.left("by=fixed user=b")), (80, 100));
        assert!(!client.ask("DIVVY.COUNTERS fixed").contains("[b "), "no counter was made");
        assert_eq!(refused(&server), 2.0);
        assert_eq!(client.reserve("by=fixed user=a", 10, "TTL 60 ID x").1, second, "no new one");
        assert_eq!(metrics::scrape(server.http).value("divvy_max_reservations", &[]), 2.0);

        // A commit uses the existing record, which is remembered for a minute.
        assert_eq!(client.commit(&first, 5), commit_answer(85, "settled"));
        assert!(client.ask("DIVVY.RESERVE by=fixed user=a AMOUNT 10 TTL 60").starts_with("-ERR"));
        assert_eq!(client.ask(&format!("DIVVY.RELEASE {second}")), "1");
        let (_, third) = client.reserve("by=fixed user=a", 10, "TTL 60");
        assert!(client.ask(&format!("DIVVY.COMMIT {second} COST 5")).starts_with("-ERR"), "late, and not remembered");
        assert_eq!(client.left("by=fixed user=a"), 85, "so it is not counted");
        assert_eq!(client.ask(&format!("DIVVY.RELEASE {third}")), "1");
        assert_eq!(client.commit(&second, 5), commit_answer(90, "late"), "there is room again");
    }
}

#[test]
fn stack_needs_room_for_each_of_its_reservations() {
    let stack = "[user=*]\ncreditLimit = 100\nresetSeconds = 3600\nactorField = user\nmatchPolicy = and\nlabel = a\n\n\
                 [user=*]\ncreditLimit = 50\nresetSeconds = 60\nactorField = user\nlabel = b\n\n\
                 [one=*]\ncreditLimit = 50\nresetSeconds = 60\n\n[default]\ncreditLimit = 0\n";
    let (rules, data) = (RulesFile::ini(stack), tempfile::tempdir().unwrap());
    for server in servers(&rules, data.path(), &["--max-reservations", "3"]) {
        let mut client = Client::of(&server);
        let (_, id) = client.reserve("user=a", 10, "TTL 60");
        assert!(client.ask("DIVVY.RESERVE user=b AMOUNT 10 TTL 60").starts_with("-ERR"));
        assert_eq!(metrics::scrape(server.http).value("divvy_reservations", &[]), 2.0, "one of each rule");
        assert_eq!(["a", "b"].map(|label| client.ask(&format!("DIVVY.COUNTERS {label}")).contains("[b ")), [false; 2]);
        client.reserve("one=x", 10, "TTL 60");
        assert_eq!(client.ask(&format!("DIVVY.RELEASE {id}")), "1");
        client.reserve("user=b", 10, "TTL 60");
    }
}

#[test]
fn operator_sets_the_longest_ttl() {
    let rules = rules();
    let server = Server::start(&[rules.path(), "--store", "memory", "--max-reservation-ttl", "1h"]);
    let mut client = Client::of(&server);
    let (_, id) = client.reserve("by=fixed user=a", 10, "TTL 3600");
    let lasts: u64 = client.ask(&format!("DIVVY.RENEW {id} TTL 3600")).parse().unwrap();
    assert!((3600..=3600 + 3600 / 32 + 1).contains(&lasts), "{lasts}: its end is rounded up");
    for command in ["DIVVY.RESERVE by=fixed user=a AMOUNT 1 TTL 3601", &format!("DIVVY.RENEW {id} TTL 3601")] {
        let error = client.ask(command);
        assert!(error.contains("TTL 3601 exceeds the maximum of 3600 s (--max-reservation-ttl)"), "{error}");
    }
    let done = divvy().args(["serve", rules.path(), "--max-reservation-ttl", "31d"]).output().unwrap();
    assert!(!done.status.success() && String::from_utf8_lossy(&done.stderr).contains("--max-reservation-ttl"));
}

#[test]
fn reservation_that_cannot_be_stored_is_an_error_under_every_policy() {
    let rules = rules();
    let nowhere = format!("redis://{}", free_address());
    for policy in ["deny", "allow", "local", "error"] {
        let server = Server::start(&[rules.path(), "--redis-url", &nowhere, "--on-store-error", policy]);
        let failed = Client::of(&server).ask("DIVVY.RESERVE by=fixed user=a AMOUNT 10 TTL 60");
        assert!(failed.starts_with("-ERR"), "{policy}: {failed}");
    }
    for policy in ["deny", "allow", "error"] {
        let server = Server::start(&[rules.path(), "--store", "memory", "--max-counters", "1", "--when-full", policy]);
        let mut client = Client::of(&server);
        let (_, id) = client.reserve("by=fixed user=a", 10, "TTL 60");
        let full = client.ask("DIVVY.RESERVE by=fixed user=b AMOUNT 10 TTL 60");
        assert!(full.starts_with("-ERR"), "{policy}: {full}");
        assert_eq!(client.commit(&id, 20), commit_answer(80, "settled"), "{policy}: its counter is there");
    }
}
