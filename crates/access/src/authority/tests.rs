use std::future::{pending, ready};

use futures_util::{FutureExt, poll};

use super::*;
use crate::access_file::parse;
use crate::user::{Digest, SlowHash};
use divvy_telemetry::metrics::Metrics;

fn users(text: &str) -> Users {
    Users::new(parse(text, "users.acl", None).unwrap().users).unwrap()
}

fn authority(text: &str) -> Authority {
    let authority = Authority::new(users(text), Metrics::new().access.password_hashes.clone());
    Authority { pause: Duration::ZERO, ..authority }
}

fn named<'a>(name: &'a str, password: &'a str) -> Given<'a> {
    Given::User { name: name.as_bytes(), password: password.as_bytes() }
}

/// Logs a client in that waits.
async fn log_in(authority: &Authority, given: &Given<'_>) -> Result<ClientIdentity, LoginError> {
    authority.log_in(given, None, || {}, pending()).await
}

async fn name_of(authority: &Authority, given: Given<'_>) -> Option<String> {
    log_in(authority, &given).await.ok().and_then(|identity| identity.name().map(str::to_owned))
}

/// A hash that takes little time in a test.
const CHEAP: &str = "$argon2id$v=19$m=8,t=1,p=1$";

fn cheap(password: &str) -> String {
    let params = argon2::Params::new(8, 1, 1, None).unwrap();
    let hash = SlowHash::with_params(password.as_bytes(), params).unwrap().to_string();
    assert!(hash.starts_with(CHEAP), "{hash}");
    hash
}

fn digest(text: &str) -> String {
    Digest::of(text.as_bytes()).to_word()
}

#[tokio::test]
async fn users_log_in_with_each_of_their_credentials() {
    let file = format!(
        "user app on {} {} +@hit ~*\nuser out off {} {} ~*\nuser default on {} {} ~*\nuser c on cert:app.example ~*",
        digest("token"),
        cheap("slow"),
        digest("t2"),
        cheap("s2"),
        digest("d"),
        cheap("ds")
    );
    let authority = authority(&file);
    for (given, expected) in [
        (named("app", "token"), Some("app")),
        (named("app", "slow"), Some("app")),
        (named("app", "d"), None),
        (named("app", ""), None),
        (named("out", "t2"), None),
        (named("out", "s2"), None),
        (named("nobody", "token"), None),
        (named("default", "d"), Some("default")),
        (named("c", ""), None),
        (Given::Password(b"d"), Some("default")),
        (Given::Password(b"ds"), Some("default")),
        (Given::Password(b"token"), None),
        (Given::Token(b"token"), Some("app")),
        (Given::Token(b"d"), Some("default")),
        (Given::Token(b"ds"), Some("default")),
        (Given::Token(b"t2"), None),
        (Given::Token(b"slow"), None),
        (Given::Token(&[b'x'; 513]), None),
    ] {
        for _ in 0..2 {
            assert_eq!(name_of(&authority, given).await.as_deref(), expected, "{given:?}");
        }
        assert_eq!(authority.recall(&given).is_some(), expected.is_some(), "{given:?}");
    }
    let certificate =
        |name: &str| authority.by_certificate(&name.into()).and_then(|identity| identity.name().map(str::to_owned));
    assert_eq!((certificate("app.example").as_deref(), certificate("app")), (Some("c"), None));
}

#[tokio::test]
async fn failing_attempts_do_the_same_work_for_known_and_unknown_users() {
    let file = format!(
        "user two on {} {} ~*\nuser one on {} ~*\nuser token on {} ~*\nuser out off {} ~*\nuser cert on cert:c ~*",
        cheap("a"),
        cheap("b"),
        cheap("c"),
        digest("t"),
        cheap("d")
    );
    let authority = authority(&file);
    for given in [
        named("two", "wrong"),
        named("one", "wrong"),
        named("token", "wrong"),
        named("out", "wrong"),
        named("out", "d"),
        named("cert", "wrong"),
        named("nobody", "wrong"),
        named("", ""),
        named("default", "wrong"),
        Given::Password(b"wrong"),
        Given::Token(b"wrong"),
    ] {
        let before = authority.computed.get();
        assert_eq!(log_in(&authority, &given).await.unwrap_err(), LoginError::Wrong);
        assert_eq!(authority.computed.get() - before, 2, "{given:?}");
        // Each one pauses.
        let all = authority.pauses.acquire_many(MAX_PAUSES as u32).await.unwrap();
        let attempt = log_in(&authority, &given);
        let mut attempt = std::pin::pin!(attempt);
        while authority.computed.get() - before < 4 || authority.checks.threads.available_permits() < MAX_CHECKS {
            assert!(futures_util::poll!(attempt.as_mut()).is_pending(), "{given:?}");
            tokio::task::yield_now().await;
        }
        assert!(futures_util::poll!(attempt.as_mut()).is_pending(), "{given:?}");
        drop(all);
        assert!(attempt.await.is_err());
    }
}

#[tokio::test]
async fn verified_credentials_are_neither_computed_again_nor_delayed() {
    let authority = authority(&format!("user app on {} ~*", cheap("slow")));
    let logins = (0..50).map(|_| async { log_in(&authority, &named("app", "slow")).await.is_ok() });
    assert!(futures_util::future::join_all(logins).await.into_iter().all(|is_in| is_in));
    assert_eq!(authority.computed.get(), 1, "requests that waited found the result of the first");
    // Failing attempts may occupy the threads and the pauses.
    let _checks = authority.checks.threads.acquire_many(MAX_CHECKS as u32).await.unwrap();
    let _pauses = authority.pauses.acquire_many(MAX_PAUSES as u32).await.unwrap();
    assert!(log_in(&authority, &named("app", "slow")).now_or_never().is_some_and(|known| known.is_ok()));
    assert!(log_in(&authority, &named("app", "wrong")).now_or_never().is_none(), "it waits");
}

#[tokio::test]
async fn wrong_credentials_from_one_address_are_computed_once_at_a_time() {
    let authority = authority(&format!("user app on {} ~*", cheap("slow")));
    // The first is not computed before all have come.
    let all = authority.checks.threads.acquire_many(MAX_CHECKS as u32).await.unwrap();
    let attempts = (0..50).map(|_| async { log_in(&authority, &named("app", "wrong")).await.unwrap_err() });
    let mut attempts = std::pin::pin!(futures_util::future::join_all(attempts));
    assert!(poll!(attempts.as_mut()).is_pending());
    drop(all);
    let results = attempts.await;
    assert!(results.into_iter().all(|error| error == LoginError::Wrong));
    assert_eq!(authority.computed.get(), 1);
}

#[tokio::test]
async fn credentials_that_take_no_computing_pass_a_full_queue() {
    let authority = authority(&format!("user app on {} {} ~*", digest("token"), cheap("slow")));
    let passwords: Vec<_> = (0..MAX_OF_ADDRESS).map(|number| number.to_string()).collect();
    let places = passwords.iter().map(|password| authority.checks.enter(None, &named("app", password), 1).unwrap());
    let _places: Vec<_> = places.collect();
    assert_eq!(log_in(&authority, &named("app", "slow")).await.unwrap_err(), LoginError::QueueFull);
    assert_eq!(name_of(&authority, named("app", "token")).await.as_deref(), Some("app"));
}

#[tokio::test]
async fn credentials_of_a_client_that_left_are_not_computed() {
    let authority = authority(&format!("user app on {} ~*", cheap("slow")));
    let all = authority.checks.threads.acquire_many(MAX_CHECKS as u32).await.unwrap();
    let attempt = |password: &'static str| {
        let given = named("app", password);
        let authority = &authority;
        async move { authority.log_in(&given, None, || panic!("it was not verified"), ready(())).await.unwrap_err() }
    };
    assert_eq!(attempt("first").await, LoginError::ClientLeft);
    {
        // Another way to leave: the request is dropped.
        let given = named("app", "second");
        let mut dropped = std::pin::pin!(log_in(&authority, &given));
        assert!(futures_util::poll!(dropped.as_mut()).is_pending());
        assert_eq!(attempt("third").await, LoginError::ClientLeft, "it waited for the turn of its address");
    }
    drop(all);
    assert_eq!(authority.computed.get(), 0);
    assert_eq!(name_of(&authority, named("app", "slow")).await.as_deref(), Some("app"));
    assert_eq!(authority.computed.get(), 1);
    // A client that has closed only its sending side gets an answer if the queue is empty.
    let given = named("app", "wrong");
    assert_eq!(authority.log_in(&given, None, || {}, ready(())).await.unwrap_err(), LoginError::Wrong);
}

#[tokio::test]
async fn replaced_users_change_the_rights_of_identities_at_once() {
    let (one, two, slow) = (digest("one"), digest("two"), cheap("slow"));
    let authority = authority(&format!("user app on {one} {two} {slow} cert:c +@hit ~*"));
    let given = [named("app", "one"), named("app", "two"), named("app", "slow")];
    let mut identities = Vec::new();
    for given in &given {
        identities.push(log_in(&authority, given).await.unwrap());
    }
    identities.push(authority.by_certificate(&"c".into()).unwrap());
    let mut rights = |file: &str, category, remembered: [bool; 3]| -> Vec<bool> {
        authority.replace(users(file));
        assert_eq!(given.each_ref().map(|given| authority.recall(given).is_some()), remembered, "{file}");
        let refreshed = identities.iter_mut().map(|identity| {
            authority.refresh(identity);
            identity.may(category).is_ok()
        });
        refreshed.collect()
    };
    assert_eq!(
        rights(&format!("user app on {one} {slow} +@read ~*"), Category::Read, [true, false, true]),
        [true, false, true, false]
    );
    assert_eq!(
        rights(&format!("user app on {one} {two} {slow} cert:c +@read ~*"), Category::Hit, [true, false, true]),
        [false; 4]
    );
    assert_eq!(
        rights(&format!("user app on {one} {two} {slow} cert:c +@hit ~label:x"), Category::Hit, [true, false, true]),
        [true; 4]
    );
    assert_eq!(
        rights(&format!("user app off {one} {two} {slow} cert:c +@hit ~*"), Category::Hit, [false; 3]),
        [false; 4]
    );
    assert_eq!(
        rights(&format!("user other on {one} {two} {slow} cert:c +@all ~*"), Category::Connection, [false; 3]),
        [false; 4]
    );
    assert!(identities.iter().all(|identity| !identity.is_admitted()));
}

const NOW: Timestamp = Timestamp::from_nanos(1_800_000_000_000_000_000);

/// Returns the text of a key file, and a token that its key made.
fn token() -> (TokenKeys, String) {
    let keys = TokenKeys::parse(&TokenKeys::generate().unwrap(), "keys").unwrap();
    let actor = [("user".to_owned(), "a b".to_owned())].into_iter().collect();
    let grant = TokenGrant::new(actor, vec!["api-*".to_owned()], NOW, Duration::from_secs(60)).unwrap();
    let token = keys.seal(&grant).unwrap();
    (keys, token)
}

#[tokio::test]
async fn token_is_a_user_who_may_read_the_status_of_one_actor() {
    let (keys, token) = token();
    let authority = authority("user a on +@all ~*").with_token_keys(Some(keys.clone()));
    assert!(authority.is_actor_token(token.as_bytes()) && !authority.is_actor_token(b"token"));
    let fail = |error| panic!("{error}");
    let mut identity = authority.verify_actor_token(token.as_bytes(), NOW, fail).await.unwrap();
    for category in Category::ALL {
        assert_eq!(identity.may(category).is_ok(), category == Category::Status, "{category}");
    }
    assert!(identity.has_actor_token() && !authority.unknown().has_actor_token());
    assert_eq!(identity.name(), Some("token:user=a+b"));
    assert!(authority.recall(&Given::Token(token.as_bytes())).is_none(), "nothing is remembered");

    // Tokens are verified for each request, so an identity that is kept loses its rights with the next reload.
    authority.replace(users("user a on +@all ~*"));
    assert!(authority.refresh(&mut identity) && !identity.is_admitted());
    authority.replace_token_keys(TokenKeys::parse(&TokenKeys::generate().unwrap(), "keys").unwrap());
    assert!(authority.verify_actor_token(token.as_bytes(), NOW, drop).await.is_none());
}

#[tokio::test]
async fn token_is_no_password_and_no_bearer_token_of_a_user() {
    let (keys, token) = token();
    let file = format!("user default on {} +@all ~*", digest("p"));
    let authority = authority(&file).with_token_keys(Some(keys));
    for given in [named("default", &token), Given::Password(token.as_bytes()), Given::Token(token.as_bytes())] {
        assert!(log_in(&authority, &given).await.is_err(), "{given:?}");
    }
    let other = self::authority(&file);
    assert!(!other.is_actor_token(token.as_bytes()), "without a key file, it is a bearer token like any other");
    assert!(other.verify_actor_token(token.as_bytes(), NOW, drop).await.is_none());
}

#[tokio::test]
async fn only_failing_tokens_are_delayed() {
    let (keys, token) = token();
    let authority = authority("user a on +@all ~*").with_token_keys(Some(keys));
    let _pauses = authority.pauses.acquire_many(MAX_PAUSES as u32).await.unwrap();
    let verify = |token: &str, now| {
        let mut reason = None;
        let identity = authority.verify_actor_token(token.as_bytes(), now, |error| reason = Some(error)).now_or_never();
        (identity.map(|identity| identity.is_some()), reason)
    };
    assert_eq!(verify(&token, NOW), (Some(true), None));
    assert_eq!(verify(&token, NOW.plus(200_000_000_000)), (None, Some(TokenError::Expired)));
    assert_eq!(verify(&token.replacen("v4.local.", "v4.local.A", 1), NOW).0, None);
}

fn address(last: u8) -> Option<IpAddr> {
    Some([192, 0, 2, last].into())
}

fn enter(queue: &Arc<CheckQueue>, from: u8, password: usize) -> Result<Place, LoginError> {
    queue.enter(address(from), &Given::Password(password.to_string().as_bytes()), 1)
}

#[tokio::test]
async fn floods_from_other_addresses_delay_a_login_by_one_check() {
    let queue = CheckQueue::new();
    let floods: Vec<_> = (0..MAX_CHECKS as u8)
        .map(|from| (0..MAX_OF_ADDRESS).map(|n| enter(&queue, from, n).unwrap()).collect::<Vec<_>>())
        .collect();
    let mut at_work = Vec::new();
    for flood in &floods {
        at_work.push((flood[0].turn().await, flood[0].thread().await));
    }
    let waiting = floods.iter().flatten().map(|place| async { (place.turn().await, place.thread().await) });
    let mut waiting: Vec<_> = waiting.map(Box::pin).collect();
    for attempt in &mut waiting {
        assert!(poll!(attempt.as_mut()).is_pending());
    }
    let place = enter(&queue, 99, 0).unwrap();
    let mut login = pin!(async { (place.turn().await, place.thread().await) });
    assert!(poll!(login.as_mut()).is_pending());
    at_work.pop();
    for attempt in &mut waiting {
        assert!(poll!(attempt.as_mut()).is_pending(), "the attempts that came first wait for their address");
    }
    assert!(poll!(login.as_mut()).is_ready());
}

#[tokio::test]
async fn login_that_leaves_gives_up_its_turn() {
    let queue = CheckQueue::new();
    let places: Vec<_> = (0..3).map(|n| enter(&queue, 1, n).unwrap()).collect();
    let turn = places[0].turn().await;
    let mut last = pin!(places[2].turn());
    {
        let mut left = pin!(places[1].turn());
        assert!(poll!(left.as_mut()).is_pending() && poll!(last.as_mut()).is_pending());
    }
    drop(turn);
    assert!(poll!(last.as_mut()).is_ready());
}

#[test]
fn places_are_bounded_and_free_again_when_they_are_left() {
    let queue = CheckQueue::new();
    let mut places: Vec<_> = (0..MAX_OF_ADDRESS).map(|n| enter(&queue, 1, n).unwrap()).collect();
    assert_eq!(enter(&queue, 1, MAX_OF_ADDRESS).unwrap_err(), LoginError::QueueFull);
    places.push(enter(&queue, 1, 0).unwrap());
    places.push(enter(&queue, 2, 0).unwrap());
    drop(places.remove(0));
    assert!(enter(&queue, 1, MAX_OF_ADDRESS).is_err(), "another login with the same credentials waits");
    drop(places.remove(0));
    assert!(enter(&queue, 1, MAX_OF_ADDRESS).is_ok());
    let many: Vec<_> =
        (0..MAX_ADDRESSES as u128).map(|n| queue.enter(Some(IpAddr::V6(n.into())), &Given::Password(b""), 1)).collect();
    assert_eq!(many.iter().filter(|place| place.is_err()).count(), 2, "two other addresses have places");
    drop((many, places));
    assert!(queue.state.lock().addresses.is_empty());
}

#[tokio::test]
async fn failing_addresses_leave_a_thread_and_half_of_the_places_to_the_others() {
    let queue = CheckQueue::new();
    let enter = |address: u128| queue.enter(Some(IpAddr::V6(address.into())), &Given::Password(b"x"), 1);
    (0..1_024).for_each(|address| enter(address).unwrap().set_wrong());
    let flood: Vec<_> = (0..1_024).filter_map(|address| enter(address).ok()).collect();
    assert_eq!(flood.len(), MAX_ADDRESSES / 2);
    let mut waiting: Vec<_> = flood.iter().map(|place| Box::pin(place.thread())).collect();
    let mut at_work = Vec::new();
    for login in &mut waiting {
        at_work.extend(match poll!(login.as_mut()) {
            std::task::Poll::Ready(thread) => thread,
            std::task::Poll::Pending => None,
        });
    }
    assert_eq!(at_work.len(), 1);
    let first = enter(2_000).unwrap();
    assert!(poll!(pin!(first.thread())).is_ready(), "an address without a failing attempt");

    let (after_success, other) = (enter(0).unwrap(), enter(1).unwrap());
    after_success.set_right();
    assert!(poll!(pin!(after_success.thread())).is_ready());
    assert!(poll!(pin!(other.thread())).is_pending());
}

#[test]
fn failing_addresses_are_bounded() {
    let queue = CheckQueue::new();
    let fail = |number: u128| {
        let place = queue.enter(Some(IpAddr::V6(number.into())), &Given::Password(b"x"), 1);
        place.unwrap().set_wrong();
        queue.state.lock().suspects.len()
    };
    assert_eq!((0..MAX_SUSPECTS as u128 + 9).map(fail).max(), Some(MAX_SUSPECTS));
}

#[test]
fn wrong_credentials_are_known_to_logins_with_the_same_ones() {
    let queue = CheckQueue::new();
    let (first, same) = (enter(&queue, 1, 1).unwrap(), enter(&queue, 1, 1).unwrap());
    let others = [
        enter(&queue, 1, 2),
        enter(&queue, 2, 1),
        queue.enter(address(1), &Given::Password(b"1"), 2),
        queue.enter(address(1), &Given::Token(b"1"), 1),
    ];
    first.set_wrong();
    assert!(same.are_wrong() && others.into_iter().all(|other| !other.unwrap().are_wrong()));
}
