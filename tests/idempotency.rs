//! Hits, charges and refunds repeated with the same idempotency key: over RESP and HTTP, on every store, after
//! restarts, at the bound, and while the store fails.

mod api;

use std::fs;
use std::path::Path;

use crate::plans::RHYTHMS;
use crate::support::command_line::restore;
use crate::support::redis::{RedisServer, until};
use crate::support::stores::on_each_store;
use crate::support::{RespClient, RulesFile, Server, metrics};

/// Returns rules: a hundred credits per user for every algorithm, a log, a stack, a rule without counters, and a default that
/// denies.
fn rules() -> RulesFile {
    let rule = |(algorithm, rhythm): (&str, &str)| {
        format!("[by={algorithm} user=*]\ncreditLimit = 100\n{rhythm}\nactorField = user\nlabel = {algorithm}\n\n")
    };
    let others = "[by=log user=*] creditLimit=100 resetSeconds=2592000 algorithm=sliding-log actorField=user
[by=debt user=*] creditLimit=100 resetSeconds=2592000 actorField=user overrun=debt
[api=chat user=*] creditLimit=3 resetSeconds=2592000 actorField=user costField=none matchPolicy=and label=requests
[api=chat user=*] creditLimit=100 resetSeconds=2592000 actorField=user label=chat
[free=yes] creditLimit=7 resetSeconds=0
[default] creditLimit=0
";
    RulesFile::ini(&(RHYTHMS.map(rule).concat() + others))
}

struct Client(RespClient);

impl Client {
    fn of(server: &Server) -> Self {
        Self(RespClient::connect(server.resp))
    }

    fn ask(&mut self, command: &str) -> String {
        self.0.command(command)
    }

    fn left(&mut self, pairs: &str) -> u64 {
        let reply = self.ask(&format!("DIVVY.PEEK {pairs}"));
        reply.split(' ').nth(1).and_then(|word| word.parse().ok()).expect(&reply)
    }
}

/// Returns whether a reply is the error for a key that another request had.
fn is_another(reply: &str) -> bool {
    reply.contains("ERR") && reply.contains("used for another request")
}

#[test]
fn hit_with_an_id_is_taken_once_and_its_answer_repeated() {
    on_each_store(&rules(), |server| {
        let mut client = Client::of(server);
        for algorithm in RHYTHMS.map(|(algorithm, _)| algorithm).into_iter().chain(["log", "debt"]) {
            let pairs = format!("by={algorithm} user=a");
            let hit = format!("DIVVY.HIT {pairs} COST 5 ID x");
            let first = client.ask(&hit);
            assert!(first.starts_with("[1 95 "), "{algorithm}: {first}");
            assert!(client.ask(&format!("DIVVY.HIT {pairs} COST 1")).starts_with("[1 94 "), "{algorithm}");
            // Options may have any order and case.
            for again in [hit, format!("divvy.hit user=a by={algorithm} id x cost 5")] {
                assert_eq!((client.ask(&again), client.left(&pairs)), (first.clone(), 94), "{again}");
            }
            for other in [format!("DIVVY.HIT {pairs} COST 6 ID x"), format!("DIVVY.HIT {pairs} ID x")] {
                let reported = client.ask(&other);
                assert!(is_another(&reported) && client.left(&pairs) == 94, "{other}: {reported}");
            }
            let denied = client.ask(&format!("DIVVY.HIT {pairs} COST 101 ID y"));
            if algorithm == "debt" {
                assert!(denied.starts_with("[1 0 "), "{denied}");
            } else {
                assert!(denied.starts_with("[0 94 "), "{algorithm}: {denied}");
            }
            // Another actor's counter has its own answers. A reset keeps the answers.
            assert!(client.ask(&format!("DIVVY.HIT by={algorithm} user=b COST 5 ID x")).starts_with("[1 95 "));
            assert_eq!(client.ask(&format!("DIVVY.RESET {pairs}")), "1", "{algorithm}");
            assert_eq!(client.ask(&format!("DIVVY.HIT {pairs} COST 5 ID x")), first, "{algorithm}");
            assert_eq!(client.ask(&format!("DIVVY.HIT {pairs} COST 101 ID y")), denied, "{algorithm}");
            assert_eq!(client.left(&pairs), 100, "{algorithm}");
        }
        let samples = metrics::scrape(server.http);
        assert!(samples.value("divvy_idempotent_replays_total", &[("rule_label", "fixed")]) >= 4.0);
        assert_eq!(samples.value("divvy_hits_total", &[("rule_label", "fixed"), ("status", "accepted")]), 3.0);
        assert_eq!(samples.value("divvy_hits_total", &[("rule_label", "fixed"), ("status", "rejected")]), 1.0);
    });
}

#[test]
fn charges_and_refunds_have_separate_ids() {
    on_each_store(&rules(), |server| {
        let mut client = Client::of(server);
        let mut twice = |command: &str| {
            let first = client.ask(command);
            assert_eq!(client.ask(command), first, "{command}");
            first
        };
        let hit = twice("DIVVY.HIT by=fixed user=c COST 10 ID x");
        let charge = twice("DIVVY.CHARGE by=fixed user=c COST 95 ID x");
        let refund = twice("DIVVY.REFUND by=fixed user=c COST 3 ID x");
        assert!(
            hit.starts_with("[1 90 ") && charge.starts_with("[-5 ") && refund.starts_with("[-2 "),
            "{hit} {charge} {refund}"
        );
        assert!(is_another(&client.ask("DIVVY.CHARGE by=fixed user=c COST 96 ID x")));
        let samples = metrics::scrape(server.http);
        let count = |name| samples.value(name, &[("rule_label", "fixed")]);
        assert_eq!((count("divvy_charges_total"), count("divvy_refunds_total")), (1.0, 1.0));
    });
}

#[test]
fn answer_of_a_failure_policy_is_not_remembered() {
    let rules = rules();
    for (policy, expected) in [("allow", "[1 99 "), ("deny", "[0 0 "), ("error", "-ERR")] {
        let mut redis = RedisServer::start();
        let server =
            Server::start(&[rules.path(), "--store", "redis", "--redis-url", &redis.url(), "--on-store-error", policy]);
        let mut client = Client::of(&server);
        redis.kill();
        for _ in 0..2 {
            let reported = client.ask("DIVVY.HIT by=fixed user=a ID x");
            assert!(reported.starts_with(expected) || reported.starts_with(&expected[1..]), "{policy}: {reported}");
            assert!(client.ask("DIVVY.CHARGE by=fixed user=a COST 5 ID x").contains("ERR"), "{policy}");
        }
        assert_eq!(
            metrics::scrape(server.http).value("divvy_idempotent_replays_total", &[("rule_label", "fixed")]),
            0.0
        );
        redis.restart();
        until(|| Client::of(&server).ask("DIVVY.CHARGE by=tokens user=other COST 0").starts_with('['));
        assert!(client.ask("DIVVY.HIT by=fixed user=a ID x").starts_with("[1 99 "), "{policy}");
        assert_eq!(client.left("by=fixed user=a"), 99, "{policy}");
    }
}

#[test]
fn reload_keeps_answers_and_new_rules_take_credit() {
    let text = |more: &str| {
        format!("{more}[a=*]\ncreditLimit = 10\nresetSeconds = 2592000\nlabel = one\n\n[default]\ncreditLimit = 0\n")
    };
    let rules = RulesFile::ini(&text(""));
    let server = Server::start(&[rules.path(), "--store", "memory"]);
    let mut client = Client::of(&server);
    assert!(client.ask("DIVVY.HIT a=1 COST 3 ID x").starts_with("[1 7 "));
    let more = "[a=1]\ncreditLimit = 8\nresetSeconds = 2592000\nmatchPolicy = and\nlabel = two\n\n";
    fs::write(rules.path(), text(more)).unwrap();
    server.signal("-HUP");
    until(|| client.ask("DIVVY.RULES").contains("two"));
    // The new rule takes credit, and has five left.
    assert!(client.ask("DIVVY.HIT a=1 COST 3 ID x").starts_with("[1 5 "));
    assert!(client.ask("DIVVY.HIT a=1 COST 3 ID x").starts_with("[1 5 "));
    assert!(client.ask("DIVVY.REFUND a=1 COST 0").starts_with("[5 "));
}

/// An answer is on disk as durably as its hit. It is repeated after a stop, a kill and from a restored backup.
#[test]
#[cfg_attr(not(feature = "rocksdb"), ignore = "needs the embedded store")]
fn answers_outlive_restarts_kills_and_backups() {
    let (rules, data, backups) = (rules(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let serve = |data: &Path| {
        Server::start(&[
            rules.path(),
            "--data-dir",
            data.to_str().unwrap(),
            "--backup-dir",
            backups.path().to_str().unwrap(),
        ])
    };
    let hit = "DIVVY.HIT api=chat user=a COST 40 ID x";
    let mut server = serve(data.path());
    let first = Client::of(&server).ask(hit);
    assert!(first.starts_with("[1 60 "), "{first}");
    // Each rule's record is found again and counted.
    let check = |server: &Server, keys: f64| {
        let mut client = Client::of(server);
        assert_eq!(client.ask(hit), first);
        assert!(client.ask("DIVVY.CHARGE api=chat user=a COST 0").starts_with("[60 "));
        assert_eq!(metrics::scrape(server.http).value("divvy_idempotency_keys", &[]), keys);
    };
    check(&server, 1.0);
    server.kill();
    server = serve(data.path());
    check(&server, 2.0);
    assert!(server.terminate().success());
    server = serve(data.path());
    check(&server, 2.0);
    let backup = Client::of(&server).ask("DIVVY.BACKUP one");
    assert!(!backup.contains("ERR"), "{backup}");
    let restored = tempfile::tempdir().unwrap();
    let into = restored.path().join("data");
    restore(backup.trim(), &into);
    check(&serve(&into), 2.0);
}
