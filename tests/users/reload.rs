//! Changes of the access file while it is in force.

use std::io::{Read, Write};

use divvy::access::Category;

use super::{Guarded, basic, line, only, password};
use crate::support::http::{HttpClient, encode};
use crate::support::{RespClient, RulesFile, connect, divvy};

const IN_FORCE: &str = "the new users are in force";
const NOT_LOADED: &str = "not loaded; the previous users stay in force";
const HIT: &str = "DIVVY.HIT method=GET path=/status";

#[test]
fn file_is_loaded_as_a_whole_or_not_at_all() {
    let guarded = Guarded::start(&line("app", "+@hit ~*"), &[]);
    let mut app = guarded.resp("app");
    guarded.reload(&(line("ann", "+@hit ~*") + "user app on +@nonsense\n"), NOT_LOADED, 1);
    assert_eq!(app.command(HIT), "[1 999 60]");
    let login = |name: &str| {
        RespClient::connect(guarded.server.resp).command_of(&[b"AUTH", name.as_bytes(), password(name).as_bytes()])
    };
    assert!(login("ann").starts_with("-WRONGPASS"), "no part of the file is in force");
    let problem = format!("{}:2: there is no category nonsense", guarded.path().display());
    // The audit log is in the log, and names the first problem, too.
    assert_eq!(guarded.log.count(&problem), 2);
    let metrics = crate::support::http::get(guarded.server.http, "/metrics").body;
    assert!(metrics.contains("\ndivvy_access_reloads_failed_total 1\n"));

    guarded.reload(&line("app", "+@hit ~*"), "users.acl: reloaded, unchanged", 1);
    guarded.reload(&(line("ann", "+@hit ~*") + &line("app", "+@read ~*")), IN_FORCE, 1);
    assert_eq!(login("ann"), "OK");
    assert!(app.command(HIT).starts_with("-NOPERM"));
    assert!(app.command("DIVVY.RULES").starts_with('['));
}

#[test]
fn file_is_loaded_when_it_changes() {
    let guarded = Guarded::start(&line("app", "+@hit ~*"), &[]);
    std::fs::write(guarded.path(), line("app", "+@read ~*")).unwrap();
    guarded.log.await_count(1, IN_FORCE);
    assert!(guarded.resp("app").command(HIT).starts_with("-NOPERM"));
}

#[test]
fn open_connections_lose_their_rights_at_once() {
    let users = |app: &str, default: &str| line("app", app) + &line("default", default);
    let guarded = Guarded::start(&users("+@hit ~*", "+@hit ~*"), &[]);
    let mut resp = guarded.resp("app");
    let mut line = guarded.line();
    let mut http = HttpClient::connect(guarded.server.http);
    let authorization = basic("app");
    let hit = encode("POST", "/v1/hit", &[("authorization", &authorization)], b"");
    let status = |http: &mut HttpClient| {
        http.send(&hit);
        http.read_response().status
    };
    let mut states = |resp_expected: &str, line_expected: &str, http_expected: u16| {
        let reply = resp.command(HIT);
        assert!(reply.starts_with(resp_expected), "{reply}");
        line.send(b"HIT method=GET path=/status\n");
        let reply = line.read_line();
        assert!(reply.starts_with(line_expected), "{reply}");
        assert_eq!(status(&mut http), http_expected);
    };
    states("[1", "OK true", 415);
    guarded.reload(&users("+@read ~*", "+@read ~*"), IN_FORCE, 1);
    states("-NOPERM", "ERR unknown \"This user has no permission", 403);
    guarded.reload(&users("+@hit ~*", "+@hit ~*"), IN_FORCE, 2);
    states("[1", "OK true", 415);
    // The passwords change.
    let other = users("+@hit ~*", "+@hit ~*");
    let changed = other.lines().map(|line| {
        let (before, hash) = line.split_once('#').unwrap();
        format!("{before}#{}{}\n", if hash.starts_with('0') { "1" } else { "0" }, &hash[1..])
    });
    guarded.reload(&changed.collect::<String>(), IN_FORCE, 3);
    states("-NOAUTH", "ERR unauthenticated", 401);
}

#[test]
fn transaction_is_checked_again_when_it_is_executed() {
    let guarded = Guarded::start(&line("app", "+@hit +@read ~*"), &[]);
    let mut app = guarded.resp("app");
    assert_eq!(app.command("MULTI"), "OK");
    for command in [HIT, "DIVVY.LIMIT GET default x", "PING", HIT] {
        assert_eq!(app.command(command), "QUEUED");
    }
    guarded.reload(&line("app", "+@hit ~*"), IN_FORCE, 1);
    let reply = app.command("EXEC");
    let refused = "-NOPERM User app has no permissions to run the 'divvy.limit|get' command";
    assert_eq!(reply, format!("[[1 999 60] {refused} PONG [1 998 60]]"));

    app.command("MULTI");
    app.command(HIT);
    guarded.reload(&only(Category::Hit), IN_FORCE, 2);
    assert_eq!(app.command("EXEC"), "-NOAUTH Authentication required.");
}

#[test]
fn server_does_not_start_with_a_mistake_in_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("users.acl");
    for (text, what) in [(Some("user app\n"), "neither on nor off"), (None, "cannot read the file")] {
        if let Some(text) = text {
            std::fs::write(&path, text).unwrap();
        } else {
            std::fs::remove_file(&path).unwrap();
        }
        let output = divvy().args(["serve", "--store", "memory", "--access-file"]).arg(&path).output().unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && message.contains(what), "{message}");
    }
}

/// The rights of a request over HTTP were those at its head, however late its body came.
#[test]
fn rights_are_those_when_the_body_has_arrived() {
    let rules = RulesFile::ini(
        "[user=*]\ncreditLimit = 10\nper = 1m\nactorField = user\nlabel = user\n[default]\ncreditLimit = 0\n",
    );
    let users = line("app", "+@hit ~*") + &line("ops", "+@all ~*");
    let guarded = Guarded::with_rules(rules.path(), &users, &[]);
    let requests = [
        ("app", "POST", "/v1/charge", r#"{"operation": {"user": "ann"}, "cost": 5}"#),
        ("ops", "PUT", "/v1/limits?rule=user&actor=ann", r#"{"credits": 7}"#),
    ];
    let waiting = requests.map(|(user, method, path, body)| {
        let authorization = basic(user);
        let json = ("content-type", "application/json");
        let headers = [("authorization", &*authorization), json, ("expect", "100-continue"), ("connection", "close")];
        let request = encode(method, path, &headers, body.as_bytes());
        let (head, body) = request.split_at(request.len() - body.len());
        let mut stream = connect(guarded.server.http);
        stream.write_all(head).unwrap();
        // The server asks for the body once it has admitted the request.
        let mut reply = [0; 25];
        stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply.as_slice(), b"HTTP/1.1 100 Continue\r\n\r\n");
        (stream, body.to_vec())
    });
    guarded.reload(&(line("app", "+@read ~*") + &line("other", "+@all ~*")), IN_FORCE, 1);
    for (mut stream, body) in waiting {
        stream.write_all(&body).unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        assert!(response.starts_with("HTTP/1.1 403 "), "{response}");
    }
    let mut other = guarded.resp("other");
    assert_eq!(other.command("DIVVY.PEEK user=ann"), "[1 10 0]");
    assert_eq!(other.command("DIVVY.LIMIT LIST"), "[0 []]");
}
