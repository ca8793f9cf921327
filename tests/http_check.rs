//! `/v1/check`, as gateways use it.

use crate::support::http::encode;
use crate::support::{HttpClient, Response, Server, http};

const RULES: &str = "
[service=shop user=*] creditLimit=2 resetSeconds=3600 actorField=user label=shop
[method=GET path=/status ip=*] creditLimit=1 resetSeconds=3600 actorField=ip label=status
[method=PUT path=/items/* host=divvy] creditLimit=1 resetSeconds=3600 label=items
[path=/] creditLimit=1 resetSeconds=3600 label=root
[default] creditLimit=0 resetSeconds=0
";

fn served(args: &[&str]) -> (Server, HttpClient) {
    http::served(RULES, args)
}

/// Returns the rule that answered and the remaining credit.
fn standing(response: &Response) -> String {
    let text = response.header("ratelimit").unwrap();
    text.split_once(";t=").map_or(text, |(standing, _)| standing).to_owned()
}

#[test]
fn named_parameters_are_pairs_and_the_answer_is_a_status() {
    let (_server, mut client) = served(&["--check-operation", "+service=query:service user=query:user"]);
    let path = "/v1/check?service=shop&user=ann%20lee";
    let first = client.get(path, &[]);
    assert_eq!((first.status, first.body.as_str()), (200, ""));
    assert_eq!(first.header("ratelimit-policy"), Some("\"shop\";q=2;w=3600"));
    assert_eq!(first.header("ratelimit"), Some("\"shop\";r=1;t=3600"));
    client.send(&encode("POST", path, &[], b"ignored body"));
    assert_eq!(standing(&client.read_response()), "\"shop\";r=0");
    let denied = client.get(path, &[]);
    assert_eq!((denied.status, denied.body.as_str()), (429, ""));
    assert!(denied.header("retry-after").is_some());
    assert_eq!(client.get("/v1/check?service=shop&user=bob", &[]).status, 200);
}

#[test]
fn forwarded_request_can_be_the_subject_of_the_check() {
    let (_server, mut client) = served(&[]);
    let mut asked = |method: &str, path: &str| {
        client.send(&encode(method, path, &[], b""));
        let response = client.read_response();
        (response.status, standing(&response))
    };
    let answer = |text: &str| text.to_owned();
    assert_eq!(asked("PUT", "/v1/check/items/7?service=shop&user=x"), (200, answer("\"items\";r=0")));
    assert_eq!(asked("PUT", "/v1/check/items/8").0, 429);
    assert_eq!(asked("OPTIONS", "/v1/check/"), (200, answer("\"root\";r=0")));
    assert_eq!(
        asked("GET", "/v1/check/a?service=shop&user=x"),
        (429, answer("\"default\";r=0")),
        "its query is the client's"
    );
}
