//! Costs that become known later: charges, refunds and debt, on every front and every store.

use serde_json::{Value, json};

use crate::plans::RHYTHMS;
use crate::support::gateway::free_address;
use crate::support::grpc::{Caller, descriptors_request};
use crate::support::http::HttpClient;
use crate::support::log::Log;
use crate::support::redis::{RedisCluster, RedisServer};
use crate::support::{RespClient, RulesFile, Server, divvy, metrics};

/// Returns rules with a thousand credits per user for every algorithm, with debt and without, and a log.
fn rules(overruns: &[&str]) -> String {
    let mut rules = String::new();
    for (algorithm, rhythm) in RHYTHMS {
        for overrun in overruns {
            rules.push_str(&format!(
                "[by={algorithm} or={overrun} user=*]\ncreditLimit = 1000\n{rhythm}\nactorField = user\n\
                 overrun = {overrun}\nlabel = {overrun}-{algorithm}\n\n"
            ));
        }
    }
    rules.push_str(
        "[by=log user=*]\ncreditLimit = 100\nresetSeconds = 2592000\nalgorithm = sliding-log\nactorField = user\n\n",
    );
    rules + "[default]\ncreditLimit = 0\n"
}

/// Returns the whole numbers in a reply.
fn numbers(reply: &str) -> Vec<i64> {
    reply.trim_matches(['[', ']']).split(' ').map(|word| word.parse().expect(reply)).collect()
}

struct User<'a> {
    resp: RespClient,
    pairs: &'a str,
}

impl<'a> User<'a> {
    fn of(server: &Server, pairs: &'a str) -> Self {
        Self { resp: RespClient::connect(server.resp), pairs }
    }

    /// Returns whether the command is allowed, and the credit.
    fn verdict(&mut self, command: &str, cost: u64) -> (bool, i64) {
        let numbers = numbers(&self.resp.command(&format!("DIVVY.{command} {} COST {cost}", self.pairs)));
        (numbers[0] == 1, numbers[1])
    }

    /// Returns the balance after a charge or a refund.
    fn balance(&mut self, command: &str, cost: u64) -> i64 {
        let reply = self.resp.command(&format!("DIVVY.{command} {} COST {cost}", self.pairs));
        let numbers = numbers(&reply);
        assert_eq!(numbers.len(), 2, "{reply}");
        assert_eq!(numbers[1] == 0, numbers[0] == 1000, "until there is more: {reply}");
        numbers[0]
    }
}

/// Checks charges and refunds. Leaves a balance of -200 on every counter of the user `a`.
fn costs_are_settled(server: &Server) {
    for (algorithm, _) in RHYTHMS {
        for overrun in ["debt", "refuse"] {
            let pairs = format!("by={algorithm} or={overrun} user=a");
            let mut user = User::of(server, &pairs);
            assert_eq!(user.balance("REFUND", 5), 1000, "{pairs}: nothing was taken");
            assert_eq!(user.resp.command(&format!("DIVVY.RESET {pairs}")), "0", "{pairs}: and no counter was made");
            assert_eq!(user.verdict("HIT", 0), (true, 1000));
            assert_eq!(user.balance("CHARGE", 1200), -200, "{pairs}");
            assert_eq!(user.verdict("HIT", 0), (false, 0), "{pairs}");
            assert_eq!(user.verdict("HIT", 1), (false, 0), "{pairs}: a denied hit changes nothing");
            assert_eq!(user.balance("CHARGE", 0), -200, "{pairs}");
            // The denial cache must not interfere.
            assert_eq!(user.balance("REFUND", 201), 1, "{pairs}");
            assert_eq!(user.verdict("PEEK", 700), (overrun == "debt", 1), "{pairs}");
            assert_eq!(user.verdict("HIT", 301), if overrun == "debt" { (true, 0) } else { (false, 1) }, "{pairs}");
            assert_eq!(user.balance("REFUND", 5000), 1000, "{pairs}: never above full");
            assert_eq!(user.balance("CHARGE", 1200), -200, "{pairs}");
            let listed = user.resp.command(&format!("DIVVY.COUNTERS {overrun}-{algorithm} ACTOR a"));
            assert!(listed.contains("a 0 "), "{pairs}: {listed}");
        }
    }
    let mut log = User::of(server, "by=log user=a");
    assert_eq!(log.verdict("HIT", 90), (true, 10));
    let refused = log.resp.command("DIVVY.CHARGE by=log user=a COST 5");
    assert!(refused.starts_with("-ERR") && refused.contains("sliding-log"), "{refused}");
    assert_eq!(log.verdict("PEEK", 10), (true, 10), "nothing was counted");
    assert!(log.resp.command("DIVVY.REFUND by=log user=a COST 40").starts_with("[50 "));
}

fn balances_are_kept(server: &Server) {
    for (algorithm, _) in RHYTHMS {
        for overrun in ["debt", "refuse"] {
            let pairs = format!("by={algorithm} or={overrun} user=a");
            assert_eq!(User::of(server, &pairs).balance("CHARGE", 0), -200, "{pairs}");
        }
    }
    assert_eq!(User::of(server, "by=log user=a").verdict("PEEK", 51), (false, 50));
}

fn redis_args<'a>(rules: &'a str, urls: &'a str) -> Vec<&'a str> {
    vec![rules, "--store", "redis", "--redis-timeout", "20000", "--redis-url", urls]
}

#[test]
fn costs_are_settled_on_every_store() {
    let rules = RulesFile::ini(&rules(&["debt", "refuse"]));
    costs_are_settled(&Server::in_memory(rules.path()));
    let (redis, cluster) = (RedisServer::start(), RedisCluster::start());
    for urls in [redis.url(), cluster.urls().join(",")] {
        let args = redis_args(rules.path(), &urls);
        costs_are_settled(&Server::start(&args));
        balances_are_kept(&Server::start(&args));
    }
    // Button's Divvy reads the same key, and finds a rule's window and its balance.
    assert_eq!(redis.cli(&["GET", "divvy:by=fixed or=refuse user=*:a:1000:2592000"]), "-200");
    assert_eq!(
        redis.cli(&["EXISTS", "divvy:by=fixed or=debt user=*:a:1000:2592000"]),
        "0",
        "without debt the key differs"
    );
}

fn body(pairs: &[(&str, &str)], cost: u64) -> String {
    let operation: serde_json::Map<String, Value> =
        pairs.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
    json!({ "operation": operation, "cost": cost }).to_string()
}

#[test]
fn http_returns_the_balance_and_the_remaining_credit() {
    let rules = RulesFile::ini(&rules(&["debt", "refuse"]));
    let server = Server::in_memory(rules.path());
    let mut http = HttpClient::connect(server.http);
    let user = [("by", "tokens"), ("or", "debt"), ("user", "ann")];
    let mut ask = |path: &str, cost| {
        let response = http.post(path, &body(&user, cost));
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
    let refused = http.post("/v1/charge", &body(&[("by", "log"), ("user", "ann")], 1));
    assert_eq!(refused.status, 409, "{}", refused.body);
    assert_eq!(http.post("/v1/refund", &body(&[("by", "log"), ("user", "ann")], 1)).status, 200);
    let refunds = || metrics::scrape(server.http).value("divvy_refunds_total", &[("rule_label", "default")]);
    let before = refunds();
    assert_eq!(http.post("/v1/refund", &body(&[("by", "nothing")], 1)).status, 200);
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
    let rules = RulesFile::ini(&rules(&["debt", "refuse"]));
    for atomic in [&[][..], &["--grpc-atomic"]] {
        let server = Server::start(&[&[rules.path(), "--store", "memory"], atomic].concat());
        let mut caller = Caller::new(&server);
        let mut ask = |request: &Value| {
            let answer = caller.should_rate_limit(request);
            (answer["overall_code"].clone(), answer["statuses"][0]["limit_remaining"].as_u64().unwrap_or(0))
        };
        let (debt, refuse) = ("by=tokens or=debt user=ann", "by=tokens or=refuse user=ann");
        assert_eq!(ask(&with_cost(debt, 0, false)), (json!("OK"), 1000));
        assert_eq!(ask(&with_cost(debt, 1200, false)), (json!("OK"), 0), "something was left before");
        assert_eq!(ask(&with_cost(debt, 0, false)), (json!("OVER_LIMIT"), 0));
        assert_eq!(ask(&with_cost(debt, 300, false)), (json!("OVER_LIMIT"), 0), "and is counted");
        assert_eq!(ask(&with_cost(debt, 600, true)), (json!("OK"), 100), "-500 and 600");
        // The cost of the request itself is the cost of a hit.
        let mut of_request = descriptors_request(&[debt]);
        of_request["hits_addend"] = json!(150);
        assert_eq!(ask(&of_request), (json!("OK"), 0));
        assert_eq!(ask(&of_request), (json!("OVER_LIMIT"), 0));
        assert_eq!(ask(&with_cost(debt, 51, true)), (json!("OK"), 1), "a denied one was not counted");

        assert_eq!(ask(&with_cost(refuse, 1200, false)), (json!("OVER_LIMIT"), 1000), "all or nothing");
        assert_eq!(ask(&with_cost(refuse, 400, false)), (json!("OK"), 600));
        assert_eq!(ask(&with_cost(refuse, 100, true)), (json!("OK"), 700));
        let mut one = descriptors_request(&[refuse]);
        one["descriptors"][0]["is_negative_hits"] = json!(true);
        assert_eq!(ask(&one), (json!("OK"), 701), "1 without a number");

        let mut brought = with_cost("by=none", 2, false);
        brought["descriptors"][0]["limit"] = json!({ "requests_per_unit": 5, "unit": "HOUR" });
        assert_eq!(ask(&brought), (json!("OK"), 3));
        brought["descriptors"][0]["is_negative_hits"] = json!(true);
        assert_eq!(ask(&brought), (json!("OK"), 5));
    }
}

#[test]
fn uncounted_charge_is_an_error_and_uncounted_refund_is_not() {
    let always = "[api=free]\ncreditLimit = 5\nresetSeconds = 0\n\n[api=requests]\ncreditLimit = 5\nresetSeconds = 60\ncostField = none\n\n";
    let rules = RulesFile::ini(&[always, &rules(&["debt"])].concat());
    let server = Server::in_memory(rules.path());
    let mut resp = RespClient::connect(server.resp);
    let mut http = HttpClient::connect(server.http);
    for (pairs, rule) in [("api=chta", "[default]"), ("api=free", "[api=free]"), ("api=requests", "[api=requests]")] {
        let refused = resp.command(&format!("DIVVY.CHARGE {pairs} COST 5"));
        assert!(refused.starts_with("-ERR nothing was charged") && refused.contains(rule), "{refused}");
        let (key, value) = pairs.split_once('=').unwrap();
        assert_eq!(http.post("/v1/charge", &body(&[(key, value)], 5)).status, 409);
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
    let rules = RulesFile::ini(REQUESTS_AND_TOKENS);
    for atomic in [&[][..], &["--grpc-atomic"]] {
        let server = Server::start(&[&[rules.path(), "--store", "memory"], atomic].concat());
        let (mut caller, mut resp) = (Caller::new(&server), RespClient::connect(server.resp));
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
    let rules = RulesFile::ini(&rules(&["debt", "refuse"]));
    let nowhere = format!("redis://{}", free_address());
    for policy in ["deny", "allow", "local", "error"] {
        let server = Server::start(&[rules.path(), "--redis-url", &nowhere, "--on-store-error", policy]);
        let mut resp = RespClient::connect(server.resp);
        for command in ["CHARGE", "REFUND"] {
            let failed = resp.command(&format!("DIVVY.{command} by=tokens or=debt user=a COST 5"));
            assert!(failed.starts_with("-ERR"), "{policy}: {failed}");
        }
        let mut http = HttpClient::connect(server.http);
        let user = [("by", "tokens"), ("or", "debt"), ("user", "a")];
        assert_eq!(http.post("/v1/charge", &body(&user, 5)).status, 503, "{policy}");
    }
    for policy in ["error", "deny", "allow"] {
        let server = Server::start(&[rules.path(), "--store", "memory", "--max-counters", "1", "--when-full", policy]);
        let mut resp = RespClient::connect(server.resp);
        assert!(resp.command("DIVVY.CHARGE by=tokens or=debt user=a COST 5").starts_with("[995 "));
        assert!(resp.command("DIVVY.CHARGE by=tokens or=debt user=b COST 5").starts_with("-ERR"), "{policy}");
        assert!(resp.command("DIVVY.REFUND by=tokens or=debt user=b COST 5").starts_with("[1000 "), "{policy}");
        assert!(resp.command("DIVVY.CHARGE by=tokens or=debt user=a COST 5").starts_with("[990 "), "{policy}");
        assert!(resp.command("DIVVY.REFUND by=tokens or=debt user=a COST 10").starts_with("[1000 "), "{policy}");
        let freed = resp.command("DIVVY.CHARGE by=tokens or=debt user=b COST 5");
        assert!(freed.starts_with("[995 "), "{policy}: a counter to which all was given back takes no room: {freed}");
    }
}

/// Returns the effect of a change of `overrun` on counters, as the reload logs it.
fn change_of_overrun(store: &[&str], fixed_windows: &str) {
    let rules = RulesFile::ini(&rules(&["refuse"]));
    let mut command = divvy();
    let log = Log::of(&mut command);
    let server = Server::start_as(&mut command, &[&[rules.path(), "--reload-interval", "0"], store].concat());
    for (algorithm, _) in RHYTHMS {
        assert_eq!(User::of(&server, &format!("by={algorithm} or=refuse user=a")).balance("CHARGE", 300), 700);
    }
    let with_debt = std::fs::read_to_string(rules.path()).unwrap().replace("overrun = refuse", "overrun = debt");
    std::fs::write(rules.path(), with_debt).unwrap();
    server.signal("-HUP");
    log.await_count(1, "the new rules are in force");
    for (algorithm, _) in RHYTHMS {
        let expected = if algorithm == "fixed" { fixed_windows } else { "its counters are kept" };
        log.await_line(&[&format!(
            "changed [by={algorithm} or=refuse user=*] overrun from nothing to debt; {expected}"
        )]);
        let kept = expected.contains("kept");
        let balance = User::of(&server, &format!("by={algorithm} or=refuse user=a")).balance("CHARGE", 0);
        assert_eq!(balance, if kept { 700 } else { 1000 }, "{algorithm}");
    }
}

#[test]
fn change_of_overrun_keeps_counters_except_fixed_windows_in_redis() {
    change_of_overrun(&["--store", "memory"], "its counters are kept");
    let redis = RedisServer::start();
    let url = redis.url();
    change_of_overrun(
        &["--store", "redis", "--redis-timeout", "20000", "--redis-url", &url],
        "its counters start afresh",
    );
}
