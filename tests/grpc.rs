//! Envoy's Rate Limit Service and the services next to it, called by a Python client that relies on reflection alone.

use serde_json::{Value, json};

use crate::support::grpc::{descriptor, descriptors_request};
use crate::support::{Caller, Server, done, until};

const RULES: &str = "
[domain=edge path=/login remote_address=*] creditLimit=3 resetSeconds=60 actorField=remote_address label=login
[domain=edge path=/upload] creditLimit=100 resetSeconds=90
[domain=edge path=/trial] creditLimit=1 resetSeconds=3600 matchPolicy=canary
[domain=edge path=/free] creditLimit=9 resetSeconds=0
[domain=edge path=/priced] creditLimit=100 resetSeconds=60 costField=bytes
[domain=edge path=/half] creditLimit=1 resetSeconds=2.5
[default] creditLimit=0 resetSeconds=0
";

#[test]
fn reflection_lists_the_services() {
    let server = Server::serving(RULES, &[]);
    let mut caller = Caller::new(&server);
    let services: Vec<String> = serde_json::from_str(&caller.line("list")).unwrap();
    let of_kuadrant = "kuadrant.service.ratelimit.v1.RateLimitService";
    for service in ["envoy.service.ratelimit.v3.RateLimitService", of_kuadrant, "grpc.health.v1.Health"] {
        assert!(services.iter().any(|name| name == service), "{services:?}");
    }
}

#[test]
fn each_descriptor_is_a_hit_with_a_status_in_its_position() {
    let server = Server::serving(RULES, &[]);
    let mut caller = Caller::new(&server);
    let request = descriptors_request(&["path=/login remote_address=10.0.0.1", "path=/upload", "path=/free"]);
    let reply = caller.should_rate_limit(&request);
    assert_eq!(reply["overall_code"], "OK");
    let statuses = reply["statuses"].as_array().unwrap();
    assert_eq!(
        statuses[0],
        json!({ "code": "OK", "limit_remaining": 2, "duration_until_reset": "60s",
                "current_limit": { "requests_per_unit": 3, "unit": "MINUTE", "name": "login" } })
    );
    assert_eq!(
        statuses[1]["current_limit"],
        json!({ "requests_per_unit": 100, "name": "domain=edge path=/upload" }),
        "no unit has 90 seconds"
    );
    assert_eq!(statuses[2], json!({ "code": "OK", "limit_remaining": 9, "duration_until_reset": "0s" }));

    for _ in 0..2 {
        assert_eq!(caller.should_rate_limit(&request)["overall_code"], "OK");
    }
    let over = caller.should_rate_limit(&request);
    assert_eq!(over["overall_code"], "OVER_LIMIT", "one is enough");
    assert_eq!(over["statuses"][0]["code"], "OVER_LIMIT");
    assert_eq!(over["statuses"][1]["code"], "OK");
    assert_eq!(over["statuses"][1]["limit_remaining"], 96, "descriptors are counted regardless of the others");
    let of_another = caller.should_rate_limit(&descriptors_request(&["path=/login remote_address=10.0.0.2"]));
    assert_eq!(of_another["statuses"][0]["limit_remaining"], 2);
    assert_eq!(
        caller.should_rate_limit(&descriptors_request(&["path=/none"]))["overall_code"],
        "OVER_LIMIT",
        "by the default rule"
    );
}

fn headers_of(reply: &Value) -> Vec<String> {
    let headers = reply["response_headers_to_add"].as_array().cloned().unwrap_or_default();
    let text = |header: &Value| format!("{}: {}", header["key"].as_str().unwrap(), header["value"].as_str().unwrap());
    headers.iter().map(text).collect()
}

#[test]
fn gateways_get_headers_for_the_strictest_rule() {
    let request = descriptors_request(&["path=/upload", "path=/login remote_address=10.0.0.1", "path=/free"]);
    let server = Server::serving(RULES, &["--grpc-rate-limit-headers", "draft,x"]);
    let mut caller = Caller::new(&server);
    let replies = [(); 4].map(|()| headers_of(&caller.should_rate_limit(&request)));
    assert_eq!(replies[0][0], "ratelimit-policy: \"login\";q=3;w=60");
    assert!(replies[0].contains(&"x-ratelimit-remaining: 2".to_owned()), "{replies:?}");
    assert!(replies[3].iter().any(|header| header.starts_with("retry-after: ")), "{replies:?}");
    let silent = Server::serving(RULES, &[]);
    let mut caller = Caller::new(&silent);
    let replies = [(); 4].map(|()| headers_of(&caller.should_rate_limit(&request)));
    assert!(replies[..3].iter().all(Vec::is_empty), "{replies:?}");
    assert!(replies[3].len() == 1 && replies[3][0].starts_with("retry-after: "), "{replies:?}");
}

#[test]
fn override_of_0_denies_everything() {
    let server = Server::serving(RULES, &["--grpc-rate-limit-headers", "draft,triple"]);
    let mut caller = Caller::new(&server);
    let mut request = descriptors_request(&["path=/none", "path=/upload"]);
    request["descriptors"][0]["limit"] = json!({ "requests_per_unit": 0, "unit": "DAY" });
    for (number, addend) in [json!(null), json!("0"), json!("7")].into_iter().enumerate() {
        if !addend.is_null() {
            request["descriptors"][0]["hits_addend"] = addend;
        }
        let reply = caller.should_rate_limit(&request);
        let status = &reply["statuses"][0];
        assert_eq!((&reply["overall_code"], &status["code"]), (&json!("OVER_LIMIT"), &json!("OVER_LIMIT")), "{reply}");
        assert_eq!(status["current_limit"], json!({ "unit": "DAY" }), "{reply}");
        assert!(status["limit_remaining"].is_null(), "{reply}");
        // As in ratelimit, the reset is the end of the unit.
        let reset = status["duration_until_reset"].as_str().unwrap().trim_end_matches('s').to_owned();
        assert!((1..=86_400).contains(&reset.parse().unwrap()), "{reply}");
        let expected = [
            "ratelimit-policy: \"override\";q=0;w=86400".to_owned(),
            format!("ratelimit: \"override\";r=0;t={reset}"),
            "ratelimit-limit: 0".to_owned(),
            "ratelimit-remaining: 0".to_owned(),
            format!("ratelimit-reset: {reset}"),
            format!("retry-after: {reset}"),
        ];
        assert_eq!(headers_of(&reply), expected);
        assert_eq!(reply["statuses"][1]["limit_remaining"], 99 - number, "descriptors are counted each for itself");
    }
    request["descriptors"][0]["is_negative_hits"] = json!(true);
    assert_eq!(caller.should_rate_limit(&request)["overall_code"], "OK", "there is nothing to give back");
}

#[test]
fn invalid_request_is_an_error_and_takes_nothing() {
    let server = Server::serving(RULES, &[]);
    let mut caller = Caller::new(&server);
    let mut refused = |request: Value, expected: &str| {
        let error = caller.refused(&request);
        assert!(error.starts_with("INVALID_ARGUMENT") && error.contains(expected), "{request}: {error}");
    };
    refused(json!({ "descriptors": [descriptor("path=/upload")] }), "domain");
    refused(json!({ "domain": "edge" }), "descriptors");
    refused(json!({ "domain": "edge", "descriptors": [descriptor("path=/upload"), {}] }), "descriptors[1]");
    refused(descriptors_request(&["path=/upload", "path=/priced bytes=many"]), "bytes");
    let after = caller.should_rate_limit(&descriptors_request(&["path=/upload"]));
    assert_eq!(after["statuses"][0]["limit_remaining"], 99);
    let large = "x".repeat(70_000);
    assert!(
        caller.refused(&descriptors_request(&[&format!("path={large}")])).starts_with("OUT_OF_RANGE"),
        "--max-body"
    );
}

#[test]
fn health_is_serving_until_the_server_drains() {
    let server = Server::serving(RULES, &["--drain-delay", "3600"]);
    let mut caller = Caller::new(&server);
    for service in ["", "envoy.service.ratelimit.v3.RateLimitService"] {
        assert_eq!(caller.health(service), r#"{"status": "SERVING"}"#);
    }
    assert!(caller.health("nobody's").starts_with("ERROR NOT_FOUND"));
    server.signal("-TERM");
    for service in ["", "envoy.service.ratelimit.v3.RateLimitService"] {
        until(|| caller.health(service) == r#"{"status": "NOT_SERVING"}"#);
    }
    let while_draining = caller.should_rate_limit(&descriptors_request(&["path=/upload"]));
    assert_eq!(while_draining["overall_code"], "OK", "calls are still answered");
    // The second signal ends the delay.
    assert!(server.terminate().success());
}

/// Envoy Gateway and Envoy AI Gateway ask with a cost of 0, and send the tokens that a request used at its end. Regression test:
/// a cost above what was left was dropped, so such a budget never ended.
#[test]
fn converted_budget_of_tokens_ends() {
    let directory = tempfile::tempdir().unwrap();
    let (yaml, rules) = (directory.path().join("budget.yaml"), directory.path().join("rules.ini"));
    let text = "domain: ai\ndescriptors:\n- key: user\n  rate_limit: {unit: UNIT, requests_per_unit: 10}\n";
    for unit in ["second", "minute", "hour", "day", "week", "month", "year"] {
        std::fs::write(&yaml, text.replace("UNIT", unit)).unwrap();
        done(&format!("convert --force {} {}", yaml.display(), rules.display()));
        let server = Server::in_memory(rules.to_str().unwrap());
        let mut caller = Caller::new(&server);
        let mut ask = |user: &str, cost: u64| {
            let mut descriptor = descriptor(&format!("user={user}"));
            descriptor["hits_addend"] = json!(cost.to_string());
            let request = json!({ "domain": "ai", "descriptors": [descriptor] });
            caller.should_rate_limit(&request)["overall_code"].as_str().unwrap_or_default().to_owned()
        };
        if unit == "second" {
            // The window may end between two calls.
            ask("ann", 15);
            continue;
        }
        assert_eq!(ask("ann", 0), "OK", "{unit}");
        ask("ann", 15);
        assert_eq!([ask("ann", 0), ask("ann", 1)], ["OVER_LIMIT", "OVER_LIMIT"], "{unit}");
        assert_eq!(
            [ask("bob", 7), ask("bob", 0), ask("bob", 7), ask("bob", 0)],
            ["OK", "OK", "OK", "OVER_LIMIT"],
            "{unit}"
        );
    }
}
