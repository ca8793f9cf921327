//! A new scope holds at once for open connections.

use super::{REFUSED, guarded, line};
use crate::support::http::{HttpClient, encode};
use crate::users::basic;
use crate::users::http2::{Http2Client, json};

const IN_FORCE: &str = "the new users are in force";
const HIT_A: &str = "DIVVY.HIT api=a user=ann";
const HIT_B: &str = "DIVVY.HIT api=b user=ann";

fn file(scope: &str) -> String {
    ["app", "default"].map(|name| line(name, &format!("+@all {scope}"))).concat()
}

#[test]
fn new_scope_holds_at_once_on_every_front() {
    let (_rules, guarded) = guarded(&file("~label:a-*"));
    let mut resp = guarded.resp("app");
    let mut line = guarded.line();
    let mut http = HttpClient::connect(guarded.server.http);
    let http_2 = Http2Client::connect(guarded.server.http);
    let authorization = basic("app");
    // Whether hits under `a-user` and `b-user` are served, on each front.
    let mut served = || {
        ["a", "b"].map(|api| {
            let body = format!("{{\"operation\":{{\"api\":\"{api}\",\"user\":\"ann\"}}}}");
            let reply = resp.command(&format!("DIVVY.HIT api={api} user=ann"));
            line.send(format!("HIT api={api} user=ann\n").as_bytes());
            let answer = line.read_line();
            let headers = [("authorization", authorization.as_str()), ("content-type", "application/json")];
            http.send(&encode("POST", "/v1/hit", &headers, body.as_bytes()));
            let status = http.read_response().status;
            let over_2 = http_2.send(json("POST", "/v1/hit", &authorization, &body)).status;
            let fronts = [reply.starts_with("[1 "), answer.starts_with("OK true"), status == 200, over_2 == 200];
            assert!(fronts.iter().all(|front| *front == fronts[0]), "{reply} {answer} {status} {over_2}");
            fronts[0]
        })
    };
    assert_eq!(served(), [true, false]);
    for (count, (scope, expected)) in [
        ("~label:b-*", [false, true]),
        ("~*", [true; 2]),
        ("", [false; 2]),
        ("~actor:user=ann", [true; 2]),
        ("~actor:user=bob", [false; 2]),
    ]
    .into_iter()
    .enumerate()
    {
        guarded.reload(&file(scope), IN_FORCE, count + 1);
        assert_eq!(served(), expected, "{scope}");
    }
}

#[test]
fn transaction_has_the_scope_of_the_time_of_its_execution() {
    let (_rules, guarded) = guarded(&file("~label:a-* ~label:b-*"));
    let mut app = guarded.resp("app");
    assert_eq!(app.command("MULTI"), "OK");
    for command in [HIT_A, HIT_B, HIT_A] {
        assert_eq!(app.command(command), "QUEUED");
    }
    guarded.reload(&file("~label:a-*"), IN_FORCE, 1);
    assert_eq!(app.command("EXEC"), format!("[[1 999 86400] -NOPERM {REFUSED} [1 998 86400]]"));
}
