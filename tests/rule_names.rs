//! A rule without a label is named by its position, as in `rule-2`: listings show the name, requests that read accept
//! it, and changes require a label.

use crate::support::command_line::run_at;
use crate::support::http::{HttpClient, Response, encode};
use crate::support::{RespClient, RulesFile, Server};

const RULES: &str = "
[api=search]
creditLimit = 5
resetSeconds = 3600
label = rule-3

[api=upload user=*]
creditLimit = 7
resetSeconds = 3600
actorField = user

[api=report]
creditLimit = 9
resetSeconds = 3600

[default]
creditLimit = 11
resetSeconds = 3600
";
const ADVICE: &str = "rule 'rule-2' is named by its position, which may change: set `label = NAME` in the rule, and name it by \
                      its label";

fn served() -> (Server, RulesFile) {
    let rules = RulesFile::ini(RULES);
    let server = Server::in_memory(rules.path());
    let mut client = RespClient::connect(server.resp);
    for operation in ["api=search", "api=upload user=ann", "api=report", "api=other"] {
        assert!(client.command(&format!("DIVVY.HIT {operation}")).starts_with("[1 "));
    }
    (server, rules)
}

fn request(server: &Server, method: &str, path: &str, body: &str) -> Response {
    let mut client = HttpClient::connect(server.http);
    client.send(&encode(method, path, &[("content-type", "application/json")], body.as_bytes()));
    client.read_response()
}

#[test]
fn listings_show_the_name_of_a_rule_without_a_label() {
    let (server, rules) = served();
    let listed = request(&server, "GET", "/v1/rules", "").json();
    let names: Vec<_> = listed["rules"].as_array().unwrap().iter().map(|rule| rule["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["rule-3", "rule-2", "rule-3", "default"]);
    let (_, check, _) = run_at(&server, &["check", rules.path()]);
    let (_, explain, _) = run_at(&server, &["explain", "--file", rules.path(), "api=report"]);
    let mut client = RespClient::connect(server.resp);
    for (listing, expected) in [
        (client.command("DIVVY.RULES"), "matchPolicy stop name rule-2 allowed"),
        (client.command("DIVVY.EXPLAIN api=report"), "line 7: [api=upload user=*] (rule-2): does not match"),
        (explain, "line 7: [api=upload user=*] (rule-2): does not match"),
        (check.clone(), "line 7: [api=upload user=*] allows 7 in 3600 s, by user (rule-2)\n"),
        (check, "[default] allows 11 in 3600 s\n"),
    ] {
        assert!(listing.contains(expected), "{expected:?} in {listing}");
    }
}

#[test]
fn requests_that_read_accept_the_name_and_a_label_takes_precedence() {
    let (server, _rules) = served();
    let mut client = RespClient::connect(server.resp);
    for (name, actor, left) in [("rule-2", "ann", 6), ("rule-3", "", 4), ("default", "", 10)] {
        let page = client.command(&format!("DIVVY.COUNTERS {name}"));
        assert!(page.starts_with(&format!("[0 [[{actor} {left} ")), "{name}: {page}");
        let page = request(&server, "GET", &format!("/v1/counters?rule={name}"), "").json();
        assert_eq!((&page["counters"][0]["actor"], &page["counters"][0]["remaining"]), (&actor.into(), &left.into()));
        let (code, table, error) = run_at(&server, &["counters", "--rule", name, "--json"]);
        assert_eq!((code, error.as_str()), (0, ""), "{name}");
        assert!(table.starts_with(&format!(r#"{{"actor":"{actor}","remaining":{left},"#)), "{name}: {table}");
    }
    // A rule without a label has no limits of actors.
    assert_eq!(client.command("DIVVY.LIMIT GET rule-2 ann"), "nil");
    assert_eq!(client.command("DIVVY.LIMIT LIST RULE rule-2"), "[0 []]");
    assert_eq!(run_at(&server, &["limit", "list", "--rule", "rule-2"]), (0, String::new(), String::new()));
    assert_eq!(request(&server, "GET", "/v1/limits?rule=rule-2", "").json()["limits"], serde_json::json!([]));
    assert_eq!(request(&server, "GET", "/v1/limits?rule=rule-2&actor=ann", "").status, 404);
    for unknown in ["rule-1", "rule-4", "rule-02"] {
        let refused = client.command(&format!("DIVVY.COUNTERS {unknown}"));
        assert_eq!(refused, format!("-ERR no rule is called '{unknown}' (DIVVY.RULES lists them)"));
    }
}

#[test]
fn changes_demand_a_label_and_say_how_to_set_one() {
    let (server, _rules) = served();
    let mut client = RespClient::connect(server.resp);
    for command in ["LIMIT SET rule-2 ann 9", "LIMIT DEL rule-2 ann", "FORGET rule-2", "FORGET rule-2 ACTOR ann"] {
        assert_eq!(client.command(&format!("DIVVY.{command}")), format!("-ERR {ADVICE}"), "{command}");
    }
    for (method, path, body) in [
        ("PUT", "/v1/limits?rule=rule-2&actor=ann", r#"{"credits": 9}"#),
        ("DELETE", "/v1/limits?rule=rule-2&actor=ann", ""),
        ("DELETE", "/v1/counters?rule=rule-2", ""),
    ] {
        let refused = request(&server, method, path, body);
        assert_eq!((refused.status, &refused.json()["detail"]), (400, &ADVICE.into()), "{method} {path}");
    }
    for args in [
        &["limit", "set", "rule-2", "ann", "9"][..],
        &["limit", "delete", "rule-2", "ann"],
        &["counters", "--rule", "rule-2", "--delete", "--yes"],
    ] {
        let (code, out, error) = run_at(&server, args);
        assert_eq!((code, out.as_str()), (1, ""), "{args:?}");
        assert!(error.contains(ADVICE), "{args:?}: {error}");
    }
    assert!(client.command("DIVVY.COUNTERS rule-2").starts_with("[0 [[ann 6 "));
    // An operation names the same rule in any order of the file, and so do a label and `default`.
    assert_eq!(client.command("DIVVY.FORGET api=upload user=*"), "[0 1]");
    assert_eq!(client.command("DIVVY.FORGET rule-3"), "[0 1]");
    assert_eq!(
        client.command("DIVVY.COUNTERS api=report").split(' ').nth(2),
        Some("8"),
        "the other rule-3 is unchanged"
    );
    assert_eq!(client.command("DIVVY.LIMIT SET default  9"), "OK");
}
