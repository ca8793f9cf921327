//! An audit log that cannot be written, that is required, or whose clients and server leave early.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::audit::{Audited, RULES, hit, read, send};
use crate::support::{RulesFile, Server, connect, divvy, encode, number, until};

/// Makes a pipe without a reader.
fn fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn failing_audit_log_is_counted_and_stops_nothing() {
    let rules = RulesFile::ini(RULES);
    let dir = tempfile::tempdir().unwrap();
    fifo(&dir.path().join("fifo"));
    let nowhere = dir.path().join("missing/log");
    for path in [Path::new("/dev/full"), &dir.path().join("fifo"), &nowhere] {
        let args = [rules.path(), "--store", "memory", "--audit-log", path.to_str().unwrap()];
        let (server, log) = Server::logged(&args);
        let mut resp = server.resp();
        for credits in 1..=20 {
            assert_eq!(resp.command(&format!("DIVVY.LIMIT SET by-user ann {credits}")), "OK");
        }
        hit(&server, "ann");
        until(|| number(&server, "divvy_audit_lines_lost_total") == 20);
        assert_eq!(number(&server, "divvy_audit_log_failing"), 1);
        log.await_count(20, "this line is not in the audit log");
        assert_eq!(log.count("cannot write the audit log"), 1, "{}", log.text());
        assert!(server.terminate().success());
    }
}

#[test]
fn required_audit_log_that_fails_refuses_changes_and_leaves_nothing_behind() {
    let audited = Audited::serving(&["--audit", "required", "--reload-interval", "0"]);
    let server = &audited.server;
    hit(server, "ann");
    let mut resp = audited.resp();
    assert_eq!(resp.command("DIVVY.LIMIT SET by-user ann 20"), "OK");
    audited.lines(2);
    fs::remove_dir_all(audited.path("audit")).unwrap();

    let refused = "-ERR nothing was changed: the audit log";
    for command in ["LIMIT SET by-user ann 5", "LIMIT DEL by-user ann", "RESET user=ann", "FORGET by-user", "BACKUP x"]
    {
        let reply = resp.command(&format!("DIVVY.{command}"));
        assert!(reply.starts_with(refused), "{command}: {reply}");
    }
    for (method, path) in [
        ("PUT", "/v1/limits?rule=by-user&actor=ann"),
        ("DELETE", "/v1/limits?rule=by-user&actor=ann"),
        ("DELETE", "/v1/counters?rule=by-user"),
    ] {
        assert_eq!(send(server, method, path, r#"{"credits":5}"#), 503, "{method} {path}");
    }
    fs::write(audited.path("rules.ini"), RULES.replace("creditLimit = 10", "creditLimit = 12")).unwrap();
    server.signal("-HUP");
    until(|| number(server, "divvy_config_last_load_successful") == 0);
    // An attempt and an outcome for each.
    until(|| number(server, "divvy_audit_lines_lost_total") == 2 * 9);
    assert_eq!(number(server, "divvy_audit_log_failing"), 1);

    assert_eq!(resp.command("DIVVY.LIMIT GET by-user ann"), "[20 -1]");
    assert!(resp.command("DIVVY.HIT user=ann").starts_with("[1 18 "), "hits go on, and the counter is still there");
    assert!(!audited.path("backups/x").exists());
    assert!(resp.command("DIVVY.HIT user=bob").starts_with("[1 9 "), "the rules are the old ones");

    fs::create_dir(audited.path("audit")).unwrap();
    assert_eq!(resp.command("DIVVY.LIMIT SET by-user ann 5"), "OK");
    server.signal("-HUP");
    let lines = audited.lines(4);
    let what: Vec<_> = lines.iter().map(|line| json!([line["what"], line["status"]])).collect();
    assert_eq!(
        Value::Array(what),
        json!([
            ["limit.set", "attempted"],
            ["limit.set", "done"],
            ["rules.reload", "attempted"],
            ["rules.reload", "done"]
        ])
    );
    assert_eq!(number(server, "divvy_audit_log_failing"), 0);
}

/// The log is a pipe without a reader, so opening it hangs, as a disk may.
#[test]
fn changes_that_wait_for_the_audit_log_hold_up_nothing_else() {
    let audited = Audited::serving(&["--audit", "required", "--reload-interval", "0"]);
    let server = &audited.server;
    let mut resp = audited.resp();
    assert_eq!(resp.command("DIVVY.LIMIT SET by-user ann 20"), "OK");
    audited.lines(2);
    let path = audited.path("audit/log");
    fs::remove_file(&path).unwrap();
    fifo(&path);
    let waiting: Vec<_> = (0..16)
        .map(|number| {
            let mut stream = connect(server.resp);
            let actor = format!("u{number}");
            stream.write_all(&encode(&[b"DIVVY.LIMIT", b"SET", b"by-user", actor.as_bytes(), b"5"])).unwrap();
            stream
        })
        .collect();
    until(|| number(server, "divvy_audit_log_failing") == 1);
    assert!(resp.command("INFO server").contains("divvy_version"));
    assert_eq!(resp.command("DIVVY.LIMIT LIST RULE by-user"), "[0 [[by-user ann 20 -1 0]]]");
    assert_eq!(send(server, "GET", "/v1/counters?rule=by-user", ""), 200);
    assert!(resp.command("DIVVY.HIT user=ann").starts_with("[1 19 "));
    drop(waiting);
}

#[test]
fn required_needs_a_file() {
    let output = divvy().args(["serve", "--audit", "required"]).output().unwrap();
    let reported = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{reported}");
    assert!(reported.contains("--audit-log"), "{reported}");
}

#[test]
fn last_lines_are_written_before_the_end() {
    let audited = Audited::serving(&["--reload-interval", "0"]);
    let mut resp = audited.resp();
    let set = |credits: usize| {
        let credits = credits.to_string();
        encode(&[b"DIVVY.LIMIT", b"SET", b"by-user", b"ann", credits.as_bytes()])
    };
    resp.send(&(1..=200).flat_map(set).collect::<Vec<_>>());
    (0..200).for_each(|_| assert_eq!(resp.read_reply(), "OK"));
    drop(resp);
    let Audited { dir, server } = audited;
    assert!(server.terminate().success());
    assert_eq!(read(&dir.path().join("audit/log")).len(), 200);
}

#[test]
fn client_that_leaves_ends_neither_its_change_nor_the_line() {
    let audited = Audited::serving(&["--audit", "required", "--reload-interval", "0"]);
    for credits in 1..=50 {
        let mut stream = connect(audited.server.resp);
        let credits = credits.to_string();
        stream.write_all(&encode(&[b"DIVVY.LIMIT", b"SET", b"by-user", b"ann", credits.as_bytes()])).unwrap();
    }
    let with_status = |status: &str| {
        read(&audited.path("audit/log")).into_iter().filter(|line| line["status"] == status).collect::<Vec<_>>()
    };
    let mut other = audited.resp();
    assert_eq!(other.command("DIVVY.LIMIT SET by-user ann 1000"), "OK");
    until(|| {
        let (attempted, done) = (with_status("attempted"), with_status("done"));
        // The states are a chain, so no change is without a line, and no line without its change.
        for pair in done.windows(2) {
            assert_eq!(pair[0]["after"]["credits"], pair[1]["before"]["credits"], "{done:#?}");
        }
        let last = &done.last().unwrap()["after"]["credits"];
        attempted.len() == done.len() && other.command("DIVVY.LIMIT GET by-user ann") == format!("[{last} -1]")
    });
}
