//! `divvy hit` over HTTP and over the line protocol; the other verbs over HTTP have the same results as over RESP.

use std::ops::RangeInclusive;
use std::process::Command;

use crate::support::{COMPAT_RULES, Server, connect, divvy, output, run_at};

const RULES: &str = "
[user=*] creditLimit=1000 resetSeconds=3600 actorField=user
[job=export] algorithm=concurrency creditLimit=1 resetSeconds=600
[default] creditLimit=0
";

/// Runs `divvy`, which must succeed. Returns the words that it prints after `OK`.
fn words(server: &Server, args: &[&str]) -> Vec<String> {
    let (code, out, error) = run_at(server, args);
    assert_eq!((code, error.as_str()), (0, ""), "{args:?}");
    let answer = out.strip_prefix("OK ").unwrap_or_else(|| panic!("{args:?}: {out}"));
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
        let printed = normalize(words(&server, &line.split(' ').collect::<Vec<_>>()), &mut shell_id);
        let reply = client.command(&format!("DIVVY.{command}"));
        let reply = reply.trim_matches(['[', ']']).split(' ').map(str::to_owned).collect();
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
    let json = |line: &str| {
        let (code, out, error) = run_at(&server, &line.split(' ').collect::<Vec<_>>());
        assert_eq!((code, error.as_str()), (0, ""), "{line}");
        serde_json::from_str::<serde_json::Value>(&out).unwrap()
    };
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
    let codes = |args: &[&str]| {
        [args, &[&args[..1], &["--exit-code"], &args[1..]].concat()].map(|args| run_at(&server, args).0)
    };
    assert_eq!(codes(&["peek", "user=ann"]), [0, 0]);
    assert_eq!(codes(&["peek", "--cost", "1001", "user=ann"]), [0, 3]);
    assert_eq!(codes(&["reserve", "--amount", "1001", "--ttl", "9", "user=ann"]), [0, 3]);
    let id = words(&server, &["reserve", "--amount", "5", "--ttl", "30", "user=ann"]).pop().unwrap();
    assert_eq!(codes(&["renew", &id]), [0, 0]);
    assert_eq!(run_at(&server, &["release", "--exit-code", &id]).0, 0);
    assert_eq!(codes(&["release", &id]), [0, 3]);
    assert_eq!(codes(&["renew", &id]), [0, 3]);
}

const STATUS: [&str; 2] = ["method=GET", "path=/status"];
const SCARCE: &str = "[a=1]\ncreditLimit = 1\nresetSeconds = 60\n\n[default]\ncreditLimit = 0\nresetSeconds = 0\n";

/// Runs `divvy hit`. Returns its exit code, standard output and standard error.
fn hit(options: &[&str], operation: &[&str]) -> (i32, String, String) {
    hit_as(&mut divvy(), options, operation)
}

fn hit_as(command: &mut Command, options: &[&str], operation: &[&str]) -> (i32, String, String) {
    output(command.arg("hit").args(options).args(operation))
}

fn printed(out: &str) -> (i32, String, String) {
    (0, out.to_owned(), String::new())
}

#[test]
fn both_fronts_print_the_same() {
    let server = Server::in_memory(COMPAT_RULES);
    let (http, line) = (server.http.to_string(), server.line.to_string());
    assert_eq!(hit(&["--server", &http], &STATUS), printed("OK true 999 60\n"));
    assert_eq!(hit(&["--addr", &line], &STATUS), printed("OK true 998 60\n"));
    let peek = r#"{"operation":{"method":"GET","path":"/status"}}"#;
    let expected = server.http().post("/v1/peek", peek).body.replace("998", "997");
    assert_eq!(hit(&["--server", &format!("http://{http}"), "--json"], &STATUS), printed(&expected), "as over HTTP");
}

#[test]
fn flag_takes_precedence_over_a_variable_and_two_flags_conflict() {
    let server = Server::in_memory(COMPAT_RULES);
    let (http, line) = (server.http.to_string(), server.line.to_string());
    let nowhere = "127.0.0.1:1";
    let with = |variables: &[(&str, &str)], options: &[&str]| {
        hit_as(divvy().envs(variables.iter().copied()), options, &STATUS).0
    };
    assert_eq!(with(&[("DIVVY_SERVER", &http)], &[]), 0);
    assert_eq!(with(&[("DIVVY_ADDR", &line)], &[]), 0);
    assert_eq!(with(&[("DIVVY_ADDR", &line), ("DIVVY_SERVER", nowhere)], &[]), 0);
    assert_eq!(with(&[("DIVVY_ADDR", nowhere)], &["--server", &http]), 0);
    assert_eq!(with(&[("DIVVY_SERVER", nowhere)], &["--addr", &line]), 0);
    let (code, _, error) = hit(&["--server", &http, "--addr", &line], &STATUS);
    assert!(code == 2 && error.contains("--server") && error.contains("--addr"), "{error}");
}

#[test]
fn denial_sets_the_exit_code_if_requested() {
    let server = Server::serving(SCARCE, &[]);
    let http = server.http.to_string();
    let codes = [(); 2].map(|()| hit(&["--server", &http, "--exit-code"], &["a=1"]).0);
    assert_eq!(codes, [0, 3]);
    assert_eq!(hit(&["--server", &http], &["a=1"]).0, 0);
    assert_eq!(hit(&["--addr", &server.line.to_string(), "--exit-code"], &["a=1"]).0, 3);
    assert_eq!(hit(&["--server", "127.0.0.1:1", "--exit-code"], &["a=1"]).0, 1, "an error is not a denial");
}

#[test]
fn tls_with_a_server_without_tls_is_reported() {
    let server = Server::in_memory(COMPAT_RULES);
    let (code, _, error) = hit(&["--tls", "--server", &server.http.to_string()], &STATUS);
    assert_eq!(code, 1);
    // On a machine without certificate authorities, the handshake does not even start.
    assert!(error.contains("leave out --tls") || error.contains("--tls-ca"), "{error}");
    server.line().hit("a=b");
    drop(connect(server.resp));
}
