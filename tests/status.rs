//! The status of one actor, over RESP and HTTP and with `divvy actor`: the rules that it covers, its pages, and failures of the
//! store. [`model`] compares it with a model under load.

mod model;

use serde_json::{Value, json};

use crate::support::{RedisServer, Server, Site, done_at, http, lasting_port, on_local_stores, resp, run_at, until};

const RULES: &str = "
[api=* user=*] creditLimit=10 resetSeconds=3600 actorField=user label=calls
[plan=free user=*] creditLimit=5 resetSeconds=86400 actorField=user counter=usage label=free
[plan=pro user=vip-*] creditLimit=50 resetSeconds=86400 actorField=user counter=usage label=pro
[upload=* tenant=* user=*] creditLimit=100 resetSeconds=3600 actorField=tenant,user overrun=debt label=uploads
[job=* user=*] algorithm=concurrency creditLimit=3 resetSeconds=600 actorField=user label=jobs
[page=*] creditLimit=7 resetSeconds=3600 actorField=page
[ip=*] creditLimit=0 actorField=ip
[default] creditLimit=1000 resetSeconds=3600
";

/// Returns a page of an actor's status over HTTP.
fn page(server: &Server, query: &str) -> Value {
    let page = http::get(server.http, &format!("/v1/status?{query}"));
    assert_eq!(page.status, 200, "{query}: {}", page.body);
    page.json()
}

/// Returns the rules of the only page without their resets, which must be positive if and only if credits are missing.
fn rules(server: &Server, query: &str) -> Value {
    let mut page = page(server, query);
    assert_eq!(page["next"], Value::Null, "{page}");
    for rule in page["rules"].as_array_mut().unwrap() {
        let reset = rule.as_object_mut().unwrap().remove("reset").unwrap().as_u64().unwrap();
        assert_eq!(reset > 0, rule["limit"] != rule["balance"], "{rule}");
    }
    page["rules"].take()
}

/// Returns the status of a rule without reservations, debt or leases.
fn used(rule: &str, used: u64, limit: u64) -> Value {
    json!({
        "rule": rule, "limit": limit, "used": used, "reserved": 0, "inFlight": 0,
        "remaining": limit - used, "balance": limit - used, "ownLimit": null, "override": null,
    })
}

#[test]
fn status_covers_the_rules_with_exactly_these_fields() {
    on_local_stores(RULES, |server| {
        for (command, reply) in [
            ("DIVVY.HIT api=a user=ann COST 2", "[1 8 3600]"),
            // Another value of a field that is not the actor's takes from the same counter.
            ("DIVVY.HIT api=b user=ann", "[1 7 3600]"),
            ("DIVVY.HIT plan=free user=vip-1 COST 4", "[1 1 86400]"),
            ("DIVVY.HIT upload=x user=ann tenant=a COST 130", "[1 0 3600]"),
            ("DIVVY.HIT page=/a", "[1 6 3600]"),
            ("DIVVY.LIMIT SET jobs bob 2", "OK"),
            ("DIVVY.LIMIT SET calls banned 0", "OK"),
            ("DIVVY.HIT x=y", "[1 999 3600]"),
        ] {
            assert_eq!(resp(server, command), reply, "{command}");
        }
        for job in ["a", "b"] {
            assert!(resp(server, &format!("DIVVY.RESERVE job={job} user=ann AMOUNT 1")).starts_with("[1 "));
        }
        assert!(resp(server, "DIVVY.RESERVE api=a user=ann AMOUNT 5 TTL 600").starts_with("[1 2 "));
        let status = |rule: &str, limit: u64, [used, reserved, in_flight]: [u64; 3], balance: i64| {
            json!({
                "rule": rule, "limit": limit, "used": used, "reserved": reserved, "inFlight": in_flight,
                "remaining": balance.max(0), "balance": balance, "ownLimit": null, "override": null,
            })
        };
        let calls = status("calls", 10, [3, 5, 0], 2);
        let jobs = status("jobs", 3, [0, 0, 2], 1);
        let uploads = status("uploads", 100, [130, 0, 0], -30);
        let own_limit = |rule: &str, credits: u64| {
            let mut status = used(rule, 0, credits);
            status["ownLimit"] = credits.into();
            status
        };
        for (query, expected) in [
            ("user=ann", json!([calls, jobs])),
            ("user=ann&tenant=a", json!([uploads])),
            ("tenant=a&user=ann", json!([uploads])),
            ("tenant=b&user=ann", json!([])),
            // Both rules read the counter, each by its own limit.
            ("user=vip-1", json!([used("free", 4, 5), used("pro", 4, 50)])),
            ("page=%2Fa", json!([used("rule-6", 1, 7)])),
            ("user=bob", json!([own_limit("jobs", 2)])),
            ("user=banned", json!([own_limit("calls", 0)])),
            ("user=nobody", json!([])),
            ("user=", json!([])),
            ("ip=1", json!([])),
        ] {
            assert_eq!(rules(server, query), expected, "{query}");
        }
        // The rule for VIPs shares the counter, and is not Bob's.
        assert_eq!(resp(server, "DIVVY.HIT plan=free user=bob"), "[1 4 86400]");
        assert_eq!(rules(server, "user=bob"), json!([used("free", 1, 5), own_limit("jobs", 2)]));
        let replied = resp(server, "DIVVY.STATUS user=bob");
        let jobs =
            "[rule jobs limit 2 used 0 reserved 0 inFlight 0 remaining 2 reset 0 balance 2 ownLimit 2 override nil]";
        assert!(replied.starts_with("[0 [[rule free limit 5 used 1 ") && replied.contains(jobs), "{replied}");
        // Usage under a limit of nothing.
        assert_eq!(resp(server, "DIVVY.LIMIT SET free bob 0"), "OK");
        let mut banned = status("free", 0, [1, 0, 0], -1);
        banned["ownLimit"] = 0.into();
        assert_eq!(rules(server, "user=bob")[0], banned);
    });
}

#[test]
fn asking_takes_nothing_and_creates_nothing() {
    let server = Server::serving(RULES, &[]);
    for number in 0..200 {
        assert_eq!(resp(&server, &format!("DIVVY.STATUS user=stranger-{number}")), "[0 []]");
    }
    assert_eq!(resp(&server, "DIVVY.HIT api=a user=ann"), "[1 9 3600]");
    for _ in 0..200 {
        assert!(resp(&server, "DIVVY.STATUS user=ann").contains(" used 1 reserved 0 inFlight 0 remaining 9 "));
    }
    assert_eq!([resp(&server, "DBSIZE"), resp(&server, "DIVVY.HIT api=a user=ann")], ["1", "[1 8 3600]"]);
}

/// Returns a rule for each number, each with its own limit.
fn numbered(numbers: impl Iterator<Item = u64>) -> String {
    let rule = |number| {
        format!(
            "[n={number} user=*]\ncreditLimit = {number}\nresetSeconds = 3600\nactorField = user\nlabel = n{number}\n\n"
        )
    };
    numbers.map(rule).collect::<String>() + "[default]\ncreditLimit = 0\n"
}

#[test]
fn pages_show_every_rule_once_and_in_order() {
    on_local_stores(&numbered(1..251), |server| {
        let mut client = server.resp();
        // Two of three rules know the actor.
        let expected: Vec<_> = (1..251).filter(|number| number % 3 > 0).collect();
        for number in &expected {
            assert!(client.command(&format!("DIVVY.HIT n={number} user=ann")).starts_with("[1 "));
        }
        for count in [1, 7, 100, 1000] {
            let (mut shown, mut pages, mut cursor) = (Vec::new(), 0, String::new());
            loop {
                let page = page(server, &format!("user=ann&count={count}{cursor}"));
                let rules = page["rules"].as_array().unwrap();
                assert!(rules.len() <= count);
                shown.extend(rules.iter().map(|rule| rule["limit"].as_u64().unwrap()));
                pages += 1;
                let Some(next) = page["next"].as_str() else { break };
                cursor = format!("&cursor={next}");
            }
            assert_eq!((&shown, pages), (&expected, 250_usize.div_ceil(count)));
        }
        // Without a count, a page reads 100 counters. RESP has the same pages.
        let next = page(server, "user=ann")["next"].as_str().unwrap().to_owned();
        assert!(client.command("DIVVY.STATUS user=ann").starts_with(&format!("[{next} [[")));
        assert!(client.command(&format!("DIVVY.STATUS user=ann CURSOR {next}")).contains("[rule n101 limit 101 "));
        assert!(client.command("DIVVY.STATUS user=ann COUNT 1000").starts_with("[0 [["));
    });
}

#[test]
fn cursor_of_other_rules_is_refused() {
    let site = Site::serving(&numbered(1..20), &["--store", "memory"]);
    let server = &site.server;
    let next = page(server, "user=ann&count=5")["next"].as_str().unwrap().to_owned();
    let status = |cursor: &str| http::get(server.http, &format!("/v1/status?user=ann&count=5&cursor={cursor}"));
    assert_eq!(status(&next).status, 200);
    for cursor in ["x", "5", "5-", "-", "99-0", &format!("0{next}"), &format!("{next}0")] {
        let refused = status(cursor);
        assert_eq!(
            (refused.status, refused.body.contains("unknown cursor")),
            (400, true),
            "{cursor}: {}",
            refused.body
        );
        let refused = resp(server, &format!("DIVVY.STATUS user=ann CURSOR {cursor}"));
        assert!(refused.starts_with("-ERR unknown cursor"), "{cursor}: {refused}");
    }
    // More rules at the end move none.
    site.reload(&numbered(1..30));
    assert_eq!(status(&next).status, 200);
    site.reload(&numbered(2..30));
    assert_eq!(status(&next).status, 400);
}

#[test]
fn fields_of_no_rule_are_an_error() {
    let server = Server::serving(RULES, &[]);
    for (query, command, fields) in [
        ("usr=ann", "usr=ann", "usr"),
        ("tenant=a", "tenant=a", "tenant"),
        ("user=a&page=b", "user=a page=b", "user and page"),
    ] {
        let refused = http::get(server.http, &format!("/v1/status?{query}"));
        let detail =
            format!("no rule counts by exactly {fields}: give all fields of a rule's actorField, and no others");
        assert_eq!((refused.status, refused.body.contains(&detail)), (404, true), "{query}: {}", refused.body);
        let refused = resp(&server, &format!("DIVVY.STATUS {command}"));
        assert_eq!(refused, format!("-ERR {detail} (DIVVY.RULES lists them)"), "{command}");
    }
    assert_eq!(http::get(server.http, "/v1/status").status, 400);
    let ruleless = Server::start(&["--store", "memory"]);
    assert_eq!(http::get(ruleless.http, "/v1/status?user=ann").status, 500);
    assert!(resp(&ruleless, "DIVVY.STATUS user=ann").starts_with("-ERR "));
}

#[test]
fn failure_of_the_store_is_an_error_under_any_policy() {
    let mut redis = RedisServer::start_with(lasting_port(), &[]);
    let servers = ["error", "deny", "allow", "local"].map(|policy| {
        let flags = ["--redis-timeout", "1000", "--on-store-error", policy, "--redis-url", &redis.url()];
        (policy, Server::serving(RULES, &flags))
    });
    assert_eq!(resp(&servers[0].1, "DIVVY.HIT api=a user=ann COST 10"), "[1 0 3600]");
    for (policy, server) in &servers {
        // Each server knows from a denial that nothing is left.
        assert!(resp(server, "DIVVY.HIT api=a user=ann").starts_with("[0 0 "), "{policy}");
        assert_eq!(self::rules(server, "user=ann"), json!([used("calls", 10, 10)]), "{policy}");
    }
    redis.kill();
    for (policy, server) in &servers {
        let failed = http::get(server.http, "/v1/status?user=ann");
        assert_eq!((failed.status, failed.header("retry-after")), (503, Some("1")), "{policy}: {}", failed.body);
        let failed = resp(server, "DIVVY.STATUS user=ann");
        assert!(failed.starts_with("-ERR ") && failed.contains("Redis"), "{policy}: {failed}");
        let (code, _, error) = run_at(server, "actor user=ann");
        assert!(code == 1 && error.contains(" answered: "), "{policy}: {error}");
    }
    redis.restart();
    for (policy, server) in &servers {
        until(|| http::get(server.http, "/v1/status?user=ann").status == 200);
        assert_eq!(self::rules(server, "user=ann"), json!([]), "{policy}");
    }
}

#[test]
fn command_line_prints_a_table_or_json() {
    let server = Server::serving(RULES, &[]);
    resp(&server, "DIVVY.HIT api=a user=ann COST 3");
    resp(&server, "DIVVY.RESERVE job=a user=ann AMOUNT 1");
    resp(&server, "DIVVY.LIMIT SET calls ann 20");
    let out = done_at(&server, "actor user=ann");
    let table: Vec<Vec<_>> = out.lines().map(|line| line.split_whitespace().collect()).collect();
    let header =
        ["limit", "used", "reserved", "inFlight", "remaining", "reset", "balance", "ownLimit", "rule", "override"];
    assert_eq!(table[0], header);
    assert_eq!((&table[1][..5], &table[1][6..]), (&["20", "3", "0", "0", "17"][..], &["17", "20", "calls", "-"][..]));
    assert_eq!((&table[2][..5], &table[2][6..]), (&["3", "0", "0", "1", "2"][..], &["2", "-", "jobs", "-"][..]));
    assert_eq!(table.len(), 3, "{out}");

    let out = done_at(&server, "actor user=ann --json");
    let mut lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.iter_mut().all(|line| line.as_object_mut().unwrap().remove("reset").is_some()), "{out}");
    let mut calls = used("calls", 3, 20);
    calls["ownLimit"] = 20.into();
    assert_eq!(lines[0], calls);

    for (line, expected) in [
        ("user=bob", "this actor has all credits under every rule that counts by it"),
        ("user=bob --json", "this actor has all credits under every rule that counts by it"),
        ("user=ann user=bob", "the field 'user' is given twice"),
        ("usr=ann", "no rule counts by exactly usr"),
    ] {
        let (code, out, error) = run_at(&server, &format!("actor {line}"));
        assert!(code == 1 && out.is_empty() && error.contains(expected), "{line}: {error}");
    }
}
