//! Lines of the audit log about users: their names, requests that were refused by category or by scope, and reloads.

use serde_json::{Value, json};

use super::scopes::{REFUSED, RULES};
use super::{Guarded, line};
use crate::support::audit::lines;

const USERS: [(&str, &str); 3] = [("op", "+@all ~*"), ("a", "+@all ~label:a-*"), ("app", "+@hit ~*")];

fn file() -> String {
    USERS.map(|(name, words)| line(name, words)).concat()
}

/// Starts a server with an audit log, and returns it with the log's lines after `change`.
fn lines_after(change: impl FnOnce(&Guarded), count: usize) -> Vec<Value> {
    let guarded = Guarded::with_rules(RULES, &file(), &["--audit-log", "DIR/audit.log"]);
    change(&guarded);
    lines(guarded.path("audit.log"), count)
}

/// Returns the user, the front, the status, the kind of change, and the error of a line.
fn essence(line: &Value) -> Value {
    json!([line["user"], line["front"], line["status"], line["what"], line.get("error")])
}

const NO_USER: &str =
    "401 Unauthorized: log in: send Authorization: Bearer PASSWORD_OR_TOKEN, or Basic with user and password";

#[test]
fn changes_and_refused_attempts_name_the_user() {
    let put = "/v1/limits?rule=b-user&actor=ann";
    let change = |guarded: &Guarded| {
        let limit = "DIVVY.LIMIT SET b-user ann 5";
        assert_eq!(guarded.resp("op").command(limit), "OK");
        for (user, reply) in [
            ("a", format!("-NOPERM {REFUSED}")),
            ("app", "-NOPERM User app has no permissions to run the 'divvy.limit|set' command".to_owned()),
        ] {
            assert_eq!(guarded.resp(user).command(limit), reply);
        }
        for (user, status) in [(Some("a"), 403), (Some("app"), 403), (None, 401), (Some("op"), 200)] {
            assert_eq!(guarded.http("DELETE", put, user).status, status, "{user:?}");
        }
        assert!(guarded.resp("app").command("DIVVY.RESET api=a user=ann").starts_with("-NOPERM"));
        assert_eq!(guarded.resp("a").command("DIVVY.RESET api=b user=ann"), format!("-NOPERM {REFUSED}"));
        let mut app = guarded.resp("app");
        app.command("MULTI");
        assert!(app.command("DIVVY.FORGET a-user").starts_with("-NOPERM"));
        assert!(guarded.resp("a").command("DIVVY.BACKUP x").starts_with("-NOPERM"));
    };
    let lines = lines_after(change, 11);
    let no_category = |command: &str, user: &str| {
        json!(format!("NOPERM User {user} has no permissions to run the '{command}' command"))
    };
    let expected = [
        json!(["op", "resp", "done", "limit.set", null]),
        json!(["a", "resp", "refused", "limit.set", REFUSED]),
        json!(["app", "resp", "refused", "limit.set", no_category("divvy.limit|set", "app")]),
        json!(["a", "http", "refused", "limit.delete", REFUSED]),
        json!([
            "app",
            "http",
            "refused",
            "limit.delete",
            "403 Forbidden: this user has no permission for requests of the category limits"
        ]),
        json!(["-", "http", "refused", "limit.delete", NO_USER]),
        json!(["op", "http", "done", "limit.delete", null]),
        json!(["app", "resp", "refused", "counters.reset", no_category("divvy.reset", "app")]),
        json!(["a", "resp", "refused", "counters.reset", REFUSED]),
        json!(["app", "resp", "refused", "counters.forget", no_category("divvy.forget", "app")]),
        json!(["a", "resp", "refused", "backup", no_category("divvy.backup", "a")]),
    ];
    assert_eq!(lines.iter().map(essence).collect::<Vec<_>>(), expected);
    assert_eq!(lines[2]["request"], json!({"rule": "b-user", "actor": "ann", "credits": 5}));
    assert_eq!((&lines[1]["before"], &lines[1]["after"]), (&Value::Null, &Value::Null), "the limit is not disclosed");
}

#[test]
fn reload_of_the_access_file_names_the_users_that_changed() {
    let change = |guarded: &Guarded| {
        let changed = line("op", "+@all ~*") + &line("a", "+@hit ~label:a-*") + &line("new", "+@hit ~*");
        guarded.reload(&changed, "the new users are in force");
        guarded.reload(&(changed + "user x on +@nonsense\n"), "not loaded; the previous users stay in force");
    };
    let lines = lines_after(change, 4);
    let access: Vec<_> = lines.iter().filter(|line| line["what"] == "access.reload").collect();
    assert_eq!(access.len(), 2, "{lines:#?}");
    assert_eq!(essence(access[0]), json!(["-", "signal", "done", "access.reload", null]));
    assert_eq!(access[0]["before"], json!({"users": 3}));
    assert_eq!(access[0]["after"], json!({"users": 3, "changed": ["a", "app", "new"]}));
    assert!(access[0]["request"]["file"].as_str().unwrap().ends_with("users.acl"));
    assert_eq!(access[1]["status"], "refused");
    assert!(access[1]["error"].as_str().unwrap().contains("there is no category nonsense"), "{}", access[1]);
}
