//! The audit log: reloads, audit logs that cannot be written or are required, and clients and servers that leave early. The lines
//! about requests are in tests/wire/audit.txt.

use std::fs;
use std::io::Write;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::audit::{Audited, PASSWORD, RULES, hit, lines, read, send};
use crate::support::{Certificates, Place, RulesFile, Server, Site, connect, encode, http, number, resp, run, until};

/// Returns the front, the status, the kind of change, and the states of a line.
fn essence(line: &Value) -> Value {
    json!([line["front"], line["status"], line["what"], line["request"], line["before"], line["after"]])
}

#[test]
fn changed_and_bad_files_are_recorded_with_their_front() {
    let place = Place::new(RULES);
    let server = place.serve(&["--audit-log", "DIR/log", "--store", "memory"]);
    let replace = |text: &str| {
        place.write("other.ini", text);
        fs::rename(place.path("other.ini"), place.path("rules.ini")).unwrap();
    };
    replace(&RULES.replace("creditLimit=10", "creditLimit=12"));
    lines(place.path("log"), 1);
    replace("[user=*]\ncreditLimit = many\n");
    let lines = lines(place.path("log"), 2);
    assert_eq!((&lines[0]["front"], &lines[0]["status"]), (&json!("file"), &json!("done")));
    assert_eq!(
        (&lines[0]["user"], &lines[0]["address"], &lines[0]["what"]),
        (&json!("-"), &json!("-"), &json!("rules.reload"))
    );
    let [before, after] = ["before", "after"].map(|state| lines[0][state]["hash"].as_str().unwrap());
    assert_ne!(before, after);
    assert_eq!(number(&server, &format!("divvy_config_info{{hash=\"{after}\"}}")), 1);
    assert_eq!((&lines[1]["front"], &lines[1]["status"]), (&json!("file"), &json!("refused")));
    assert!(lines[1]["error"].as_str().unwrap().contains("rules.ini:"), "{}", lines[1]);
    assert_eq!((&lines[1]["before"], &lines[1]["after"]), (&Value::Null, &Value::Null));
    drop(server);
}

#[test]
fn new_certificate_is_recorded() {
    let certificates = Certificates::new();
    let (certificate, key) = (certificates.path("server.pem"), certificates.path("server.key"));
    let files = ["--tls-cert", &certificate, "--tls-key", &key, "--tls-fronts", "resp"];
    let audited = Audited::serving(&files);
    audited.server.signal("-HUP");
    // The rules are loaded again, too.
    let lines = audited.lines(2);
    let line = lines.iter().find(|line| line["what"] == "tls.reload").unwrap();
    assert_eq!(essence(line), json!(["signal", "done", "tls.reload", {"file": certificate}, null, null]));
}

#[test]
fn refused_attempt_of_a_client_that_does_not_wait_has_a_line() {
    let audited = Audited::serving(&["--requirepass", PASSWORD]);
    let mut stream = connect(audited.server.http);
    let wrong = [("authorization", "Bearer wrong")];
    stream.write_all(&http::encode("DELETE", "/v1/counters?rule=by-user", &wrong, b"")).unwrap();
    // The answer takes 100 ms more.
    until(|| {
        http::get(audited.server.http, "/metrics").body.contains("divvy_wrong_passwords_total{front=\"http\"} 1\n")
    });
    drop(stream);
    let lines = audited.lines(1);
    assert_eq!(essence(&lines[0]), json!(["http", "refused", "counters.forget", {"rule": "by-user"}, null, null]));
    assert!(lines[0]["user"] == "-" && lines[0]["address"].as_str().unwrap().starts_with("127.0.0.1:"), "{}", lines[0]);
    assert!(lines[0]["time"].as_str().unwrap().starts_with("20") && lines[0]["time"].as_str().unwrap().ends_with('Z'));
    // One with a long body is refused before its body, and once.
    let refused = http::request(audited.server.http, http::encode("POST", "/v1/hit", &wrong, &[b' '; 5_000]));
    assert_eq!(refused.status, 401);
    let metrics = http::get(audited.server.http, "/metrics").body;
    assert!(metrics.contains("divvy_wrong_passwords_total{front=\"http\"} 2\n"), "{metrics}");
    // A request that never becomes complete is no attempt, as over RESP.
    let mut stream = connect(audited.server.http);
    let bearer = format!("Bearer {PASSWORD}");
    let head = [("authorization", &*bearer), ("content-length", "100"), ("content-type", "application/json")];
    let request = http::encode("PUT", "/v1/limits?rule=by-user&actor=ann", &head, b"");
    let request = String::from_utf8(request).unwrap().replace("content-length: 0\r\n", "");
    stream.write_all(request.as_bytes()).unwrap();
    stream.write_all(b"{").unwrap();
    drop(stream);
    let closing = [("authorization", &*bearer), ("connection", "close")];
    let forgotten =
        http::request(audited.server.http, http::encode("DELETE", "/v1/counters?rule=by-user", &closing, b""));
    assert_eq!(forgotten.status, 200);
    let lines = audited.lines(2);
    assert_eq!((&lines[1]["status"], &lines[1]["what"]), (&json!("done"), &json!("counters.forget")));
}

#[test]
fn without_a_file_lines_are_in_the_log_at_any_level() {
    let rules = RulesFile::ini(RULES);
    let (server, log) = Server::logged(&[rules.path(), "--store", "memory", "--log-level", "error"]);
    assert_eq!(resp(&server, "DIVVY.LIMIT SET by-user ann 20"), "OK");
    log.await_line(&["audit", "limit.set", r#""user":"default""#, r#"{"rule":"by-user","actor":"ann","credits":20}"#]);
}

/// Makes a pipe without a reader.
fn fifo(path: &str) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn failing_audit_log_is_counted_and_stops_nothing() {
    for path in ["/dev/full", "DIR/fifo", "DIR/missing/log"] {
        let place = Place::new(RULES);
        fifo(&place.path("fifo"));
        let Site { server, log, place: _place } = Site::start(place, &["--store", "memory", "--audit-log", path]);
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
    let audited = Audited::serving(&["--audit", "required"]);
    let server = &audited.server;
    hit(server, "ann");
    let mut resp = audited.server.resp();
    assert_eq!(resp.command("DIVVY.LIMIT SET by-user ann 20"), "OK");
    audited.lines(2);
    fs::remove_dir_all(audited.path("audit")).unwrap();

    let refused = "-ERR nothing was changed: the audit log";
    for command in ["LIMIT SET by-user ann 5", "LIMIT DEL by-user ann", "RESET user=ann", "FORGET by-user", "BACKUP x"]
    {
        let reply = resp.command(&format!("DIVVY.{command}"));
        assert!(reply.starts_with(refused), "{command}: {reply}");
    }
    for (method, path, body) in [
        ("PUT", "/v1/limits?rule=by-user&actor=ann", r#"{"credits":5}"#),
        ("DELETE", "/v1/limits?rule=by-user&actor=ann", ""),
        ("DELETE", "/v1/counters?rule=by-user", ""),
    ] {
        assert_eq!(send(server, method, path, body), 503, "{method} {path}");
    }
    audited.place.write("rules.ini", &RULES.replace("creditLimit=10", "creditLimit=12"));
    server.signal("-HUP");
    until(|| number(server, "divvy_config_last_load_successful") == 0);
    // An attempt and an outcome for each.
    until(|| number(server, "divvy_audit_lines_lost_total") == 2 * 9);
    assert_eq!(number(server, "divvy_audit_log_failing"), 1);

    assert_eq!(resp.command("DIVVY.LIMIT GET by-user ann"), "[20 -1]");
    assert!(resp.command("DIVVY.HIT user=ann").starts_with("[1 18 "), "hits go on, and the counter is still there");
    assert!(!fs::exists(audited.path("backups/x")).unwrap());
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
    let audited = Audited::serving(&["--audit", "required"]);
    let server = &audited.server;
    let mut resp = audited.server.resp();
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
    let (code, _, error) = run("serve --audit required");
    assert!(code == 2 && error.contains("--audit-log"), "{error}");
}

#[test]
fn last_lines_are_written_before_the_end() {
    let audited = Audited::serving(&[]);
    let mut resp = audited.server.resp();
    let set = |credits: usize| {
        let credits = credits.to_string();
        encode(&[b"DIVVY.LIMIT", b"SET", b"by-user", b"ann", credits.as_bytes()])
    };
    resp.send(&(1..=200).flat_map(set).collect::<Vec<_>>());
    (0..200).for_each(|_| assert_eq!(resp.read_reply(), "OK"));
    drop(resp);
    let Audited(Site { place, server, .. }) = audited;
    assert!(server.terminate().success());
    assert_eq!(read(place.path("audit/log")).len(), 200);
}
