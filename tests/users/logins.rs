//! Logins of popular clients, and changes of the access file while it is in force. Logins on every front are in
//! tests/wire/users.txt.

use std::process::Command;

use divvy::access::{Category, SlowHash};
use serde_json::json;

use super::scopes::RULES;
use super::{Guarded, line, only, password};
use crate::clients::{drive_by_node, drive_by_python, run};
use crate::support::audit::lines;

fn slow(name: &str, words: &str) -> String {
    format!("user {name} on {} {words}\n", SlowHash::of(&password(name)).unwrap())
}

#[test]
fn access_file_cannot_define_the_user_of_requirepass() {
    let guarded = Guarded::start(&line("app", "+@hit ~*"), &["--requirepass", "open sesame", "--open", "none"]);
    guarded.reload(&line("default", "+@hit ~*"), NOT_LOADED);
    // The audit log is in the log, and names the first problem, too.
    assert_eq!(guarded.log.count("--requirepass defines the user default already"), 2);
    let mut client = guarded.server.resp();
    assert_eq!(client.command_of(&[b"AUTH", b"open sesame"]), "OK");
    assert!(client.command("CLIENT LIST").contains(" user=default "));
}

#[test]
fn popular_clients_log_in_as_a_user() {
    let guarded = Guarded::start(&(line("app", "+@hit ~*") + &slow("all", "+@all ~*")), &[]);
    let login = [&password("all"), "all"];
    drive_by_node("ioredis", &guarded.server, &login);
    drive_by_node("node-redis", &guarded.server, &login);
    drive_by_python("redis", &guarded.server, &login);
    let port = guarded.server.resp.port().to_string();
    let mut command = Command::new("redis-cli");
    command.args(["-p", &port, "--no-auth-warning", "--user", "app", "--pass", &password("app"), "-3"]);
    command.args(["DIVVY.PEEK", "method=GET", "path=/status"]);
    assert_eq!(run(command), "1\n1000\n0\n");
}

const IN_FORCE: &str = "the new users are in force";
const NOT_LOADED: &str = "not loaded; the previous users stay in force";
const HIT: &str = "DIVVY.HIT method=GET path=/status";

#[test]
fn file_is_loaded_as_a_whole_or_not_at_all() {
    let guarded = Guarded::start(&line("app", "+@hit ~*"), &[]);
    let mut app = guarded.resp("app");
    guarded.reload(&(line("ann", "+@hit ~*") + "user app on +@nonsense\n"), NOT_LOADED);
    assert_eq!(app.command(HIT), "[1 999 60]");
    let login = |name: &str| guarded.server.resp().command_of(&[b"AUTH", name.as_bytes(), password(name).as_bytes()]);
    assert!(login("ann").starts_with("-WRONGPASS"), "no part of the file is in force");
    let problem = format!("{}:2: there is no category nonsense", guarded.path("users.acl"));
    // The audit log is in the log, and names the first problem, too.
    assert_eq!(guarded.log.count(&problem), 2);
    let metrics = crate::support::http::get(guarded.server.http, "/metrics").body;
    assert!(metrics.contains("\ndivvy_access_reloads_failed_total 1\n"));

    guarded.reload(&line("app", "+@hit ~*"), "users.acl: reloaded, unchanged");
    guarded.reload(&(line("ann", "+@hit ~*") + &line("app", "+@read ~*")), IN_FORCE);
    assert_eq!(login("ann"), "OK");
    assert!(app.command(HIT).starts_with("-NOPERM"));
    assert!(app.command("DIVVY.RULES").starts_with('['));
}

#[test]
fn transaction_is_checked_again_when_it_is_executed() {
    let guarded = Guarded::start(&line("app", "+@hit +@read ~*"), &[]);
    let mut app = guarded.resp("app");
    assert_eq!(app.command("MULTI"), "OK");
    for command in [HIT, "DIVVY.LIMIT GET default x", "PING", HIT] {
        assert_eq!(app.command(command), "QUEUED");
    }
    guarded.reload(&line("app", "+@hit ~*"), IN_FORCE);
    let reply = app.command("EXEC");
    let refused = "-NOPERM User app has no permissions to run the 'divvy.limit|get' command";
    assert_eq!(reply, format!("[[1 999 60] {refused} PONG [1 998 60]]"));

    app.command("MULTI");
    app.command(HIT);
    guarded.reload(&only(Category::Hit), IN_FORCE);
    assert_eq!(app.command("EXEC"), "-NOAUTH Authentication required.");
}

#[test]
fn reload_of_the_access_file_names_the_users_that_changed() {
    let file =
        [("op", "+@all ~*"), ("a", "+@all ~label:a-*"), ("app", "+@hit ~*")].map(|(name, words)| line(name, words));
    let guarded = Guarded::with_rules(RULES, &file.concat(), &["--audit-log", "DIR/audit.log"]);
    let changed = line("op", "+@all ~*") + &line("a", "+@hit ~label:a-*") + &line("new", "+@hit ~*");
    guarded.reload(&changed, IN_FORCE);
    guarded.reload(&(changed + "user x on +@nonsense\n"), NOT_LOADED);
    let lines = lines(guarded.path("audit.log"), 4);
    let access: Vec<_> = lines.iter().filter(|line| line["what"] == "access.reload").collect();
    assert_eq!(access.len(), 2, "{lines:#?}");
    assert_eq!(
        json!([access[0]["user"], access[0]["front"], access[0]["status"], access[0].get("error")]),
        json!(["-", "signal", "done", null])
    );
    assert_eq!(access[0]["before"], json!({"users": 3}));
    assert_eq!(access[0]["after"], json!({"users": 3, "changed": ["a", "app", "new"]}));
    assert!(access[0]["request"]["file"].as_str().unwrap().ends_with("users.acl"));
    assert_eq!(access[1]["status"], "refused");
    assert!(access[1]["error"].as_str().unwrap().contains("there is no category nonsense"), "{}", access[1]);
}
