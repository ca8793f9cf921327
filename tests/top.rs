//! Actors ranked by denials and by credits: over RESP and HTTP, with `divvy top`, and under the rights of users.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::support::{Server, divvy_with, done_at, http, on_a_terminal, run_at};

const RULES: &str = "
[api=* user=*] creditLimit=10 resetSeconds=3600 actorField=user label=calls
[page=* tenant=* user=*] creditLimit=1 resetSeconds=3600 actorField=tenant,user matchPolicy=canary label=trial
[default] creditLimit=1000000 resetSeconds=3600
";

/// A server with some hits: ann's are denied twice, bob's once.
fn served(flags: &[&str]) -> Server {
    let server = Server::serving(RULES, flags);
    let mut client = server.resp();
    for (user, hits) in [("ann", 12), ("bob", 11), ("<img src=x>\r\n\u{1b}[2J", 3)] {
        let pair = format!("user={user}");
        for _ in 0..hits {
            client.command_of(&[b"DIVVY.HIT", b"api=x", pair.as_bytes()]);
        }
    }
    client.command_of(&[b"DIVVY.HIT", b"page=1", b"tenant=a b", b"user=ann", b"COST", b"2"]);
    server
}

fn top(server: &Server, query: &str) -> Value {
    let response = http::get(server.http, &format!("/v1/top?{query}"));
    assert_eq!(response.status, 200, "{query}: {}", response.body);
    assert_eq!(response.header("cache-control"), Some("no-store"));
    response.json()
}

fn of_rule(rule: &str, actor: &str, count: u64) -> Value {
    json!({ "actor": actor, "cut": false, "count": count, "error": 0, "rule": rule })
}

fn actor(actor: &str, count: u64) -> Value {
    of_rule("calls", actor, count)
}

#[test]
fn ranking_is_the_same_over_http_and_resp_and_on_the_command_line() {
    let server = served(&[]);
    let denied = top(&server, "rule=calls");
    let expected = json!({
        "rule": "calls", "order": "denied", "last": 60, "canary": false, "sampled": false, "hasRoom": true, "total": 3,
        "top": [actor("ann", 2), actor("bob", 1)],
    });
    assert_eq!(denied, expected);
    let taken = top(&server, "rule=calls&order=taken&last=3600&count=2");
    assert_eq!((&taken["total"], &taken["top"]), (&json!(23), &json!([actor("ann", 10), actor("bob", 10)])));
    let trial = top(&server, "rule=trial&order=denied");
    assert_eq!(
        (&trial["canary"], &trial["top"]),
        (&json!(true), &json!([of_rule("trial", "tenant=\"a b\" user=ann", 1)]))
    );
    assert_eq!(top(&server, "rule=default&order=taken")["top"], json!([of_rule("default", "", 2)]));

    let reply = server.resp().command("DIVVY.TOP calls");
    let words = ["rule", "calls", "order", "denied", "last", "60", "hasRoom", "ann"];
    assert!(words.iter().all(|word| reply.contains(word)), "{reply}");
    for (args, query) in [
        ("--rule calls", "rule=calls"),
        ("--rule trial --last 1h", "rule=trial&last=3600"),
        ("--operation 'user=*' 'api=*' --order taken --count 1", "rule=calls&order=taken&count=1"),
        ("", "rule=*"),
    ] {
        let printed: Value = serde_json::from_str(&done_at(&server, &format!("top {args} --json"))).unwrap();
        assert_eq!(printed, top(&server, query), "{args:?}");
    }
}

#[test]
fn table_is_printed_once() {
    let server = served(&[]);
    let table = done_at(&server, "top --rule calls");
    let lines: Vec<_> = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let title = "rule=calls order=denied last=60 canary=false sampled=false hasRoom=true total=3";
    assert_eq!(lines, [title, "count error cut actor rule", "2 0 - ann calls", "1 0 - bob calls"]);
    let taken = done_at(&server, "top --order taken");
    assert!(taken.contains("<img src=x>\\r\\n\\u{1b}[2J calls\n"), "{taken:?}");
    for (args, error) in [("--rule none", "no rule is called 'none'"), ("--count 0", "from 1 to 1000")] {
        let (code, _, message) = run_at(&server, &format!("top {args}"));
        assert!(code != 0 && message.contains(error), "{args}: {message}");
    }
}

/// Starts `divvy top --watch 1`, on a terminal of its own or with a pipe, and reads two tables.
#[test]
fn watched_table_is_printed_again_and_replaced_on_a_terminal() {
    const CLEAR: &str = "\u{1b}[H\u{1b}[2J";
    let server = served(&[]);
    let line = "top --rule calls --watch 1";
    for (mut command, clear) in [(on_a_terminal(line), CLEAR), (divvy_with(line), "")] {
        command.env("DIVVY_SERVER", server.http.to_string()).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut watching = command.spawn().unwrap();
        let lines = BufReader::new(watching.stdout.take().unwrap()).lines().map(Result::unwrap);
        let titles: Vec<_> = lines.filter(|line| line.contains("rule=calls")).take(2).collect();
        watching.kill().unwrap();
        watching.wait().unwrap();
        let title = format!("{clear}rule=calls order=denied last=60 canary=false sampled=false hasRoom=true total=3");
        assert!(titles.iter().all(|shown| shown.trim_end() == title), "{titles:?}");
    }
}

#[test]
fn server_without_memory_for_actors_says_so() {
    let off = served(&["--top-memory", "0"]);
    let answer = http::get(off.http, "/v1/top?rule=calls");
    assert_eq!(answer.status, 404);
    assert!(answer.body.contains("start the server with a --top-memory above 0"), "{}", answer.body);
    assert!(!http::get(off.http, "/metrics").body.contains("divvy_top_"));
    let full = served(&["--top-memory", "500"]);
    assert_eq!(top(&full, "rule=calls")["hasRoom"], json!(false));
    assert!(done_at(&full, "top").contains("hasRoom=false"));
    let metrics = http::get(full.http, "/metrics").body;
    assert!(metrics.contains("\ndivvy_top_rules_without_room 3\n"), "{metrics}");
    let used = metrics.lines().find_map(|line| line.strip_prefix("divvy_top_memory_bytes ")).unwrap();
    assert!((0..=500).contains(&used.parse::<u64>().unwrap()), "{used}");
}
