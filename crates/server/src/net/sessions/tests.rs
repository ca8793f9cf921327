//! Sessions begin, end and are bounded.

use std::future::pending;

use super::*;
use crate::tests::{user, users};
use divvy_access::{Given, User, Users};
use divvy_telemetry::metrics::Metrics;

fn line(name: &str, password: &str) -> String {
    user(name, password, "+@read ~*")
}

fn authority(file: &str) -> Authority {
    crate::tests::authority(file, &Metrics::new())
}

/// Returns an authority whose users all have the same password.
fn authority_of_password() -> Authority {
    let users = Users::new([User::with_password("secret")]).unwrap();
    Authority::new(users, Metrics::new().access.password_hashes.clone())
}

async fn identity(authority: &Authority, name: &str, password: &str) -> ClientIdentity {
    let given = Given::User { name: name.as_bytes(), password: password.as_bytes() };
    authority.log_in(&given, None, || panic!("{name} can log in"), pending()).await.unwrap()
}

#[tokio::test]
async fn session_ends_when_it_is_idle_or_old() {
    let authority = authority(&line("ann", "secret"));
    let sessions = Sessions::new(8322, false);
    let start = Instant::now();
    let ann = identity(&authority, "ann", "secret").await;
    let idle = sessions.begin(ann.clone(), start).unwrap();
    let used = sessions.begin(ann, start).unwrap();
    let mut now = start;
    while now + MAX_IDLE / 2 < start + MAX_AGE {
        now += MAX_IDLE / 2;
        let open = sessions.find(used.id.as_bytes(), &authority, now).unwrap();
        assert_eq!(open.identity.name(), Some("ann"));
    }
    assert!(sessions.find(idle.id.as_bytes(), &authority, start + MAX_IDLE).is_none());
    assert!(sessions.find(used.id.as_bytes(), &authority, start + MAX_AGE).is_none());
    assert!(sessions.sessions.lock().is_empty());
}

#[tokio::test]
async fn session_whose_login_was_invalid_in_between_has_ended() {
    let file = line("ann", "secret");
    let other = Digest::of(b"other").to_word();
    let authority = authority(&file);
    let sessions = Sessions::new(8322, false);
    let now = Instant::now();
    for (between, survives) in [
        (file.clone(), true),
        (line("bob", "secret"), false),
        (file.replace(" on ", " off "), false),
        (line("ann", "other"), false),
        (file.replace(" on ", &format!(" on {other} ")), false),
    ] {
        let ann = sessions.begin(identity(&authority, "ann", "secret").await, now).unwrap();
        authority.replace(users(&between));
        authority.replace(users(&file));
        assert_eq!(sessions.find(ann.id.as_bytes(), &authority, now).is_some(), survives, "{between}");
    }
}

/// Requests on several threads may come with times in any order. The system's clock may jump, and sessions do not use it.
#[tokio::test]
async fn session_survives_an_earlier_time() {
    let authority = authority(&line("ann", "secret"));
    let sessions = Sessions::new(8322, false);
    let start = Instant::now();
    let ann = sessions.begin(identity(&authority, "ann", "secret").await, start + MAX_AGE).unwrap();
    assert!(sessions.find(ann.id.as_bytes(), &authority, start).is_some());
    assert!(sessions.find(ann.id.as_bytes(), &authority, start + MAX_IDLE / 2).is_some());
}

#[tokio::test]
async fn sessions_of_a_user_and_of_all_users_are_bounded() {
    let names: Vec<_> = (0..=MAX_SESSIONS / MAX_PER_USER).map(|number| format!("user-{number}")).collect();
    let authority = authority(&names.iter().map(|name| line(name, name)).collect::<String>());
    let sessions = Sessions::new(8322, false);
    let mut now = Instant::now();
    let mut begun = Vec::new();
    for name in &names {
        for _ in 0..2 * MAX_PER_USER {
            now += Duration::from_millis(1);
            let identity = identity(&authority, name, name).await;
            begun.push(sessions.begin(identity, now).unwrap());
        }
    }
    assert_eq!(sessions.sessions.lock().len(), MAX_SESSIONS);
    let is_open = |session: &NewSession| sessions.find(session.id.as_bytes(), &authority, now).is_some();
    let open: Vec<_> = begun.iter().map(is_open).collect();
    // Each user's later half is open, except for the user who was not seen for the longest time.
    let of_each: Vec<_> =
        open.chunks(2 * MAX_PER_USER).map(|own| own.iter().filter(|is_open| **is_open).count()).collect();
    assert_eq!(of_each[0], 0);
    assert!(of_each[1..].iter().all(|count| *count == MAX_PER_USER), "{of_each:?}");
    assert!(open.ends_with(&[true; MAX_PER_USER]));
}

#[tokio::test]
async fn session_is_found_by_its_id_only() {
    let authority = authority_of_password();
    let sessions = Sessions::new(8322, true);
    let now = Instant::now();
    let session = sessions.begin(identity(&authority, "default", "secret").await, now).unwrap();
    let open = sessions.find(session.id.as_bytes(), &authority, now).unwrap();
    assert!(open.has_token(session.token.as_bytes()) && !open.has_token(b"") && !open.has_token(session.id.as_bytes()));
    for wrong in ["", &session.token, &session.id[1..], &format!("{}=", session.id), &session.id.to_uppercase()] {
        assert!(sessions.find(wrong.as_bytes(), &authority, now).is_none(), "{wrong}");
    }
    sessions.end(&headers(&[&format!("{}={}", sessions.cookie_name, session.id)]));
    assert!(sessions.find(session.id.as_bytes(), &authority, now).is_none());
    assert!(sessions.renew(open.key, &authority, now).is_none());
}

fn headers(cookies: &[&str]) -> HeaderMap {
    cookies.iter().map(|cookie| (COOKIE, HeaderValue::from_str(cookie).unwrap())).collect()
}

fn id(sessions: &Sessions, cookies: &[&str]) -> Option<String> {
    sessions.read_id(&headers(cookies)).map(|id| id.escape_ascii().to_string())
}

#[test]
fn id_is_read_from_the_only_cookie_with_the_name() {
    let plain = Sessions::new(8322, false);
    for (cookies, expected) in [
        (&["divvy_session_8322=abc"][..], Some("abc")),
        (&["a=b; divvy_session_8322=abc;c=d"], Some("abc")),
        (&["a=b", "divvy_session_8322=abc"], Some("abc")),
        (&["divvy_session_8322="], Some("")),
        (&["divvy_session_8322"], None),
        (&["divvy_session_83220=abc"], None),
        (&["Divvy_session=abc"], None),
        (&["__Host-divvy_session_8322=abc"], None),
        (&["divvy_session_8322=abc; divvy_session_8322=abc"], None),
        (&["divvy_session_8322=abc", "divvy_session_8322=d"], None),
        (&[""], None),
        (&[], None),
    ] {
        assert_eq!(id(&plain, cookies).as_deref(), expected, "{cookies:?}");
    }
    let secure = Sessions::new(8322, true);
    assert_eq!(id(&secure, &["divvy_session_8322=a; __Host-divvy_session_8322=b"]).as_deref(), Some("b"));
    assert_eq!(id(&secure, &["divvy_session_8322=a"]), None);
}

#[test]
fn cookie_is_hidden_from_scripts_and_other_sites() {
    let session = NewSession { id: "abc".to_owned(), token: "def".into() };
    let (plain, secure) = (Sessions::new(8322, false), Sessions::new(8322, true));
    let rest = "HttpOnly; SameSite=Strict; Path=/; Max-Age=43200";
    assert_eq!(plain.set_cookie(&session, false).unwrap(), format!("divvy_session_8322=abc; {rest}"));
    assert_eq!(plain.set_cookie(&session, true).unwrap(), format!("divvy_session_8322=abc; {rest}; Secure"));
    assert_eq!(secure.set_cookie(&session, false).unwrap(), format!("__Host-divvy_session_8322=abc; {rest}; Secure"));
    let cleared = "__Host-divvy_session_8322=; HttpOnly; SameSite=Strict; Path=/; Max-Age=0; Secure";
    assert_eq!(secure.clear_cookie().unwrap(), cleared);
}
