//! Reservations: credits are set aside, committed, renewed and released, over RESP and HTTP and on every store.

mod api;
mod bounds;
mod forged;
mod seals;

use std::path::Path;

use crate::plans::RHYTHMS;
use crate::support::redis::until;
use crate::support::{RespClient, RulesFile, Server, divvy, metrics};

/// Returns rules: a hundred credits per user for every algorithm, a log, a rule without a counter, and a default
/// that denies.
fn rules() -> RulesFile {
    let rule = |(algorithm, rhythm): (&str, &str)| {
        format!("[by={algorithm} user=*]\ncreditLimit = 100\n{rhythm}\nactorField = user\nlabel = {algorithm}\n\n")
    };
    let others = "[by=log user=*] creditLimit=100 resetSeconds=60 algorithm=sliding-log actorField=user
[free=yes] creditLimit=7 resetSeconds=0
[default] creditLimit=0
";
    RulesFile::ini(&(RHYTHMS.map(rule).concat() + others))
}

/// A client that makes reservations.
struct Client(RespClient);

impl Client {
    fn of(server: &Server) -> Self {
        Self(RespClient::connect(server.resp))
    }

    fn ask(&mut self, command: &str) -> String {
        self.0.command(command)
    }

    /// Makes a reservation that must be allowed. Returns the credit left, and the id.
    fn reserve(&mut self, pairs: &str, amount: u64, options: &str) -> (u64, String) {
        let reply = self.ask(&format!("DIVVY.RESERVE {pairs} AMOUNT {amount} {options}"));
        let words: Vec<_> = reply.trim_matches(['[', ']']).split(' ').collect();
        assert!(words.len() == 4 && words[0] == "1", "{pairs}: {reply}");
        (words[1].parse().unwrap(), words[3].to_owned())
    }

    /// Commits a reservation. Returns the balance, and the result.
    fn commit(&mut self, id: &str, cost: u64) -> (i64, String) {
        let reply = self.ask(&format!("DIVVY.COMMIT {id} COST {cost}"));
        let words: Vec<_> = reply.trim_matches(['[', ']']).split(' ').collect();
        assert_eq!(words.len(), 3, "{reply}");
        (words[0].parse().expect(&reply), words[2].to_owned())
    }

    fn left(&mut self, pairs: &str) -> u64 {
        let reply = self.ask(&format!("DIVVY.PEEK {pairs}"));
        reply.split(' ').nth(1).and_then(|word| word.parse().ok()).expect(&reply)
    }
}

fn commit_answer(balance: i64, word: &str) -> (i64, String) {
    (balance, word.to_owned())
}

/// Checks the effect of every command on a user's counter.
fn credits_are_set_aside_and_settled(server: &Server) {
    let mut client = Client::of(server);
    for (algorithm, _) in RHYTHMS {
        let pairs = format!("by={algorithm} user=a");
        let (credit, id) = client.reserve(&pairs, 60, "TTL 60");
        assert_eq!((credit, client.left(&pairs)), (40, 40), "{algorithm}");
        assert!(client.ask(&format!("DIVVY.HIT {pairs} COST 41")).starts_with("[0 40 "), "{algorithm}");
        let denied = client.ask(&format!("DIVVY.RESERVE {pairs} AMOUNT 41 TTL 60"));
        assert!(denied.starts_with("[0 40 ") && denied.ends_with(" nil]"), "{algorithm}: {denied}");
        assert!(client.ask(&format!("DIVVY.HIT {pairs} COST 10")).starts_with("[1 30 "), "{algorithm}");

        assert_eq!(client.commit(&id, 25), commit_answer(65, "settled"), "{algorithm}");
        assert_eq!(client.commit(&id, 25), commit_answer(65, "repeated"), "{algorithm}");
        assert_eq!(client.ask(&format!("DIVVY.RELEASE {id}")), "0", "{algorithm}: it is committed");
        assert_eq!(client.left(&pairs), 65, "{algorithm}");

        let (_, id) = client.reserve(&pairs, 65, "TTL 60 ID x");
        assert_eq!(client.reserve(&pairs, 65, "ID x TTL 60").1, id, "{algorithm}: the same one");
        assert_eq!(client.left(&pairs), 0);
        let other = client.ask(&format!("DIVVY.RESERVE {pairs} AMOUNT 64 TTL 60 ID x"));
        assert!(other.starts_with("-ERR") && other.contains("another id"), "{other}");
        let lasts: u64 = client.ask(&format!("DIVVY.RENEW {id} TTL 60")).parse().unwrap();
        assert!((60..=62).contains(&lasts), "{algorithm}: {lasts}");
        assert_eq!(client.ask(&format!("DIVVY.RELEASE {id}")), "1", "{algorithm}");
        assert_eq!(client.ask(&format!("DIVVY.RELEASE {id}")), "0", "{algorithm}");
        assert_eq!(client.ask(&format!("DIVVY.RENEW {id} TTL 60")), "0", "{algorithm}");
        assert_eq!(client.commit(&id, 165), commit_answer(-100, "late"), "{algorithm}");
        assert_eq!(client.commit(&id, 165), commit_answer(-100, "repeated"), "{algorithm}");
    }
    let refused = client.ask("DIVVY.RESERVE by=log user=a AMOUNT 1 TTL 5");
    assert!(refused.starts_with("-ERR nothing was reserved") && refused.contains("sliding-log"), "{refused}");
}

#[test]
fn credits_are_set_aside_and_settled_on_every_store() {
    let (rules, data) = (rules(), tempfile::tempdir().unwrap());
    for server in Server::on_each_store(rules.path(), data.path()) {
        credits_are_set_aside_and_settled(&server);
    }
}

/// An invalid command takes nothing, and is answered in its place.
#[test]
fn commands_pipeline_with_errors_in_order() {
    let rules = rules();
    let server = Server::in_memory(rules.path());
    let mut client = Client::of(&server);
    let (_, id) = client.reserve("by=tokens user=a", 10, "TTL 60");
    let bad_id = "unknown reservation id";
    let asked = [
        ("DIVVY.HIT by=tokens user=a COST 10".to_owned(), "[1 80 "),
        ("DIVVY.COMMIT nonsense COST 5".to_owned(), bad_id),
        (format!("DIVVY.COMMIT {id} COST 30"), "[60 "),
        (format!("DIVVY.RELEASE {id}x"), bad_id),
        (format!("DIVVY.RENEW {} TTL 5", id.to_lowercase()), bad_id),
        ("DIVVY.RESERVE by=tokens user=a AMOUNT 5 TTL 0".to_owned(), "TTL is '0'"),
        (
            "DIVVY.RESERVE by=tokens user=a AMOUNT 5 TTL 601".to_owned(),
            "TTL 601 exceeds the maximum of 600 s (--max-reservation-ttl)",
        ),
        ("DIVVY.RESERVE by=tokens user=a AMOUNT 0 TTL 5".to_owned(), "AMOUNT is '0'"),
        ("DIVVY.RESERVE by=tokens user=a AMOUNT 5 COST 5".to_owned(), "'COST' is not an option here"),
        ("DIVVY.RESERVE by=tokens user=a user TTL 5".to_owned(), "'user' is not an option here"),
        ("DIVVY.RESERVE by=tokens user=a AMOUNT 5".to_owned(), "needs a time (TTL)"),
        (format!("DIVVY.RESERVE by=tokens user=a AMOUNT 5 TTL 5 ID {}", "x".repeat(256)), "1 to 255 bytes"),
        (format!("DIVVY.RENEW {id} TTL 3600"), "TTL 3600 exceeds the maximum of 600 s"),
        (format!("DIVVY.COMMIT {id} COST many"), "COST is 'many'"),
        (format!("DIVVY.RESERVE by=tokens user={} AMOUNT 5 TTL 5", "x".repeat(8000)), "more than 8208 characters"),
        ("DIVVY.RESERVE by=tokens user=a ID=x AMOUNT 5 TTL 5".to_owned(), "[1 55 "),
        ("DIVVY.HIT by=tokens user=a".to_owned(), "[1 54 "),
    ];
    client.0.send(asked.iter().map(|(command, _)| format!("{command}\r\n")).collect::<String>().as_bytes());
    for (command, expected) in &asked {
        let reply = client.0.read_reply();
        let is_error = !expected.starts_with('[');
        assert!(reply.contains(expected) && reply.starts_with("-ERR") == is_error, "{command}: {reply}");
    }
    let listed = client.ask("DIVVY.COUNTERS tokens");
    assert!(listed.contains("[a 54 ") && listed.matches('[').count() == 3, "no other actor's: {listed}");
}

#[test]
fn metrics_count_outcomes_of_reservations() {
    let (rules, data) = (rules(), tempfile::tempdir().unwrap());
    for server in Server::on_each_store(rules.path(), data.path()) {
        let mut client = Client::of(&server);
        let ids: Vec<_> = (0..4).map(|_| client.reserve("by=fixed user=a", 20, "TTL 60").1).collect();
        assert!(client.ask("DIVVY.RESERVE by=fixed user=a AMOUNT 21 TTL 60").starts_with("[0 20 "));
        for id in [&ids[0], &ids[0], &ids[0], &ids[1]] {
            client.commit(id, 1);
        }
        assert_eq!(client.ask(&format!("DIVVY.RELEASE {}", ids[2])), "1");
        assert_eq!(client.ask(&format!("DIVVY.RELEASE {}", ids[2])), "0");
        assert_eq!(client.commit(&ids[2], 1), commit_answer(77, "late"));
        client.ask(&format!("DIVVY.RENEW {} TTL 60", ids[3]));

        let scraped = metrics::scrape(server.http);
        let fixed = ("rule_label", "fixed");
        let commits = |status| scraped.value("divvy_commits_total", &[("status", status), fixed]);
        assert_eq!(["settled", "late", "repeated"].map(commits), [2.0, 1.0, 2.0]);
        assert_eq!(scraped.value("divvy_releases_total", &[fixed]), 1.0);
        let hits = |status| scraped.value("divvy_hits_total", &[("status", status), fixed]);
        assert_eq!(["accepted", "rejected"].map(hits), [4.0, 1.0], "a reservation is a hit, a commit is not");
        assert_eq!(scraped.value("divvy_reservations", &[]), 4.0, "three of them committed");
        assert_eq!(scraped.value("divvy_max_reservations", &[]), 100_000.0);
        assert_eq!(scraped.value("divvy_reservations_refused_total", &[]), 0.0);
        let requests = |kind| scraped.value("divvy_requests_total", &[("front", "resp"), ("command", kind)]);
        assert_eq!(["reserve", "commit", "release", "renew"].map(requests), [5.0, 5.0, 2.0, 1.0]);
    }
}
