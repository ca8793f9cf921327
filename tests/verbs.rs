//! `divvy hit` over HTTP and over the line protocol; the other verbs over HTTP have the same results as over RESP.

use crate::support::{COMPAT_RULES, Server, divvy_with, done_at, output, run, run_at};
use std::ops::RangeInclusive;

const RULES: &str = "
[user=*] creditLimit=1000 resetSeconds=3600 actorField=user
[job=export] algorithm=concurrency creditLimit=1 resetSeconds=600
[default] creditLimit=0
";

/// Runs `divvy`, which must succeed. Returns the words that it prints after `OK`.
fn words(server: &Server, line: &str) -> Vec<String> {
    let out = done_at(server, line);
    let answer = out.strip_prefix("OK ").unwrap_or_else(|| panic!("{line}: {out}"));
    answer.split_whitespace().map(str::to_owned).collect()
}

/// Steps on an operation: the command line, and the command. `$` stands for the id of the latest reservation, and `USER` for a
/// pair.
const STEPS: &[(&str, &str)] = &[
    ("hit --cost 2 USER", "HIT USER COST 2"),
    ("peek USER", "PEEK USER"),
    ("peek --cost 999 USER", "PEEK USER COST 999"),
    ("charge --cost 300 --id a USER", "CHARGE USER COST 300 ID a"),
    ("charge --cost 300 --id a USER", "CHARGE USER COST 300 ID a"),
    ("charge USER", "CHARGE USER"),
    ("reserve --amount 400 --ttl 30 USER", "RESERVE USER AMOUNT 400 TTL 30"),
    ("renew --ttl 45 $", "RENEW $ TTL 45"),
    ("commit --cost 150 $", "COMMIT $ COST 150"),
    ("commit --cost 150 $", "COMMIT $ COST 150"),
    ("release $", "RELEASE $"),
    ("renew $", "RENEW $"),
    ("reserve --amount 100 --ttl 1m --id b USER", "RESERVE USER AMOUNT 100 TTL 60 ID b"),
    ("release $", "RELEASE $"),
    ("reserve --amount 999 --ttl 30 USER", "RESERVE USER AMOUNT 999 TTL 30"),
    ("charge --cost 2000 USER", "CHARGE USER COST 2000"),
    ("hit USER", "HIT USER"),
    ("refund --cost 1700 --id c USER", "REFUND USER COST 1700 ID c"),
    ("refund USER", "REFUND USER"),
];

/// Seconds that differ a little from run to run, and their names: the window, and the TTLs of reservations, which may
/// last somewhat longer than requested.
const SECONDS: [(RangeInclusive<u64>, &str); 2] = [(3_500..=3_600, "window"), (43..=48, "three-quarters")];

/// Replaces the words that differ from run to run: ids and seconds.
fn normalize(words: Vec<String>, id: &mut String) -> Vec<String> {
    let replace = |word: String| match word.as_str() {
        "true" => "1".to_owned(),
        "false" => "0".to_owned(),
        text if text.len() > 40 => {
            text.clone_into(id);
            "id".to_owned()
        }
        text => {
            let number = text.parse().unwrap_or_default();
            let seconds = SECONDS.iter().find(|(range, _)| range.contains(&number));
            seconds.map_or(word, |(_, name)| (*name).to_owned())
        }
    };
    words.into_iter().filter(|word| word != "nil").map(replace).collect()
}

#[test]
fn command_line_and_resp_have_the_same_results() {
    let server = Server::serving(RULES, &[]);
    let mut client = server.resp();
    let (mut shell_id, mut resp_id) = (String::new(), String::new());
    let mut answers = Vec::new();
    for (line, command) in STEPS {
        let line = line.replace("USER", "user=ann").replace('$', &shell_id);
        let command = command.replace("USER", "user=bob").replace('$', &resp_id);
        let printed = normalize(words(&server, &line), &mut shell_id);
        let reply = client.command(&format!("DIVVY.{command}"));
        let reply = crate::support::words(&reply).into_iter().map(str::to_owned).collect();
        assert_eq!(printed, normalize(reply, &mut resp_id), "{line}");
        answers.push(printed.join(" "));
    }
    assert_eq!(
        answers,
        [
            "1 998 window",
            "1 998 window",
            "0 998 window",
            "698 window",
            "698 window",
            "697 window",
            "1 297 window id",
            "three-quarters",
            "547 window settled",
            "547 window repeated",
            "0",
            "0",
            "1 447 window id",
            "1",
            "0 547 window",
            "-1453 window",
            "0 0 window",
            "247 window",
            "248 window",
        ]
    );
}

#[test]
fn answers_are_also_the_json_of_the_api() {
    let server = Server::serving(RULES, &[]);
    let json = |line: &str| serde_json::from_str::<serde_json::Value>(&done_at(&server, line)).unwrap();
    let peeked = serde_json::json!({
        "allowed": true, "limit": 1000, "remaining": 1000, "balance": 1000, "reset": 0, "retryAfter": null, "rule": "rule-1"
    });
    assert_eq!(json("peek --json user=ann"), peeked);
    assert_eq!(json("charge --json --cost 1500 user=ann")["balance"], -500);
    assert_eq!(json("refund --json --cost 600 user=ann")["balance"], 100);
    let reserved = json("reserve --json --amount 60 --ttl 30 user=ann");
    let id = reserved["id"].as_str().unwrap();
    assert!(json(&format!("renew --json --ttl 50 {id}"))["expiresIn"].is_u64());
    assert_eq!(json(&format!("commit --json --cost 10 {id}"))["status"], "settled");
    assert_eq!(json(&format!("release --json {id}")), serde_json::json!({ "released": false }));
}

#[test]
fn refusal_sets_the_exit_code_if_requested() {
    let server = Server::serving(RULES, &[]);
    let id = words(&server, "reserve --amount 5 --ttl 30 user=bob").pop().unwrap();
    for (line, code) in [
        ("peek user=ann", 0),
        ("hit --cost 1001 user=ann", 3),
        ("peek --cost 1001 user=ann", 3),
        ("reserve --amount 1001 --ttl 9 user=ann", 3),
        (&format!("renew {id}"), 0),
        (&format!("release {id}"), 0),
        (&format!("release {id}"), 3),
        (&format!("renew {id}"), 3),
        (&format!("hit --addr {} a=b", server.line), 3),
        ("hit --server 127.0.0.1:1 user=ann", 1),
    ] {
        let (verb, rest) = line.split_once(' ').unwrap();
        assert_eq!(run_at(&server, &format!("{verb} --exit-code {rest}")).0, code, "{line}");
    }
    assert_eq!(run_at(&server, "hit --cost 1001 user=ann").0, 0, "unless it is requested");
}

const STATUS: &str = "method=GET path=/status";

fn printed(out: &str) -> (i32, String, String) {
    (0, out.to_owned(), String::new())
}

#[test]
fn both_fronts_print_the_same() {
    let server = Server::in_memory(COMPAT_RULES);
    let (http, line) = (server.http, server.line);
    assert_eq!(run(&format!("hit --server {http} {STATUS}")), printed("OK true 999 60\n"));
    assert_eq!(run(&format!("hit --addr {line} {STATUS}")), printed("OK true 998 60\n"));
    let peek = r#"{"operation":{"method":"GET","path":"/status"}}"#;
    let expected = server.http().post("/v1/peek", peek).body.replace("998", "997");
    assert_eq!(run(&format!("hit --server http://{http} --json {STATUS}")), printed(&expected), "as over HTTP");
}

#[test]
fn flag_takes_precedence_over_a_variable_and_two_flags_conflict() {
    let server = Server::in_memory(COMPAT_RULES);
    let (http, line) = (server.http.to_string(), server.line.to_string());
    let nowhere = "127.0.0.1:1";
    for (variables, options) in [
        (&[("DIVVY_SERVER", &*http)][..], ""),
        (&[("DIVVY_ADDR", &line)], ""),
        (&[("DIVVY_ADDR", &line), ("DIVVY_SERVER", nowhere)], ""),
        (&[("DIVVY_ADDR", nowhere)], &format!("--server {http}")),
        (&[("DIVVY_SERVER", nowhere)], &format!("--addr {line}")),
    ] {
        let mut command = divvy_with(&format!("hit {options} {STATUS}"));
        assert_eq!(output(command.envs(variables.iter().copied())).0, 0, "{variables:?} {options}");
    }
    let (code, _, error) = run(&format!("hit --server {http} --addr {line} {STATUS}"));
    assert!(code == 1 && error.contains("--server") && error.contains("--addr"), "{error}");
}

#[test]
fn tls_with_a_server_without_tls_is_reported() {
    let server = Server::in_memory(COMPAT_RULES);
    let (code, _, error) = run(&format!("hit --tls --server {} {STATUS}", server.http));
    assert_eq!(code, 1);
    // On a machine without certificate authorities, the handshake does not even start.
    assert!(error.contains("leave out --tls") || error.contains("--tls-ca"), "{error}");
}
