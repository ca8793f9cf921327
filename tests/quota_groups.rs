//! Quota groups: what each front answers. The limiter's tests have the counting.

use serde_json::{Value, json};

use crate::support::grpc::descriptors_request;
use crate::support::{Caller, Server, resp};

const RULES: &str = "
[api=call user=*] creditLimit=1 resetSeconds=3600 actorField=user quotaGroup=plan label=monthly
[api=call user=*] creditLimit=3 resetSeconds=1800 actorField=user quotaGroup=plan matchPolicy=stop label=prepaid
[domain=edge user=*] creditLimit=1 resetSeconds=3600 actorField=user quotaGroup=edge matchPolicy=stop label=user
[domain=edge ip=*] creditLimit=2 resetSeconds=1800 actorField=ip quotaGroup=edge matchPolicy=stop label=ip
[domain=edge path=*] creditLimit=3 resetSeconds=3600 actorField=path label=path
[default] creditLimit=0
";

#[test]
fn hit_is_denied_if_all_rules_of_the_group_are_exceeded() {
    let server = Server::serving(RULES, &[]);
    let hit = || {
        let response = server.http().post("/v1/hit", json!({ "operation": { "api": "call", "user": "ann" } }));
        let json: Value = serde_json::from_str(&response.body).unwrap();
        (response.status, json["remaining"].clone(), json["rule"].clone(), json["violatedPolicies"].clone())
    };
    assert_eq!(hit(), (200, json!(2), json!("prepaid"), Value::Null));
    assert_eq!(resp(&server, "DIVVY.HIT api=call user=ann"), "[1 1 1800]");
    assert_eq!(hit(), (200, json!(0), json!("prepaid"), Value::Null));
    assert_eq!(hit(), (429, json!(0), json!("prepaid"), json!(["monthly", "prepaid"])));
    let denied = resp(&server, "DIVVY.HIT api=call user=ann");
    assert!(denied.starts_with("[0 0 "), "{denied}");
    let explained = server.http().post("/v1/explain", json!({ "operation": { "api": "call", "user": "ann" } })).body;
    let explained: Value = serde_json::from_str(&explained).unwrap();
    assert_eq!(explained["rules"][0]["grants"]["quotaGroup"], "plan", "{explained}");
    let listed: Value = serde_json::from_str(&server.http().get("/v1/rules", &[]).body).unwrap();
    assert_eq!(
        (&listed["rules"][0]["quotaGroup"], &listed["rules"][0]["matchPolicy"]),
        (&json!("plan"), &json!("and"))
    );
}

#[test]
fn call_is_over_the_limit_if_all_rules_of_the_group_are_exceeded_at_all_descriptors() {
    let server = Server::serving(RULES, &["--grpc-rate-limit-headers", "x"]);
    let mut caller = Caller::new(&server);
    let request = descriptors_request(&["user=ann", "ip=::1", "path=/"]);
    let codes = |reply: &Value| {
        let statuses = reply["statuses"].as_array().unwrap().iter().map(|status| status["code"].clone());
        (reply["overall_code"].clone(), statuses.collect::<Vec<_>>())
    };
    let expected = |overall: &str, statuses: [&str; 3]| (json!(overall), statuses.map(|code| json!(code)).to_vec());
    assert_eq!(codes(&caller.should_rate_limit(&request)), expected("OK", ["OK", "OK", "OK"]));
    let reply = caller.should_rate_limit(&request);
    assert_eq!(codes(&reply), expected("OK", ["OVER_LIMIT", "OK", "OK"]));
    let headers = reply["response_headers_to_add"].to_string();
    assert!(headers.contains(r#""x-ratelimit-limit","value":"2""#) && !headers.contains("retry-after"), "{headers}");
    let reply = caller.should_rate_limit(&request);
    assert_eq!(codes(&reply), expected("OVER_LIMIT", ["OVER_LIMIT", "OVER_LIMIT", "OK"]));
    assert!(reply["response_headers_to_add"].to_string().contains("retry-after"), "{reply}");
    // The other rule has counted all three calls, and denies alone.
    let only_path = descriptors_request(&["path=/", "ip=::2"]);
    assert_eq!(codes(&caller.should_rate_limit(&only_path)).0, "OVER_LIMIT");
}
