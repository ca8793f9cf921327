//! Scopes of routes.

use divvy::access::Category;
use serde_json::Value;

use super::{KNOWN, REFUSED, UNKNOWN, basic, fill, guarded, state, users};
use crate::support::http::{HttpClient, Response, encode, get};
use crate::users::Guarded;
use crate::users::categories::category_of_route;

const OPERATIONS: [&str; 6] = [
    r#"{"api":"b","user":"ACTOR"}"#,
    r#"{"api":"both","user":"ACTOR"}"#,
    r#"{"api":"watched","user":"ACTOR"}"#,
    r#"{"api":"plain","user":"ACTOR"}"#,
    r#"{"api":"tenants","tenant":"ACTOR"}"#,
    r#"{"other":"ACTOR"}"#,
];

/// Users who may use only a part of the rules, or only the actor `ann`.
const RESTRICTED: [&str; 3] = ["a", "ann", "nothing"];

/// Returns requests to a route that are out of scope of all users of [`RESTRICTED`]: the target and the body. Empty for
/// a route that lists what is in scope.
fn requests(method: &str, path: &str, id: &str) -> Vec<(String, String)> {
    let each = |body: &dyn Fn(&str) -> String| OPERATIONS.map(|pairs| (path.to_owned(), body(pairs))).to_vec();
    let target = |query: &str| (format!("{path}?{query}"), String::new());
    match (method, path) {
        ("post", "/v1/hit" | "/v1/peek" | "/v1/charge" | "/v1/refund" | "/v1/explain") => {
            each(&|pairs| format!("{{\"operation\":{pairs}}}"))
        }
        // The first hit is in scope of one of the users.
        ("post", "/v1/hits") => each(&|pairs| {
            let first = r#"{"operation":{"api":"a","user":"ann"}}"#;
            format!("{{\"atomic\":true,\"hits\":[{first},{{\"operation\":{pairs}}}]}}")
        }),
        ("post", "/v1/reservations") => each(&|pairs| format!("{{\"operation\":{pairs},\"amount\":1,\"ttl\":5}}")),
        ("post", "/v1/reservations/{id}/commit") => vec![(path.replace("{id}", id), r#"{"cost":1}"#.to_owned())],
        ("post", "/v1/reservations/{id}/renew") => vec![(path.replace("{id}", id), r#"{"ttl":9}"#.to_owned())],
        ("delete", "/v1/reservations/{id}") => vec![(path.replace("{id}", id), String::new())],
        ("get" | "delete", "/v1/counters") => ["b-user", "b-second", "c-canary", "rule-8", "default", "no-such"]
            .map(|rule| target(&format!("rule={rule}&actor=ACTOR")))
            .to_vec(),
        ("put", "/v1/limits") => vec![(target("rule=b-user&actor=ACTOR").0, r#"{"credits":5}"#.to_owned())],
        ("get" | "delete", "/v1/limits") => vec![target("rule=b-user&actor=ACTOR")],
        ("put", "/v1/blocks" | "/v1/allows") => ["rule=b-user&actor=ACTOR", "rule=*&actor=user=ACTOR"]
            .map(|query| (target(query).0, r#"{"reason":"x"}"#.to_owned()))
            .to_vec(),
        ("get" | "delete", "/v1/blocks" | "/v1/allows") => {
            vec![target("rule=b-user&actor=ACTOR"), target("rule=*&actor=user=ACTOR")]
        }
        ("get", "/v1/status") => vec![target("tenant=ACTOR"), target("user=ACTOR&tenant=ACTOR")],
        ("get", "/v1/top") => ["b-tenant", "default", "no-such"].map(|rule| target(&format!("rule={rule}"))).to_vec(),
        ("get", "/v1/rules") => Vec::new(),
        // Decisions are about all rules.
        ("get", "/v1/decisions" | "/v1/decisions/stream") => vec![(path.to_owned(), String::new())],
        ("post", "/v1/usage-metrics") => vec![(path.to_owned(), "{}".to_owned())],
        (_, check) if check.starts_with("/v1/check") => {
            let path = path.replace("{path}", "x");
            ["api=b&user", "api=both&user", "api=watched&user", "other"]
                .map(|pairs| (format!("{path}?{pairs}=ACTOR"), String::new()))
                .to_vec()
        }
        other => panic!("this test has no request to {other:?}"),
    }
}

/// Sends a request with a JSON body, as this user.
fn ask(client: &mut HttpClient, method: &str, target: &str, body: &str, user: &str) -> Response {
    let authorization = basic(user);
    let mut headers = vec![("authorization", authorization.as_str())];
    if !body.is_empty() {
        headers.push(("content-type", "application/json"));
    }
    client.send(&encode(&method.to_uppercase(), target, &headers, body.as_bytes()));
    if method != "head" {
        return client.read_response();
    }
    let (status, head) = client.read_head();
    Response { status, head, body: String::new() }
}

/// Returns the methods and the paths of all routes that have an effect only on rules in scope.
fn scoped_routes(guarded: &Guarded) -> Vec<(String, String)> {
    let described = get(guarded.server.http, "/openapi.json").json();
    let paths = described["paths"].as_object().unwrap();
    let methods = |methods: &Value| methods.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let all = paths
        .iter()
        .flat_map(|(path, described)| methods(described).into_iter().map(move |method| (method, path.clone())));
    let scoped = [Category::Hit, Category::Read, Category::Status, Category::Limits, Category::Block, Category::Forget];
    all.filter(|(method, _)| method != "parameters")
        .filter(|(method, path)| category_of_route(method, path).is_some_and(|category| scoped.contains(&category)))
        .collect()
}

#[test]
fn routes_out_of_scope_are_refused_and_take_nothing() {
    let (_rules, guarded) = guarded(&users());
    let ids = fill(&guarded);
    let before = state(&guarded);
    let (routes, mut sent) = (scoped_routes(&guarded), 0);
    assert!(routes.len() > 25, "{routes:?}");
    let mut client = HttpClient::connect(guarded.server.http);
    for user in RESTRICTED {
        for (method, path) in &routes {
            for (actor, id) in [(KNOWN, &ids.open), (UNKNOWN, &ids.released)] {
                for (target, body) in requests(method, path, id) {
                    let (target, body) = (target.replace("ACTOR", actor), body.replace("ACTOR", actor));
                    let response = ask(&mut client, method, &target, &body, user);
                    assert_eq!(response.status, 403, "{user}: {method} {target} {body}: {response:?}");
                    let problem = "{\"type\":\"about:blank\",\"title\":\"Forbidden\",\"status\":403,\"detail\":\"";
                    // All of its hits are out of scope of the user `nothing`.
                    let hit = if user == "nothing" { 0 } else { 1 };
                    let pointer =
                        if path == "/v1/hits" { format!(",\"pointer\":\"#/hits/{hit}\"") } else { String::new() };
                    let expected = format!("{problem}{REFUSED}\"{pointer}}}\n");
                    if method != "head" {
                        assert_eq!(response.body, expected, "{user}: {method} {target} {body}");
                    }
                    sent += 1;
                }
            }
        }
    }
    assert!(sent > 300, "{sent}");
    assert_eq!(state(&guarded), before);
}

#[test]
fn batch_that_is_not_atomic_reports_each_hit_out_of_scope() {
    let (_rules, guarded) = guarded(&users());
    let mut client = HttpClient::connect(guarded.server.http);
    let hit = |api: &str| format!("{{\"operation\":{{\"api\":\"{api}\",\"user\":\"ann\"}}}}");
    let body = format!("{{\"hits\":[{},{},{}]}}", hit("a"), hit("b"), hit("a"));
    let response = ask(&mut client, "post", "/v1/hits", &body, "a");
    let results = response.json()["results"].clone();
    assert_eq!((response.status, &results[0]["remaining"], &results[2]["remaining"]), (200, &999.into(), &998.into()));
    assert_eq!((&results[1]["status"], &results[1]["detail"]), (&403.into(), &REFUSED.into()));
    assert!(results[1].get("rule").is_none() && results[1].get("remaining").is_none());
}

#[test]
fn routes_list_what_is_in_scope() {
    let (_rules, guarded) = guarded(&users());
    fill(&guarded);
    let list = |user: &str, path: &str, list: &str, field: &str| -> Vec<String> {
        let listed = guarded.http("GET", path, Some(user)).json();
        listed[list].as_array().unwrap().iter().map(|item| item[field].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(list("a", "/v1/rules", "rules", "label"), ["a-user", "a-first", "a-watched"]);
    assert_eq!(list("nothing", "/v1/rules", "rules", "label"), [""; 0]);
    assert_eq!(list("a", "/v1/status?user=bob", "rules", "rule"), ["a-user", "a-first", "a-watched"]);
    assert_eq!(list("ann", "/v1/status?user=ann", "rules", "rule"), ["a-user", "b-user"]);
    assert_eq!(list("ann", "/v1/counters?rule=b-user", "counters", "actor"), ["ann"]);
    assert_eq!(list("a", "/v1/limits", "limits", "rule"), ["a-user"]);
    assert_eq!(list("ann", "/v1/limits", "limits", "actor"), ["ann"]);
}

#[test]
fn cursor_of_a_rule_out_of_scope_begins_no_page() {
    let (_rules, guarded) = guarded(&users());
    fill(&guarded);
    let status = |user: &str, cursor: &str| {
        guarded.http("GET", &format!("/v1/status?user=bob&count=1{cursor}"), Some(user)).json()
    };
    let mut cursor = String::new();
    let mut starts = Vec::new();
    loop {
        let page = status("all", &cursor);
        let Some(next) = page["next"].as_str() else { break };
        cursor = format!("&cursor={next}");
        starts.push(cursor.clone());
    }
    let refused = starts.iter().filter(|cursor| status("a", cursor)["status"] == 400).count();
    let (all, in_scope) = (starts.len() + 1, 3);
    assert_eq!(refused, all - in_scope, "{starts:?}");
}
