//! Rules that deny nothing, or answer with a note before they deny: what each front says. The limiter's tests have the counting.

use serde_json::{Value, json};

use crate::support::grpc::descriptors_request;
use crate::support::{Caller, Server, resp};

const RULES: &str = "
[domain=edge user=*] creditLimit=2 resetSeconds=3600 actorField=user overrun=annotate label=quota
[api=call user=*] creditLimit=2 resetSeconds=3600 actorField=user overrun=annotate matchPolicy=and label=soft
[api=call user=*] creditLimit=5 resetSeconds=3600 actorField=user annotateAt=50 label=hard
[path=/r user=*] creditLimit=1 resetSeconds=3600 actorField=user overrun=annotate label=pages
[default] creditLimit=0
";

fn hit(server: &Server, user: &str) -> (u16, Option<String>, Value) {
    let body = json!({ "operation": { "api": "call", "user": user } });
    let response = server.http().post("/v1/hit", body);
    let json: Value = serde_json::from_str(&response.body).unwrap();
    (response.status, response.header("divvy-exceeded").map(str::to_owned), json["exceeded"].clone())
}

#[test]
fn answers_name_the_rules_that_are_exceeded() {
    let server = Server::serving(RULES, &[]);
    let both = || (Some("soft, hard".to_owned()), json!(["soft", "hard"]));
    for (status, (header, exceeded)) in [
        (200, (None, Value::Null)),
        (200, (None, Value::Null)),
        (200, both()),
        (200, both()),
        (200, both()),
        (429, both()),
    ] {
        assert_eq!(hit(&server, "ann"), (status, header, exceeded));
    }
    let reply = resp(&server, "DIVVY.HIT api=call user=ann REPLY JSON");
    assert!(reply.contains("\"exceeded\":[\"soft\",\"hard\"]"), "{reply}");
    let reserve = json!({ "operation": { "api": "call", "user": "bob" }, "amount": 3, "ttl": 60 });
    let reserved: Value = serde_json::from_str(&server.http().post("/v1/reservations", reserve).body).unwrap();
    assert_eq!(reserved["exceeded"], json!(["soft", "hard"]), "{reserved}");
}

#[test]
fn gateways_get_a_header_for_the_service() {
    let server = Server::serving(RULES, &["--check-operation", "+ user=header:X-User"]);
    let check = || {
        let response = server.http().get("/v1/check/r", &[("X-User", "ann")]);
        (response.status, response.header("divvy-exceeded").map(str::to_owned))
    };
    assert_eq!(check(), (200, None));
    assert_eq!(check(), (200, Some("pages".to_owned())));

    let mut caller = Caller::new(&server);
    let mut request = descriptors_request(&["user=ann"]);
    request["hits_addend"] = json!(2);
    let reply = caller.should_rate_limit(&request);
    assert_eq!((&reply["request_headers_to_add"], &reply["dynamic_metadata"]), (&Value::Null, &Value::Null), "{reply}");
    let reply = caller.should_rate_limit(&request);
    assert_eq!(reply["overall_code"], "OK", "{reply}");
    assert_eq!(reply["request_headers_to_add"], json!([{ "key": "divvy-exceeded", "value": "quota" }]));
    assert_eq!(reply["dynamic_metadata"], json!({ "exceeded": ["quota"] }));
}
