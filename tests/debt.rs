//! Charges, refunds and debt in Redis, without a store, and after a reload. Their fronts are in tests/wire/.

use crate::support::{RedisServer, Server, Site, free_address, on_redis, resp, words};

/// Rules with a thousand credits per user, with debt and without.
const RULES: &str = "
[by=tokens or=debt user=*] creditLimit=1000 resetSeconds=2592000 algorithm=token-bucket actorField=user overrun=debt label=debt-tokens
[by=tokens or=refuse user=*] creditLimit=1000 resetSeconds=2592000 algorithm=token-bucket actorField=user label=refuse-tokens
[by=fixed or=debt user=*] creditLimit=1000 resetSeconds=2592000 actorField=user overrun=debt
[by=fixed or=refuse user=*] creditLimit=1000 resetSeconds=2592000 actorField=user
[default] creditLimit=0
";

/// Button's Divvy reads the same key, and finds a rule's window and its balance.
#[test]
fn balance_in_redis_is_in_the_key_of_buttons_divvy_unless_the_rule_has_debt() {
    let redis = RedisServer::start();
    let server = Server::serving(RULES, &on_redis(&redis.url()));
    for (or, owed) in [("refuse", "-200"), ("debt", "")] {
        assert!(resp(&server, &format!("DIVVY.CHARGE by=fixed or={or} user=a COST 1200")).starts_with("[-200 "));
        assert_eq!(redis.cli(&["GET", &format!("divvy:by=fixed or={or} user=*:a:1000:2592000")]), owed);
    }
}

#[test]
fn uncountable_charge_is_an_error_under_every_policy() {
    let nowhere = format!("redis://{}", free_address());
    for policy in ["deny", "allow", "local", "error"] {
        let server = Server::serving(RULES, &["--redis-url", &nowhere, "--on-store-error", policy]);
        let mut resp = server.resp();
        for command in ["CHARGE", "REFUND"] {
            let failed = resp.command(&format!("DIVVY.{command} by=tokens or=debt user=a COST 5"));
            assert!(failed.starts_with("-ERR"), "{policy}: {failed}");
        }
        let mut http = server.http();
        let charge = r#"{"operation": {"by": "tokens", "or": "debt", "user": "a"}, "cost": 5}"#;
        assert_eq!(http.post("/v1/charge", charge).status, 503, "{policy}");
    }
    for policy in ["error", "deny", "allow"] {
        let server = Server::serving(RULES, &["--max-counters", "1", "--when-full", policy]);
        for (request, reply) in [
            ("CHARGE by=tokens or=debt user=a COST 5", "[995 "),
            ("CHARGE by=tokens or=debt user=b COST 5", "-ERR"),
            ("REFUND by=tokens or=debt user=b COST 5", "[1000 "),
            // A counter takes no room once all is given back.
            ("REFUND by=tokens or=debt user=a COST 5", "[1000 "),
            ("CHARGE by=tokens or=debt user=b COST 5", "[995 "),
        ] {
            let replied = resp(&server, &format!("DIVVY.{request}"));
            assert!(replied.starts_with(reply), "{policy}: {request}: {replied}");
        }
    }
}

/// Changes `overrun` by a reload, and checks the balance afterwards.
fn change_of_overrun(store: &[&str], of_fixed_windows: u64) {
    let rules = RULES.replace(" overrun=debt", "");
    let site = Site::serving(&rules, store);
    let charge = |by: &str, cost: u64| {
        let reply = resp(&site.server, &format!("DIVVY.CHARGE by={by} or=refuse user=a COST {cost}"));
        words(&reply)[0].parse::<u64>().expect(&reply)
    };
    assert_eq!([charge("fixed", 300), charge("tokens", 300)], [700, 700]);
    site.reload(&rules.replace("or=refuse user=*]", "or=refuse user=*] overrun=debt"));
    assert_eq!([charge("fixed", 0), charge("tokens", 0)], [of_fixed_windows, 700]);
}

#[test]
fn change_of_overrun_keeps_counters_except_fixed_windows_in_redis() {
    change_of_overrun(&["--store", "memory"], 700);
    let redis = RedisServer::start();
    change_of_overrun(&on_redis(&redis.url()), 1000);
}
