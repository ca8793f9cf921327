//! Commands for a running server: confirmations and warnings.

use std::io::{Read, Write};
use std::process::{Child, Stdio};

use crate::support::{COMPAT_RULES, RulesFile, Server, divvy_with, done, done_at, on_a_terminal, output, run, run_at};

const BY_USER: &str = "[user=*]\ncreditLimit = 9\nresetSeconds = 3600\nactorField = user\nlabel = by-user\n\n\
                       [default]\ncreditLimit = 0\nresetSeconds = 0\n";

fn start_on_a_terminal(line: &str) -> Child {
    on_a_terminal(line).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

/// Reads until `text` has arrived.
fn await_text(from: &mut impl Read, text: &str) -> String {
    let mut read = String::new();
    let mut byte = [0];
    while !read.contains(text) {
        assert_ne!(from.read(&mut byte).unwrap(), 0, "the end came before {text:?}: {read:?}");
        read.push(char::from(byte[0]));
    }
    read
}

#[test]
fn forgetting_a_whole_rule_needs_confirmation() {
    let server = Server::serving(BY_USER, &[]);
    let mut client = server.resp();
    let mut begin = || {
        for user in ["ann", "bob", "cy"] {
            client.command(&format!("DIVVY.HIT user={user}"));
        }
    };
    let address = server.http.to_string();
    let delete = format!("forget --rule by-user --server {address}");
    begin();
    let (code, out, error) = run(&delete);
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(error.contains("rule by-user") && error.contains("--yes"), "{error}");

    let asked = |answer: &str| {
        let mut terminal = start_on_a_terminal(&delete);
        let mut out = terminal.stdout.take().unwrap();
        let question = await_text(&mut out, "[y/N]");
        assert!(question.contains("rule by-user") && question.contains(&address), "{question}");
        terminal.stdin.as_mut().unwrap().write_all(answer.as_bytes()).unwrap();
        let mut rest = String::new();
        out.read_to_string(&mut rest).unwrap();
        (terminal.wait().unwrap().code(), rest)
    };
    for answer in ["\n", "n\n", "yep\n"] {
        let (code, reported) = asked(answer);
        assert!(code == Some(1) && reported.contains("nothing was forgotten"), "{reported}");
    }
    let (code, reported) = asked("y\n");
    assert!(code == Some(0) && reported.contains("3 forgotten"), "{reported}");

    begin();
    assert_eq!(done(&format!("{delete} --actor ann")), "1 forgotten\n");
    assert_eq!(done(&format!("{delete} --yes")), "2 forgotten\n");
}

#[test]
fn unknown_section_of_stats_is_an_error() {
    let server = Server::in_memory(COMPAT_RULES);
    for line in ["stats foo", "stats foo --json"] {
        let (code, out, error) = run_at(&server, line);
        assert!(code == 1 && out.is_empty() && error.contains("there is no such section"), "{error}");
    }
    for (line, has_metrics) in [("stats server", false), ("stats", true)] {
        let out = done_at(&server, line);
        assert_eq!((out.contains("# server\nversion:"), out.contains("# metrics")), (true, has_metrics), "{out}");
    }
}

/// Runs `divvy` on its own terminal. Returns its whole output.
fn shown(line: &str) -> String {
    let (code, out, _) = output(&mut on_a_terminal(line));
    assert_eq!(code, 0, "{line}: {out}");
    out.replace("\r\n", "\n")
}

#[test]
fn denial_on_a_terminal_names_the_rule() {
    let with_stack = "[team=*]\ncreditLimit = 1\nresetSeconds = 3600\nmatchPolicy = and\n\n";
    let server = Server::serving(&format!("{with_stack}{BY_USER}"), &[]);
    let (http, line) = (server.http.to_string(), server.line.to_string());
    let over_http = |verb: &str, args: &str| shown(&format!("{verb} --server {http} {args}"));

    assert_eq!(over_http("hit", "user=ann"), "OK true 8 3600\n");
    let by_default = "denied by default: no other rule answers this operation; to see why, run: divvy explain \
                      api=serch 'q=a b'\n";
    assert_eq!(over_http("hit", "api=serch 'q=a b'"), format!("OK false 0 0\n{by_default}"));
    let by_user = "denied by by-user\n";
    assert!(over_http("reserve", "--amount 10 --ttl 30 user=ann").ends_with(by_user));
    assert!(over_http("hit", "--cost 2 team=a user=ann").ends_with("denied by rule-1\n"));
    done_at(&server, "block set by-user eve --reason 'stolen card'");
    let by_block = "denied by by-user: this actor is blocked: stolen card\n";
    assert!(over_http("hit", "team=b user=eve").ends_with(by_block));

    let over_line = shown(&format!("hit --addr {line} api=serch"));
    assert_eq!(over_line, "OK false 0 0\ndenied; to see by which rule, use --server instead of --addr\n");
    assert_eq!(done_at(&server, "hit api=serch"), "OK false 0 0\n", "no terminal reads standard error");
}

#[test]
fn closed_output_is_an_error_without_a_panic() {
    let rules = RulesFile::ini(BY_USER);
    for verb in ["explain user=ann --file", "check"] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let (code, _, error) = output(divvy_with(&format!("{verb} {}", rules.path())).stdout(writer));
        assert!(code == 1 && error.contains("Broken pipe") && !error.contains("panicked"), "{verb}: {error}");
    }
}

#[test]
fn explain_and_rules_ask_the_server() {
    let server = Server::serving(BY_USER, &[]);
    let ask = |line: &str| done_at(&server, line);
    ask("block set by-user eve --reason stolen");
    assert!(ask("explain user=eve").ends_with("; this actor is blocked: stolen\n"));
    ask("hit user=eve");
    ask("hit user=ann");
    let table = ask("rules");
    let lines: Vec<_> = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let rows = ["1 1 by-user stop user=*", "0 0 default stop default"];
    assert_eq!(lines, [&["allowed denied name matchPolicy operation"], &rows[..]].concat());
    let first: serde_json::Value = serde_json::from_str(ask("rules --json").lines().next().unwrap()).unwrap();
    assert_eq!((&first["name"], &first["denied"]), (&"by-user".into(), &1.into()));
}
