//! The log: its formats and levels, and text that must not appear in it.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::process::Stdio;

use serde_json::Value;

use crate::support::{COMPAT_RULES, Log, Place, RulesFile, SERVE, Server, Site, connect, divvy, http, refused};

const COMMENTED: &str = "[a=1]\ncreditLimit = 3\nresetSeconds = 60\nlabel = one\ncomment = 'for \"tests\"'\n\n\
                         [default]\ncreditLimit = 0\nresetSeconds = 0\n";

fn json_lines(log: &Log) -> Vec<Value> {
    let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    log.text().lines().map(parse).collect()
}

#[test]
fn every_line_of_a_json_log_is_an_object() {
    let rules = RulesFile::ini(COMMENTED);
    let options = ["--log-format", "json", "--log-level", "debug", "--max-connections", "1"];
    let mut command = divvy();
    let log = Log::of(&mut command);
    command.stdout(Stdio::piped());
    let server =
        Server::start_logged(&mut command, &log, &[&[rules.path(), "--store", "memory"], &options[..]].concat());
    let mut client = server.line();
    client.hit("a=1");
    let mut refused = String::new();
    connect(server.resp).read_to_string(&mut refused).unwrap();
    std::fs::write(rules.path(), "[a=1]\nlabel = \"\n").unwrap();
    server.signal("-HUP");
    log.await_count(1, "not loaded");
    // This also shows that nothing was printed on standard output.
    let [line, http] = [server.line, server.http].map(|address| address.to_string());
    assert!(server.terminate().success());

    let lines = json_lines(&log);
    let find = |message: &str| {
        let found = lines.iter().find(|line| line["message"].as_str().unwrap().contains(message));
        found.unwrap_or_else(|| panic!("no {message:?} in:\n{}", log.text()))
    };
    assert_eq!(find("line 1: [a=1] allows 3 in 60 s")["comment"], "for \"tests\"");
    let serving = find("serving");
    assert_eq!((&serving["version"], &serving["rules"]), (&env!("CARGO_PKG_VERSION").into(), &2.into()));
    assert_eq!(
        (&serving["line"], &serving["http"], &serving["config"]),
        (&line.into(), &http.into(), &rules.path().into())
    );
    assert!(serving["store"].as_str().unwrap().starts_with("memory"));
    let refused = find("too many connections");
    assert_eq!((&refused["level"], &refused["limit"]), (&"WARN".into(), &1.into()));
    assert!(refused["peer"].as_str().unwrap().starts_with("127.0.0.1:") && refused["timestamp"].is_string());
    assert_eq!(find("rules.ini:1:")["level"], "ERROR");
    find("stopped");
}

#[test]
fn startup_errors_are_logged_as_json() {
    let rules = RulesFile::ini("[a=1]\ncreditLimit = 1\n");
    let [memory, nowhere] = [(rules.path(), "--store=memory"), (COMPAT_RULES, "--data-dir=/proc/divvy")];
    for (rules, store) in [memory, nowhere] {
        let error = refused(&format!("{} --log-format=json {rules} {store}", SERVE.join(" ")));
        let lines = error.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        assert!(lines.into_iter().any(|line| line["level"] == "ERROR"), "{error}");
    }
}

#[test]
fn debug_divvy_shows_the_rules_with_their_comments_at_every_load() {
    let site = Site::start_as(divvy().env("DEBUG", "divvy"), Place::new(COMMENTED), &["--store", "memory"]);
    let comment = r#"comment="for \"tests\"""#;
    site.log.await_line(&["DEBUG", "line 1: [a=1] allows 3 in 60 s", "label=\"one\"", comment]);
    site.log.await_line(&["DEBUG", "line 7: [default] always denies"]);
    site.reload(&COMMENTED.replace("creditLimit = 3", "creditLimit = 4"));
    site.log.await_line(&["DEBUG", "line 1: [a=1] allows 4 in 60 s", comment]);
}

/// Bytes that would clear a terminal and forge a log line.
const HOSTILE: &[u8] = b"\x1b[2J\r2026-01-01T00:00:00Z ERROR forged\xff \x07";

/// Asserts that the log is printable ASCII, and that every line begins with a time.
fn assert_clean(log: &Log) {
    let text = log.text();
    assert!(text.bytes().all(|byte| byte == b'\n' || (b' '..=b'~').contains(&byte)), "{text:?}");
    assert!(text.lines().all(|line| line.starts_with("20") && !line.starts_with("2026-01-01T")), "{text}");
}

#[test]
fn raw_bytes_of_clients_do_not_reach_the_log() {
    let (server, log) = Server::logged(&[COMPAT_RULES, "--store", "memory", "--log-level", "trace"]);
    for address in [server.line, server.resp, server.http] {
        let mut stream = connect(address);
        stream.write_all(&[HOSTILE, b"\r\n\r\n"].concat()).unwrap();
        // The server may have ended the connection by now.
        let _ = stream.shutdown(Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    }
    log.await_line(&["a request got an error", "front=\"http\"", "the request line or a header is not valid"]);
    assert!(server.terminate().success());
    assert_clean(&log);
}

#[test]
fn errors_of_clients_are_traced_to_who_sent_them() {
    let (server, log) = Server::logged(&[COMPAT_RULES, "--store", "memory", "--requirepass", "sesame"]);
    let mut line = server.line();
    line.send(b"AUTH sesame\nHIT a=1 a\xff=2\nFLY\n");
    (0..3).for_each(|_| _ = line.read_line());
    let mut resp = server.resp();
    assert!(resp.command("DIVVY.HIT a=1").starts_with("-NOAUTH"));
    assert_eq!(resp.command("AUTH sesame"), "OK");
    assert!(resp.command("DIVVY.HIT a=1 COST many").starts_with("-ERR"));
    // A gateway without the password.
    assert_eq!(http::get(server.http, "/v1/check").status, 401);
    for parts in [
        ["front=\"line\"", "code=\"unknown-command\"", "user=\"default\"", "FLY"],
        ["front=\"resp\"", "code=\"unauthenticated\"", "peer=127.0.0.1:", "NOAUTH"],
        ["front=\"resp\"", "code=\"unknown\"", "user=\"default\"", "COST is"],
        ["front=\"http\"", "code=\"unauthenticated\"", "peer=127.0.0.1:", "the password is missing"],
    ] {
        log.await_line(&[&["INFO", "a request got an error"], &parts[..]].concat());
    }
    let errors = resp.command("INFO errors");
    assert!(errors.contains("last_resp_unknown:") && errors.contains(" default: "), "{errors}");
    assert!(errors.contains("last_http_unauthenticated:") && errors.contains("the password is missing"), "{errors}");
    // A flood is counted, and takes a few lines.
    let before = log.count("a request got an error");
    resp.send("DIVVY.HIT a=1 COST many\r\n".repeat(5_000).as_bytes());
    (0..5_000).for_each(|_| _ = resp.read_reply());
    assert!(log.count("a request got an error") < before + 100);
}
