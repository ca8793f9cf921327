//! Hits, charges and refunds repeated with the same idempotency key: over RESP and HTTP, on every store, after
//! restarts, at the bound, and while the store fails.

mod api;
mod kills;

use std::fs;
use std::path::Path;

use crate::plans::RHYTHMS;
use crate::support::command_line::restore;
use crate::support::http::{HttpClient, encode};
use crate::support::redis::{RedisServer, until};
use crate::support::stores::on_each_store;
use crate::support::{RespClient, RulesFile, Server, divvy, metrics};

/// Returns rules: a hundred credits per user for every algorithm, a log, a stack, rules without counters, and a default
/// that denies.
fn rules() -> RulesFile {
    let rule = |(algorithm, rhythm): (&str, &str)| {
        format!("[by={algorithm} user=*]\ncreditLimit = 100\n{rhythm}\nactorField = user\nlabel = {algorithm}\n\n")
    };
    RulesFile::ini(
        &(RHYTHMS.map(rule).concat()
            + "[by=log user=*]\ncreditLimit = 100\nresetSeconds = 2592000\nalgorithm = sliding-log\nactorField = user\n\n\
               [by=debt user=*]\ncreditLimit = 100\nresetSeconds = 2592000\nactorField = user\noverrun = debt\n\n\
               [api=chat user=*]\ncreditLimit = 3\nresetSeconds = 2592000\nactorField = user\ncostField = none\n\
               matchPolicy = and\nlabel = requests\n\n\
               [api=chat user=*]\ncreditLimit = 100\nresetSeconds = 2592000\nactorField = user\nlabel = chat\n\n\
               [new=* user=*]\ncreditLimit = 9\nresetSeconds = 2592000\nactorField = user\nmatchPolicy = canary\n\
               label = canary\n\n\
               [new=* user=*]\ncreditLimit = 8\nresetSeconds = 2592000\nactorField = new\n\n\
               [short=* user=*]\ncreditLimit = 3\nresetSeconds = 10\nactorField = user\ncostField = none\n\
               matchPolicy = and\nlabel = short\n\n\
               [short=* user=*]\ncreditLimit = 100\nresetSeconds = 86400\nactorField = user\nlabel = long\n\n\
               [free=yes]\ncreditLimit = 7\nresetSeconds = 0\n\n[default]\ncreditLimit = 0\n"),
    )
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
fn denial_of_a_stack_is_repeated_after_a_charge() {
    on_each_store(&rules(), |server| {
        let mut client = Client::of(server);
        for _ in 0..3 {
            assert!(client.ask("DIVVY.HIT short=yes user=a").starts_with("[1 "));
        }
        let denied = client.ask("DIVVY.HIT short=yes user=a ID x");
        assert!(denied.starts_with("[0 0 "), "{denied}");
        client.ask("DIVVY.CHARGE short=yes user=a COST 500");
        for _ in 0..2 {
            assert_eq!(client.ask("DIVVY.HIT short=yes user=a ID x"), denied);
        }
        let other = client.ask("DIVVY.HIT short=yes user=a ID y");
        assert_eq!(other.split(' ').count(), 3);
        let reset = |reply: &str| reply.trim_end_matches(']').rsplit(' ').next().unwrap().parse::<u64>().unwrap();
        assert!(reset(&denied) <= 10 && reset(&other) > 80_000, "{denied}, {other}");
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
fn stack_and_canaries_are_idempotent() {
    on_each_store(&rules(), |server| {
        let mut client = Client::of(server);
        let (hit, other) = ("DIVVY.HIT api=chat user=d COST 40 ID x", "DIVVY.HIT api=chat user=d COST 70 ID y");
        let first = client.ask(hit);
        assert!(first.starts_with("[1 60 "), "{first}");
        assert_eq!(client.ask(hit), first);
        // The second rule denies, and holds the first one back.
        let denied = client.ask(other);
        assert!(denied.starts_with("[0 60 "), "{denied}");
        assert_eq!(client.ask("DIVVY.RESET by=fixed user=d"), "0");
        assert!(client.ask("DIVVY.REFUND api=chat user=d COST 40").starts_with("[100 "));
        assert_eq!(client.ask(other), denied, "although there would be enough by now");
        // One request was counted, so two are left.
        for name in ["a", "b"] {
            assert!(client.ask(&format!("DIVVY.HIT api=chat user=d COST 1 ID {name}")).starts_with("[1 "));
        }
        assert!(client.ask("DIVVY.HIT api=chat user=d COST 1 ID c").starts_with("[0 "));
        let samples = metrics::scrape(server.http);
        assert_eq!(samples.value("divvy_stacks_denied_total", &[]), 2.0);

        let hit = "DIVVY.HIT new=1 user=e ID x";
        let first = client.ask(hit);
        assert!(first.starts_with("[1 7 "), "{first}");
        assert_eq!(client.ask(hit), first);
        let canary = |samples: &metrics::Samples| {
            samples.value("divvy_hits_total", &[("rule_label", "canary"), ("status", "canary-accepted")])
        };
        assert_eq!(canary(&metrics::scrape(server.http)), 1.0);
        // The canary's record for this key does not affect the answer.
        assert!(client.ask("DIVVY.HIT new=2 user=e ID x").starts_with("[1 7 "));

        assert_eq!(client.ask("DIVVY.HIT free=yes ID x"), client.ask("DIVVY.HIT free=yes ID x"));
        assert!(client.ask("DIVVY.HIT nobody=knows ID x").starts_with("[0 0 "));
    });
}

#[test]
fn ids_are_one_to_255_bytes_after_all_pairs() {
    let rules = rules();
    let server = Server::start(&[rules.path(), "--store", "memory"]);
    let mut client = RespClient::connect(server.resp);
    let mut hit = |words: &[&[u8]]| {
        let words = [&[&b"DIVVY.HIT"[..], b"by=fixed", b"user=f"], words].concat();
        client.command_of(&words)
    };
    assert!(hit(&[b"ID", b"\0\xff any bytes"]).starts_with("[1 99 "));
    assert!(hit(&[b"ID", &[b'i'; 255]]).starts_with("[1 98 "));
    assert!(hit(&[b"ID", b"COST", b"COST", b"2"]).starts_with("[1 96 "));
    assert!(hit(&[b"COST", b"2", b"ID", b"ID"]).starts_with("[1 94 "));
    assert!(hit(&[b"ID", b"a=b"]).starts_with("[1 93 "));
    for id in [&b""[..], &[b'i'; 256]] {
        let reported = hit(&[b"ID", id]);
        assert!(reported.contains("an idempotency key has 1 to 255 bytes"), "{reported}");
    }
    for words in
        [&[&b"ID"[..]][..], &[b"ID", b"x", b"ID", b"y"], &[b"ID", b"x", b"more=pairs"], &[b"ID", b"COST", b"5"]]
    {
        let reported = hit(words);
        assert!(reported.contains("ERR ID comes once, after all pairs"), "{words:?}: {reported}");
    }
    // A pair with the key ID is an ordinary pair.
    assert!(client.command("DIVVY.HIT by=fixed user=f ID=x COST=y").starts_with("[1 92 "));
    assert!(client.command("DIVVY.PEEK by=fixed user=f ID x").contains("only DIVVY.HIT, CHARGE, REFUND and RESERVE"));
    assert!(client.command("DIVVY.PEEK by=fixed user=f").starts_with("[1 92 "));
}

#[test]
fn transactions_and_pipelines_are_idempotent() {
    on_each_store(&rules(), |server| {
        let mut client = Client::of(server);
        let hit = "DIVVY.HIT by=tokens user=g COST 10 ID x";
        client.ask("MULTI");
        (0..2).for_each(|_| assert_eq!(client.ask(hit), "QUEUED"));
        let both = client.ask("EXEC");
        let replies: Vec<_> = both.trim_matches(['[', ']']).split("] [").collect();
        assert!(replies.len() == 2 && replies[0] == replies[1] && replies[0].starts_with("1 90 "), "{both}");
        client.0.send(format!("{hit}\r\n{hit}\r\nDIVVY.PEEK by=tokens user=g\r\n").as_bytes());
        let replies: Vec<_> = (0..3).map(|_| client.0.read_reply()).collect();
        assert_eq!((&replies[0], &replies[0][1..5]), (&replies[1], "1 90"));
        assert!(replies[2].starts_with("[1 90 "), "{replies:?}");
    });
}

#[test]
fn command_line_hits_are_idempotent() {
    let rules = rules();
    let server = Server::start(&[rules.path(), "--store", "memory"]);
    let address = server.resp.to_string();
    let hit =
        || divvy().args(["hit", "--server", &address, "--id", "x", "by=fixed", "user=h"]).output().unwrap().stdout;
    let first = String::from_utf8(hit()).unwrap();
    assert!(first.starts_with("OK true 99 "), "{first}");
    assert_eq!(String::from_utf8(hit()).unwrap(), first);
    let line = divvy().args(["hit", "--addr", &server.line.to_string(), "--id", "x", "by=fixed"]).output().unwrap();
    assert!(String::from_utf8_lossy(&line.stderr).contains("--id needs RESP"));
}

/// Starts a server with these flags on each store that has a bound.
fn bounded(rules: &RulesFile, data: &Path, flags: &[&str]) -> Vec<Server> {
    let data = data.to_str().unwrap();
    let stores: [&[&str]; 2] = [&["--store", "memory"], &["--data-dir", data]];
    stores.map(|store| Server::start(&[&[rules.path()], store, flags].concat())).into()
}

#[test]
fn one_key_too_many_is_an_error_and_takes_nothing() {
    let (rules, data) = (rules(), tempfile::tempdir().unwrap());
    let flags = ["--max-idempotency-keys", "2", "--max-reservations", "0"];
    for server in bounded(&rules, data.path(), &flags) {
        let mut client = Client::of(&server);
        let first = client.ask("DIVVY.HIT by=fixed user=a ID x");
        assert!(first.starts_with("[1 99 "), "{first}");
        assert!(client.ask("DIVVY.HIT by=fixed user=b ID x").starts_with("[1 99 "));
        for refused in ["DIVVY.HIT api=chat user=a COST 10 ID x", "DIVVY.HIT api=chat user=a COST 101 ID x"] {
            let reported = client.ask(refused);
            assert!(reported.contains("ERR") && reported.contains("--max-idempotency-keys"), "{reported}");
        }
        assert!(client.ask("DIVVY.CHARGE api=chat user=a COST 0").starts_with("[100 "));
        for refused in ["DIVVY.HIT by=fixed user=a ID y", "DIVVY.CHARGE by=tokens user=new COST 4 ID y"] {
            assert!(client.ask(refused).contains("--max-idempotency-keys"), "{refused}");
        }
        assert_eq!((client.left("by=fixed user=a"), client.left("by=tokens user=new")), (99, 100));
        // Existing keys are answered, and hits without a key count.
        assert_eq!(client.ask("DIVVY.HIT by=fixed user=a ID x"), first);
        assert!(client.ask("DIVVY.HIT by=fixed user=a").starts_with("[1 98 "));
        let samples = metrics::scrape(server.http);
        let value = |name| samples.value(name, &[]);
        assert_eq!((value("divvy_idempotency_keys"), value("divvy_max_idempotency_keys")), (2.0, 2.0));
        assert_eq!(value("divvy_idempotency_keys_refused_total"), 4.0);
    }
}

#[test]
fn key_counts_once_for_each_hit_and_not_for_each_rule() {
    let (rules, data) = (rules(), tempfile::tempdir().unwrap());
    for server in bounded(&rules, data.path(), &["--max-idempotency-keys", "3"]) {
        let mut client = Client::of(&server);
        let keys = || metrics::scrape(server.http).value("divvy_idempotency_keys", &[]);
        let stacked = client.ask("DIVVY.HIT api=chat user=a COST 10 ID x");
        assert!(stacked.starts_with("[1 2 "), "{stacked}");
        assert_eq!(keys(), 1.0);
        let with_canary = client.ask("DIVVY.HIT new=a user=a ID x");
        assert!(with_canary.starts_with("[1 7 "), "{with_canary}");
        assert_eq!(keys(), 2.0);
        let hits =
            r#"{"hits": [{"operation": {"by": "fixed", "user": "a"}}, {"operation": {"by": "fixed", "user": "b"}}]}"#;
        let batch = |key| {
            let headers = [("content-type", "application/json"), ("idempotency-key", key)];
            let mut client = HttpClient::connect(server.http);
            client.send(&encode("POST", "/v1/hits", &headers, hits.as_bytes()));
            client.read_response()
        };
        assert!(batch("y").body.contains("--max-idempotency-keys"), "there is room for one of two");
        assert_eq!(keys(), 3.0);
        assert_eq!(client.ask("DIVVY.HIT api=chat user=a COST 10 ID x"), stacked);
        assert_eq!(client.ask("DIVVY.HIT new=a user=a ID x"), with_canary);
    }
}

/// If a counter has no room, the policy answers. This answer is not remembered.
#[test]
fn answer_of_a_full_store_is_not_remembered() {
    let (rules, data) = (rules(), tempfile::tempdir().unwrap());
    for policy in ["allow", "deny", "error"] {
        let flags = ["--max-counters", "1", "--when-full", policy];
        for server in bounded(&rules, &data.path().join(policy), &flags) {
            let mut client = Client::of(&server);
            assert!(client.ask("DIVVY.HIT by=fixed user=a ID x").starts_with("[1 99 "));
            let reported = client.ask("DIVVY.HIT by=fixed user=b ID x");
            assert_eq!(reported.starts_with("[1 99 "), policy == "allow", "{reported}");
            assert_eq!(metrics::scrape(server.http).value("divvy_idempotency_keys", &[]), 1.0, "{policy}");
            client.ask("DIVVY.RESET by=fixed user=a");
            assert!(client.ask("DIVVY.HIT by=fixed user=b COST 2 ID x").starts_with("[1 98 "), "{policy}");
        }
    }
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
