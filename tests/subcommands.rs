//! Commands for a running server: their server, confirmations, units, warnings, and the progress of long tasks. Their output is in
//! tests/wire/.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Stdio};

use crate::support::{COMPAT_RULES, Killed, RulesFile, Server, divvy_with, done, done_at, on_a_terminal, output, run};

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

/// Starts `divvy top --watch 1`, on a terminal of its own or with a pipe, and reads two tables.
#[test]
fn watched_table_is_printed_again_and_replaced_on_a_terminal() {
    const CLEAR: &str = "\u{1b}[H\u{1b}[2J";
    let server = Server::serving(BY_USER, &[]);
    server.line().hit("user=ann");
    let line = "top --rule by-user --watch 1";
    for (mut command, clear) in [(on_a_terminal(line), CLEAR), (divvy_with(line), "")] {
        command.env("DIVVY_SERVER", server.http.to_string()).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut watching = Killed(command.spawn().unwrap());
        let lines = BufReader::new(watching.0.stdout.take().unwrap()).lines().map(Result::unwrap);
        let titles: Vec<_> = lines.filter(|line| line.contains("rule=by-user")).take(2).collect();
        let title = format!("{clear}rule=by-user order=denied last=60 canary=false sampled=false hasRoom=true total=0");
        assert!(titles.iter().all(|shown| shown.trim_end() == title), "{titles:?}");
    }
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
    for (server, code) in [(format!("--addr {line}"), 3), ("--server 127.0.0.1:1".to_owned(), 1)] {
        assert_eq!(run(&format!("hit --exit-code {server} a=b")).0, code, "{server}");
    }
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
