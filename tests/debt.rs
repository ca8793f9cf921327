//! Costs that become known later: charges, refunds and debt, on every front and every store.

use serde_json::{Value, json};

use crate::support::grpc::descriptors_request;
use crate::support::{Caller, RedisServer, Server, Site, expanded, free_address, metrics, on_redis, resp, words};

/// Rules with a thousand credits per user, with debt and without, and a log.
const RULES: &str = "
[by=tokens or=debt user=*] creditLimit=1000 resetSeconds=2592000 algorithm=token-bucket actorField=user overrun=debt label=debt-tokens
[by=tokens or=refuse user=*] creditLimit=1000 resetSeconds=2592000 algorithm=token-bucket actorField=user label=refuse-tokens
[by=fixed or=debt user=*] creditLimit=1000 resetSeconds=2592000 actorField=user overrun=debt
[by=fixed or=refuse user=*] creditLimit=1000 resetSeconds=2592000 actorField=user
[by=log user=*] creditLimit=100 resetSeconds=2592000 algorithm=sliding-log actorField=user
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

fn body(pairs: &[(&str, &str)], cost: u64) -> String {
    let operation: serde_json::Map<String, Value> =
        pairs.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
    json!({ "operation": operation, "cost": cost }).to_string()
}

#[test]
fn http_returns_the_balance_and_the_remaining_credit() {
    let server = Server::serving(RULES, &[]);
    let mut http = server.http();
    let user = [("by", "tokens"), ("or", "debt"), ("user", "ann")];
    let mut ask = |path: &str, cost| {
        let response = http.post(path, body(&user, cost));
        let json = response.json();
        let reported = ["allowed", "remaining", "balance"].map(|key| json[key].clone());
        (response.status, json!(reported))
    };
    assert_eq!(ask("/v1/charge", 1500), (200, json!([true, 0, -500])), "something was left before");
    assert_eq!(ask("/v1/charge", 1), (200, json!([false, 0, -501])), "nothing was");
    assert_eq!(ask("/v1/hit", 0), (429, json!([false, 0, -501])));
    assert_eq!(ask("/v1/refund", 600), (200, json!([true, 99, 99])));
    assert_eq!(ask("/v1/hit", 100), (200, json!([true, 0, -1])));
    assert_eq!(ask("/v1/peek", 1), (200, json!([false, 0, -1])));
    let listed = http.get("/v1/counters?rule=debt-tokens", &[]).json();
    assert_eq!(listed["counters"][0]["balance"], -1, "{listed}");
    let refused = http.post("/v1/charge", body(&[("by", "log"), ("user", "ann")], 1));
    assert_eq!(refused.status, 409, "{}", refused.body);
    assert_eq!(http.post("/v1/refund", body(&[("by", "log"), ("user", "ann")], 1)).status, 200);
    let refunds = || metrics::scrape(server.http).value("divvy_refunds_total", &[("rule_label", "default")]);
    let before = refunds();
    assert_eq!(http.post("/v1/refund", body(&[("by", "nothing")], 1)).status, 200);
    assert_eq!(refunds(), before, "[default] counts nothing");
    let rule = &http.get("/v1/rules", &[]).json()["rules"][0];
    assert_eq!(rule["overrun"], "debt");

    let scraped = metrics::scrape(server.http);
    let counted = |name: &str| scraped.value(name, &[("rule_label", "debt-tokens")]);
    assert_eq!((counted("divvy_charges_total"), counted("divvy_refunds_total")), (2.0, 1.0));
    let hits = |status| scraped.value("divvy_hits_total", &[("status", status), ("rule_label", "debt-tokens")]);
    assert_eq!((hits("accepted"), hits("rejected")), (1.0, 1.0), "charges and refunds are no hits");
}

/// Returns a descriptor with its own cost, which is either a charge or a refund.
fn with_cost(pairs: &str, cost: u64, gives_back: bool) -> Value {
    let mut request = descriptors_request(&[pairs]);
    request["descriptors"][0]["hits_addend"] = json!(cost.to_string());
    request["descriptors"][0]["is_negative_hits"] = json!(gives_back);
    request
}

#[test]
fn grpc_costs_of_descriptors_are_charges_and_negative_hits_are_refunds() {
    for atomic in [&[][..], &["--grpc-atomic"]] {
        let server = Server::serving(RULES, atomic);
        let mut caller = Caller::new(&server);
        let mut ask = |request: &Value| {
            let answer = caller.should_rate_limit(request);
            (answer["overall_code"].clone(), answer["statuses"][0]["limit_remaining"].as_u64().unwrap_or(0))
        };
        let (debt, refuse) = ("by=tokens or=debt user=ann", "by=tokens or=refuse user=ann");
        for (pairs, cost, gives_back, code, left) in [
            (debt, 0, false, "OK", 1000),
            (debt, 1200, false, "OK", 0),
            (debt, 300, false, "OVER_LIMIT", 0),
            (debt, 600, true, "OK", 100),
            (refuse, 1200, false, "OVER_LIMIT", 1000),
            (refuse, 400, false, "OK", 600),
            (refuse, 100, true, "OK", 700),
        ] {
            assert_eq!(ask(&with_cost(pairs, cost, gives_back)), (json!(code), left), "{pairs} {cost}");
        }
        // The cost of the request itself is the cost of a hit, which a denied one does not count.
        let mut of_request = descriptors_request(&[debt]);
        of_request["hits_addend"] = json!(150);
        assert_eq!([ask(&of_request), ask(&of_request)], [(json!("OK"), 0), (json!("OVER_LIMIT"), 0)]);
        assert_eq!(ask(&with_cost(debt, 51, true)), (json!("OK"), 1));
    }
}

#[test]
fn uncounted_charge_is_an_error_and_uncounted_refund_is_not() {
    let always = "[api=free]\ncreditLimit = 5\nresetSeconds = 0\n\n[api=requests]\ncreditLimit = 5\nresetSeconds = 60\ncostField = none\n\n";
    let server = Server::serving(&[always, &expanded(RULES)].concat(), &[]);
    let mut resp = server.resp();
    let mut http = server.http();
    for (pairs, rule) in [("api=chta", "[default]"), ("api=free", "[api=free]"), ("api=requests", "[api=requests]")] {
        let refused = resp.command(&format!("DIVVY.CHARGE {pairs} COST 5"));
        assert!(refused.starts_with("-ERR nothing was charged") && refused.contains(rule), "{refused}");
        let (key, value) = pairs.split_once('=').unwrap();
        assert_eq!(http.post("/v1/charge", body(&[(key, value)], 5)).status, 409);
        assert!(resp.command(&format!("DIVVY.REFUND {pairs} COST 5")).starts_with('['));
    }
    assert_eq!(resp.command("DIVVY.HIT api=requests"), "[1 4 60]");
    assert!(resp.command("DIVVY.REFUND api=requests COST 5").starts_with("[4 "), "it is about costs");
}

const REQUESTS_AND_TOKENS: &str = "
[api=trial] creditLimit=100 resetSeconds=2592000 costField=none matchPolicy=canary label=trial
[api=*] creditLimit=10 resetSeconds=2592000 costField=none overrun=debt matchPolicy=and label=requests
[api=*] creditLimit=1000 resetSeconds=2592000 overrun=debt matchPolicy=and label=tokens
[default] creditLimit=1 resetSeconds=0
";

/// The request was counted when it was admitted, including by a rule with debt and by a canary.
#[test]
fn grpc_charge_counts_no_request() {
    for atomic in [&[][..], &["--grpc-atomic"]] {
        let server = Server::serving(REQUESTS_AND_TOKENS, atomic);
        let (mut caller, mut resp) = (Caller::new(&server), server.resp());
        let mut left = || {
            ["trial", "requests", "tokens"].map(|label| {
                let listed = resp.command(&format!("DIVVY.COUNTERS {label}"));
                listed.split(' ').rev().nth(2).and_then(|remaining| remaining.parse().ok()).unwrap_or(0)
            })
        };
        assert_eq!(caller.should_rate_limit(&with_cost("api=trial", 0, false))["overall_code"], "OK");
        assert_eq!(left(), [99, 9, 0], "tokens were not counted");
        assert_eq!(caller.should_rate_limit(&with_cost("api=trial", 400, false))["overall_code"], "OK");
        assert_eq!(left(), [99, 9, 600]);
        assert_eq!(caller.should_rate_limit(&with_cost("api=trial", 100, true))["overall_code"], "OK");
        assert_eq!(left(), [99, 9, 700]);
        // A refund that no rule counts is not an error.
        let mut both = descriptors_request(&["none=1", "api=trial"]);
        both["descriptors"][0]["is_negative_hits"] = json!(true);
        assert_eq!(caller.should_rate_limit(&both)["overall_code"], "OK");
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
        let user = [("by", "tokens"), ("or", "debt"), ("user", "a")];
        assert_eq!(http.post("/v1/charge", body(&user, 5)).status, 503, "{policy}");
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
