//! Requests that are partly in scope: batches, pipelines and pages.

use super::{REFUSED, basic, fill, guarded, users};
use crate::support::RespClient;
use crate::support::http::{encode, request};
use crate::users::password;

#[test]
fn commands_in_scope_are_served() {
    let (_rules, guarded) = guarded(&users());
    let ids = fill(&guarded);
    let mut ann = guarded.resp("ann");
    assert_eq!(ann.command("DIVVY.HIT api=a user=ann"), "[1 998 86400]");
    assert_eq!(ann.command("DIVVY.HIT api=b user=ann"), "[1 898 86400]");
    let mut a = guarded.resp("a");
    assert_eq!(a.command("DIVVY.HIT api=a user=bob"), "[1 898 86400]");
    assert_eq!(a.command("DIVVY.RESET api=a user=bob"), "1");
    assert_eq!(guarded.resp("labels").command("DIVVY.HIT other=x"), "[1 999 86400]");
    assert_eq!(guarded.resp("labels").command("CL.THROTTLE x 1 1 60"), format!("-NOPERM {REFUSED}"));
    assert_eq!(guarded.resp("labels").command(&format!("DIVVY.RELEASE {}", ids.open)), "1");
}

#[test]
fn hits_of_a_pipeline_over_the_line_protocol_have_the_scope_of_the_user_default() {
    let (_rules, guarded) = guarded(&users());
    let mut client = guarded.line();
    client.send(b"HIT api=a user=eve\nHIT api=b user=eve\nHIT api=a user=eve\n");
    let replies: Vec<_> = (0..3).map(|_| client.read_line()).collect();
    assert_eq!(replies[0], "OK true 999 86400\n");
    assert!(replies[1].starts_with("ERR unknown"));
    assert_eq!(replies[2], "OK true 998 86400\n");
}

#[test]
fn users_of_one_pipeline_have_their_own_scopes() {
    let (_rules, guarded) = guarded(&users());
    let login = |name: &str| format!("AUTH {name} \"{}\"\r\n", password(name));
    let hits = "DIVVY.HIT api=a user=ann\r\nDIVVY.HIT api=b user=ann\r\n";
    let mut client = RespClient::connect(guarded.server.resp);
    let users = ["all", "a", "ann", "nothing", "labels"];
    client.send(users.map(|name| login(name) + hits).concat().as_bytes());
    let served = |client: &mut RespClient| client.read_reply().starts_with("[1 ");
    for (name, expected) in users.into_iter().zip([[true; 2], [true, false], [true; 2], [false; 2], [true; 2]]) {
        assert_eq!(client.read_reply(), "OK", "{name}");
        assert_eq!([served(&mut client), served(&mut client)], expected, "{name}");
    }
}

#[test]
fn batch_that_is_not_atomic_reports_each_hit_out_of_scope() {
    let (_rules, guarded) = guarded(&users());
    let hit = |api: &str| format!("{{\"operation\":{{\"api\":\"{api}\",\"user\":\"ann\"}}}}");
    let body = format!("{{\"hits\":[{},{},{}]}}", hit("a"), hit("b"), hit("a"));
    let authorization = basic("a");
    let headers = [("authorization", &*authorization), ("content-type", "application/json"), ("connection", "close")];
    let response = request(guarded.server.http, encode("POST", "/v1/hits", &headers, body.as_bytes()));
    let results = response.json()["results"].clone();
    assert_eq!((response.status, &results[0]["remaining"], &results[2]["remaining"]), (200, &999.into(), &998.into()));
    assert_eq!((&results[1]["status"], &results[1]["detail"]), (&403.into(), &REFUSED.into()));
    assert!(results[1].get("rule").is_none() && results[1].get("remaining").is_none());
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
