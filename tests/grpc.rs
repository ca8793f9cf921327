//! Envoy's Rate Limit Service and the services next to it, called by a Python client that relies on reflection alone. More of it
//! is in tests/wire/.

use serde_json::{Value, json};

use crate::support::grpc::{descriptor, descriptors_request};
use crate::support::{Caller, Server, done, until};

const RULES: &str = "
[domain=edge path=/upload] creditLimit=100 resetSeconds=90
[default] creditLimit=0
";

#[test]
fn request_over_the_bound_is_out_of_range() {
    let server = Server::serving(RULES, &[]);
    let large = format!("path={}", "x".repeat(70_000));
    let error = Caller::new(&server).refused(&descriptors_request(&[&large]));
    assert!(error.starts_with("OUT_OF_RANGE"), "--max-body: {error}");
}

fn headers_of(reply: &Value) -> Vec<String> {
    let headers = reply["response_headers_to_add"].as_array().cloned().unwrap_or_default();
    let text = |header: &Value| format!("{}: {}", header["key"].as_str().unwrap(), header["value"].as_str().unwrap());
    headers.iter().map(text).collect()
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
fn health_is_serving_until_the_server_drains() {
    let server = Server::serving(RULES, &["--drain-delay", "3600"]);
    let mut caller = Caller::new(&server);
    let services = ["", "ratelimit", "envoy.service.ratelimit.v3.RateLimitService"];
    for service in services {
        assert_eq!(caller.health(service), r#"{"status": "SERVING"}"#);
    }
    assert!(caller.health("nobody's").starts_with("ERROR NOT_FOUND"));
    server.signal("-TERM");
    for service in services {
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
            ["OK", "OK", "OVER_LIMIT", "OVER_LIMIT"],
            "{unit}: as in ratelimit, the cost that exceeds the limit is denied, and counts"
        );
    }
}
