//! The status of one actor: its pages, and failures of the store. Its fields are in tests/wire/status.txt, and [`model`] compares
//! it with a model under load.

mod model;

use serde_json::Value;

use crate::support::{RedisServer, Server, Site, http, lasting_port, on_local_stores, resp, run_at, until};

const RULES: &str = "[api=* user=*] creditLimit=10 per=1h actorField=user label=calls\n[default] creditLimit=0";

/// Returns a page of an actor's status over HTTP.
fn page(server: &Server, query: &str) -> Value {
    let page = http::get(server.http, &format!("/v1/status?{query}"));
    assert_eq!(page.status, 200, "{query}: {}", page.body);
    page.json()
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
        assert_eq!(page(server, "user=ann")["rules"][0]["used"], 10, "{policy}");
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
        assert_eq!(page(server, "user=ann")["rules"], Value::Array(Vec::new()), "{policy}");
    }
}
