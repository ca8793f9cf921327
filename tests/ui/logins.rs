//! Logins and logouts, and the ends of sessions.

use serde_json::json;

use super::{Site, line, password};
use crate::support::http;

#[test]
fn wrong_login_begins_no_session_and_counts() {
    let site = Site::start(&line("ann", "+@all ~*"), &[]);
    let mut browser = site.browser();
    for (name, password) in [("ann", "wrong"), ("bob", "x"), ("", ""), ("ann", ""), ("default", "x")] {
        let response = browser.log_in(name, password);
        assert_eq!((response.status, response.header("set-cookie")), (401, None), "{name}");
    }
    let metrics = http::get(site.server.http, "/metrics").body;
    assert!(metrics.contains("divvy_wrong_passwords_total{front=\"http\"} 5"), "{metrics}");
    for body in ["", "{}", "[]", r#"{"user":"ann","password":"x","more":1}"#, r#"{"user":"ann"}"#] {
        let response = browser.send("POST", "/ui/api/login", &[("content-type", "application/json")], body);
        assert_eq!(response.status, 400, "{body}");
    }
}

#[test]
fn login_makes_an_earlier_id_worthless() {
    let site = Site::start(&(line("ann", "+@all ~*") + &line("eve", "+@read ~*")), &[]);
    // Eve made the victim's browser use an id of hers, or any id.
    let eve = site.logged_in("eve");
    let name = format!("divvy_session_{}", site.server.http.port());
    for planted in [eve.cookie.clone().unwrap(), format!("{name}={}", "A".repeat(43))] {
        let mut victim = site.browser();
        victim.cookie = Some(planted.clone());
        assert_eq!(victim.log_in("ann", &password("ann")).status, 200);
        assert_ne!(victim.cookie.as_ref(), Some(&planted));
        assert_eq!(victim.session()["user"], "ann");
        let mut attacker = site.browser();
        attacker.cookie = Some(planted);
        assert_eq!(attacker.session()["user"], json!(null), "the login ended the session of that id");
    }
    let attributes = site.browser().log_in("ann", &password("ann"));
    let attributes = attributes.header("set-cookie").unwrap().split_once(';').unwrap().1;
    assert_eq!(attributes, " HttpOnly; SameSite=Strict; Path=/; Max-Age=43200");
}

#[test]
fn cookie_is_secure_if_the_page_is() {
    let site = Site::start(&line("ann", "+@all ~*"), &[]);
    let body = json!({"user": "ann", "password": password("ann")}).to_string();
    let headers =
        [("content-type", "application/json"), ("host", "divvy.example"), ("origin", "https://divvy.example")];
    let response = site.browser().send("POST", "/ui/api/login", &headers, &body);
    assert!(response.header("set-cookie").unwrap().ends_with("; Secure"), "{response:?}");
}

#[test]
fn logout_ends_the_session_and_its_streams() {
    let site = Site::start(&line("ann", "+@all ~*"), &[]);
    let browser = site.logged_in("ann");
    let mut events = browser.feed("");
    let response = browser.send("POST", "/ui/api/logout", &[], "");
    assert_eq!(response.status, 204);
    assert!(response.header("set-cookie").unwrap().contains("Max-Age=0"), "{response:?}");
    assert_eq!(browser.session()["user"], json!(null));
    assert_eq!(browser.api("GET", "/v1/rules", "").status, 401);
    events.next_named("end");
    assert_eq!(events.next(), None);
}

#[test]
fn changed_password_and_removed_user_end_sessions_and_streams() {
    let both = line("ann", "+@all ~*") + &line("bob", "+@read ~*");
    let site = Site::start(&both, &[]);
    let (ann, bob) = (site.logged_in("ann"), site.logged_in("bob"));
    let (mut of_ann, mut of_bob) = (ann.feed(""), bob.feed(""));
    let changed = line("ann", "+@all ~*").replace(&line_hash("ann"), &line_hash("other"));
    site.replace("users.acl", &(changed + &line("bob", "+@read ~*")), "the new users are in force");
    of_ann.next_named("end");
    assert_eq!(ann.session()["user"], json!(null));
    assert_eq!(bob.session()["user"], "bob");
    of_bob.next_named("rules");
    site.replace("users.acl", &line("ann", "+@all ~*"), "the new users are in force");
    of_bob.next_named("end");
    assert_eq!(bob.session()["user"], json!(null));
    // The old password is back, but not the session.
    assert_eq!(ann.session()["user"], json!(null));
}

fn line_hash(name: &str) -> String {
    divvy::access::Digest::of(password(name).as_bytes()).to_word()
}
