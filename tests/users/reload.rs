//! Changes of the access file while it is in force.

use divvy::access::Category;

use super::{Guarded, line, only, password};

const IN_FORCE: &str = "the new users are in force";
const NOT_LOADED: &str = "not loaded; the previous users stay in force";
const HIT: &str = "DIVVY.HIT method=GET path=/status";

#[test]
fn file_is_loaded_as_a_whole_or_not_at_all() {
    let guarded = Guarded::start(&line("app", "+@hit ~*"), &[]);
    let mut app = guarded.resp("app");
    guarded.reload(&(line("ann", "+@hit ~*") + "user app on +@nonsense\n"), NOT_LOADED, 1);
    assert_eq!(app.command(HIT), "[1 999 60]");
    let login = |name: &str| guarded.server.resp().command_of(&[b"AUTH", name.as_bytes(), password(name).as_bytes()]);
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
