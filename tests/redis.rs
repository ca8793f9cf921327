//! A single Redis as the store: keys and values shared with Button's Divvy, times, batches and listings.

use std::time::{Duration, Instant};

use divvy::algorithm::{
    Ask, FixedWindow, Kind, LeakyBucket, Limit, Outcome, ReservationAsk, Resolution, SlidingLog, TokenBucket,
};
use divvy::clock::{Clock, Timestamp};
use divvy::store::key::{Prefix, Space};
use divvy::store::{Action, Batch, Listing, Page, RedisOptions, RedisStore, Store, StoreError};

use crate::conformance::{LOOK, TAKE, wait};
use crate::support::redis::TIMEOUT;
use crate::support::{Proxy, RedisServer};

const SECOND: u64 = 1_000_000_000;

pub fn open(urls: Vec<String>) -> RedisStore {
    RedisStore::open(RedisOptions { urls, ..RedisOptions::default() }).unwrap()
}

fn connected() -> (RedisServer, RedisStore) {
    let server = RedisServer::start();
    let store = open(vec![server.url()]);
    (server, store)
}

pub fn window(credits: u64, nanos: u64) -> Limit {
    Limit::FixedWindow(FixedWindow::new(credits, nanos).unwrap())
}

fn tokens(capacity: u64) -> Limit {
    Limit::TokenBucket(TokenBucket::new(capacity, 1, 3600 * SECOND).unwrap())
}

/// Applies the actions as one batch, each to its actor's bucket of the rule `method=GET path=/x`.
pub async fn apply(store: &RedisStore, actions: &[(&str, Limit, Action)]) -> Vec<Result<Outcome, StoreError>> {
    apply_at(store, Clock::system().now(), actions).await
}

/// Applies the actions as a server whose clock reads `now`.
async fn apply_at(
    store: &RedisStore,
    now: Timestamp,
    actions: &[(&str, Limit, Action)],
) -> Vec<Result<Outcome, StoreError>> {
    let mut batch = Batch::default();
    batch.begin(now);
    for (actor, limit, action) in actions {
        batch.push(*limit, *action, now, |out| prefix(limit).write_key(actor, out));
    }
    store.apply(&mut batch).await;
    (0..actions.len()).map(|index| batch.outcome(index)).collect()
}

fn prefix(limit: &Limit) -> Prefix {
    Prefix::new(Space::Rule, [("path", "/x"), ("method", "GET")], limit)
}

/// Returns the page of the rule's buckets that begins at the cursor.
pub async fn page(store: &RedisStore, limit: Limit, cursor: Option<String>, count: usize) -> Result<Page, StoreError> {
    let prefix = prefix(&limit).as_bytes().into();
    store.list(Listing { prefix, limit, cursor, count, now: Clock::system().now() }).await
}

pub async fn one(store: &RedisStore, actor: &str, limit: Limit, action: Action) -> Result<Outcome, StoreError> {
    apply(store, &[(actor, limit, action)]).await.remove(0)
}

pub fn take(cost: u64) -> Action {
    Action::Ask(Ask::Take { cost })
}

/// Returns whether the request is allowed, the credits left, and the seconds until the reset, rounded up.
pub fn summary(outcome: Outcome) -> (bool, u64, u64) {
    (outcome.allowed, outcome.left, outcome.reset_ns.div_ceil(SECOND))
}

fn ttl_ms(server: &RedisServer, key: &str) -> i64 {
    server.cli(&["PTTL", key]).parse().unwrap()
}

#[test]
fn window_has_buttons_divvys_key_value_and_ttl() {
    let (server, store) = connected();
    wait(async {
        let key = "divvy:method=GET path=/x:1.2.3.4:3:60";
        let limit = window(3, 60 * SECOND);
        for (allowed, left) in [(true, 2), (true, 1), (true, 0), (false, 0), (false, 0)] {
            let outcome = one(&store, "1.2.3.4", limit, TAKE).await.unwrap();
            assert_eq!(summary(outcome), (allowed, left, 60));
            assert_eq!(server.cli(&["GET", key]), left.to_string());
            assert!((55_000..=60_000).contains(&ttl_ms(&server, key)));
        }
        assert_eq!(server.cli(&["KEYS", "*"]), key, "and there is nothing else");
        assert_eq!(store.approximate_len().await.unwrap(), 1);

        one(&store, "é :", window(9, 600 * SECOND), TAKE).await.unwrap();
        assert_eq!(server.cli(&["EXISTS", "divvy:method=GET path=/x:é ::9:600"]), "1");
        one(&store, "half", window(9, 90 * SECOND + SECOND / 2), TAKE).await.unwrap();
        let key = "divvy:method=GET path=/x:half:9:90.5";
        assert_eq!(server.cli(&["GET", key]), "8");
        assert!((85_000..=90_500).contains(&ttl_ms(&server, key)));
    });
}

#[test]
fn manual_commands_and_hits_share_the_same_credits() {
    let (server, store) = connected();
    wait(async {
        let (limit, key) = (window(6, 60 * SECOND), "divvy:method=GET path=/x:both:6:60");
        assert_eq!(server.cli(&["GET", key]), "");
        assert_eq!(server.cli(&["SETEX", key, "60", "5"]), "OK");
        assert_eq!(summary(one(&store, "both", limit, TAKE).await.unwrap()), (true, 4, 60));
        assert_eq!(server.cli(&["DECR", key]), "3");
        assert_eq!(summary(one(&store, "both", limit, take(2)).await.unwrap()), (true, 1, 60));
        assert_eq!(server.cli(&["DECR", key]), "0");
        assert_eq!(summary(one(&store, "both", limit, TAKE).await.unwrap()), (false, 0, 60));
        assert_eq!(server.cli(&["GET", key]), "0", "a denied hit leaves it unchanged");
        assert_eq!(server.cli(&["DECR", key]), "-1");
        assert_eq!(summary(one(&store, "both", limit, TAKE).await.unwrap()), (false, 0, 60));
    });
}

/// Applies a request to the reservation `id` of an actor's bucket of the rule `method=GET path=/x`.
pub async fn about(
    store: &RedisStore,
    (actor, id): (&str, &str),
    limit: Limit,
    ask: ReservationAsk,
) -> Result<Outcome, StoreError> {
    let mut batch = Batch::default();
    batch.begin(Clock::system().now());
    batch.push_reservation(ask, id.as_bytes(), |out| {
        prefix(&limit).write_key(actor, out);
        Some(limit)
    });
    store.apply(&mut batch).await;
    batch.outcome(0)
}

#[test]
fn reservations_leave_buttons_divvys_window_unchanged() {
    let (server, store) = connected();
    wait(async {
        let (limit, key) = (window(6, 60 * SECOND), "divvy:method=GET path=/x:both:6:60");
        let side = format!("divvy.reserved:{key}");
        let get = |key: &str| server.cli(&["GET", key]);
        let left = async || one(&store, "both", limit, LOOK).await.unwrap().left;
        let reserve = |credits| ReservationAsk::Reserve { credits, ttl_seconds: 900 };
        // The window begins with the reservation. Programs without support for reservations see all of its credits.
        let reserved = about(&store, ("both", "a"), limit, reserve(2)).await.unwrap();
        assert_eq!((reserved.allowed, reserved.left, get(key).as_str()), (true, 4, "6"));
        let [window_ms, side_ms] = [key, &side].map(|key| ttl_ms(&server, key));
        assert!((55_000..=60_000).contains(&window_ms) && side_ms <= window_ms, "{window_ms} {side_ms}");
        let ends = reserved.session.since(Clock::system().now()) / 1_000_000;
        assert!(ends.abs_diff(side_ms as u64) < 1_000, "{ends} {side_ms}");
        assert!(about(&store, ("both", "b"), limit, reserve(1)).await.unwrap().allowed);
        let text = get(&side);
        // The word after the groups is the time of their last change.
        let words = text.split(' ').skip(1).filter(|word| !word.starts_with(':'));
        let groups: Vec<_> = words.map(|group| group.split_once(':').unwrap()).collect();
        assert_eq!(groups.iter().map(|(_, credits)| credits.parse::<u64>().unwrap()).sum::<u64>(), 3, "{text}");

        assert_eq!(server.cli(&["DECR", key]), "5", "the original's hit");
        assert_eq!(summary(one(&store, "both", limit, take(2)).await.unwrap()), (true, 0, 60));
        assert_eq!(get(key), "3");
        assert!(!one(&store, "both", limit, TAKE).await.unwrap().allowed, "the rest is reserved");
        assert_eq!(server.cli(&["DECR", key]), "2", "but for the original");
        assert!(!one(&store, "both", limit, TAKE).await.unwrap().allowed);
        let committed =
            about(&store, ("both", "a"), limit, ReservationAsk::Commit { cost: 1, charges: true, run: None })
                .await
                .unwrap();
        assert_eq!((committed.resolution, committed.left, get(key).as_str()), (Resolution::Done, 0, "1"));
        let released = about(&store, ("both", "b"), limit, ReservationAsk::Release { run: None }).await.unwrap();
        assert_eq!((released.resolution, released.left, get(key).as_str()), (Resolution::Done, 1, "1"));
        assert_eq!(server.cli(&["EXISTS", &side]), "0", "nothing is reserved anymore");
        let ttl = ttl_ms(&server, key);
        assert!(ttl > 0 && ttl <= window_ms, "the window ends when it did: {ttl}");

        // The window is deleted by hand, and Button's Divvy begins a new one.
        about(&store, ("both", "c"), limit, reserve(1)).await.unwrap();
        assert_eq!(server.cli(&["DEL", key]), "1");
        assert_eq!(left().await, 5);
        assert_eq!(server.cli(&["SETEX", key, "60", "5"]), "OK");
        assert_eq!(left().await, 4);
        // The window is given more credits than its limit by hand.
        assert_eq!(server.cli(&["SET", key, "9", "KEEPTTL"]), "OK");
        assert_eq!(left().await, 8);
        assert_eq!(summary(one(&store, "both", limit, take(8)).await.unwrap()).1, 0);
        assert_eq!(get(key), "1");

        assert_eq!(server.cli(&["PERSIST", key]), "1");
        one(&store, "both", limit, TAKE).await.unwrap();
        assert!(ttl_ms(&server, key) > 0, "a window without an end would deny for ever");
        assert_eq!(server.cli(&["SET", key, "many"]), "OK");
        assert!(
            one(&store, "both", limit, TAKE).await.unwrap_err().to_string().contains("not hold a number of credits")
        );
        assert!(one(&store, "both", limit, Action::Forget).await.unwrap().allowed);
        assert_eq!(server.cli(&["EXISTS", key, &side]), "0", "a reset forgets both");
    });
}

#[test]
fn unreadable_reservation_is_rejected_until_it_is_forgotten() {
    let (server, store) = connected();
    wait(async {
        for limit in [window(6, 60 * SECOND), tokens(6)] {
            let reserve = ReservationAsk::Reserve { credits: 1, ttl_seconds: 900 };
            assert_eq!(about(&store, ("odd", "a"), limit, reserve).await.unwrap().left, 5);
            let names = server.quoted("KEYS divvy.reserved:*");
            let (_, side) = names.split_once(' ').unwrap();
            for (value, reason) in [("gibberish", "not hold a state of this algorithm"), ("1 2:3 v2", "a later divvy")]
            {
                assert_eq!(server.pipe(&format!("SET {side} \"{value}\"")), "OK", "{side}");
                for refused in [
                    one(&store, "odd", limit, TAKE).await.unwrap_err(),
                    about(&store, ("odd", "b"), limit, reserve).await.unwrap_err(),
                ] {
                    assert!(refused.to_string().contains(reason), "{refused}");
                }
            }
            assert!(one(&store, "odd", limit, Action::Forget).await.unwrap().allowed);
            assert_eq!(one(&store, "odd", limit, TAKE).await.unwrap().left, 5);
            assert_eq!(about(&store, ("odd", "a"), limit, reserve).await.unwrap().left, 4);
            assert_eq!(server.cli(&["FLUSHALL"]), "OK");
        }
    });
}

#[test]
fn window_without_expiry_is_repaired_and_foreign_content_affects_one_bucket() {
    let (server, store) = connected();
    wait(async {
        let limit = window(2, 60 * SECOND);
        let key = "divvy:method=GET path=/x:lost:2:60";
        for value in ["1", "0"] {
            server.cli(&["SET", key, value]);
            one(&store, "lost", limit, LOOK).await.unwrap();
            assert_eq!(ttl_ms(&server, key), -1, "looking changes nothing");
            let outcome = one(&store, "lost", limit, TAKE).await.unwrap();
            assert_eq!(summary(outcome), (value == "1", 0, 60));
            assert!(ttl_ms(&server, key) > 55_000);
        }
        server.cli(&["SET", "divvy:method=GET path=/x:text:2:60", "many"]);
        server.cli(&["LPUSH", "divvy:method=GET path=/x:list:2:60", "1"]);
        let outcomes = apply(&store, &["text", "list", "good"].map(|actor| (actor, limit, TAKE))).await;
        assert!(outcomes[0].as_ref().unwrap_err().to_string().contains("not hold a number of credits"));
        assert!(outcomes[1].as_ref().unwrap_err().to_string().contains("WRONGTYPE"));
        assert!(outcomes[2].as_ref().unwrap().allowed);
        let listed = page(&store, limit, None, 100).await.unwrap().buckets;
        let actors: Vec<_> = listed.iter().map(|bucket| String::from_utf8_lossy(&bucket.actor)).collect();
        assert!(actors.contains(&"good".into()) && actors.contains(&"lost".into()) && actors.len() == 2, "{actors:?}");
        for actor in ["text", "list"] {
            assert!(
                one(&store, actor, limit, Action::Forget).await.unwrap().allowed,
                "an unreadable record is removed, too"
            );
            assert!(one(&store, actor, limit, TAKE).await.unwrap().allowed);
        }
        for text in ["inf", "nan", "0x10", "1e3", " 1", "1.5", ""] {
            server.cli(&["SET", key, text]);
            assert!(one(&store, "lost", limit, LOOK).await.is_err(), "{text:?} is no number of credits");
        }
    });
}

/// Regression test: servers that used their own clocks would grant the difference between the clocks at each turn.
#[test]
fn servers_with_different_clocks_share_a_bucket_exactly() {
    let server = RedisServer::start();
    let stores = [(); 2].map(|()| open(vec![server.url()]));
    let kinds = Kind::ALL.into_iter().filter(|kind| *kind != Kind::Concurrency);
    let limits = kinds.map(|kind| Limit::new(kind, 5, 5, 6000 * SECOND).unwrap());
    wait(async {
        let now = Clock::system().now();
        let clocks = [now, now.plus(10_000 * SECOND)];
        for limit in limits {
            let mut allowed = 0;
            for turn in 0..20 {
                let hit = [("clocks", limit, TAKE)];
                let outcome = apply_at(&stores[turn % 2], clocks[turn % 2], &hit).await.remove(0).unwrap();
                allowed += u64::from(outcome.allowed);
                assert!(outcome.reset_ns <= 6000 * SECOND, "{limit:?}: {outcome:?}");
            }
            assert_eq!(allowed, 5, "{limit:?}");
        }
    });
}

#[test]
fn buttons_divvy_and_divvy_together_take_each_credit_once() {
    const HITS: u64 = 300;
    let server = RedisServer::start();
    let key = "divvy:method=GET path=/x:both:1000:600";
    server.cli(&["SETEX", key, "600", "1000"]);
    let original = std::thread::scope(|scope| {
        let original = scope.spawn(|| server.pipe(&format!("GET \"{key}\"\nDECR \"{key}\"\n").repeat(HITS as usize)));
        let store = open(vec![server.url()]);
        wait(async {
            for _ in 0..HITS {
                assert!(one(&store, "both", window(1000, 600 * SECOND), TAKE).await.unwrap().allowed);
            }
        });
        original.join().unwrap()
    });
    assert_eq!(original.lines().count() as u64, 2 * HITS);
    assert_eq!(server.cli(&["GET", key]), (1000 - 2 * HITS).to_string());
}

#[test]
fn batch_is_one_round_trip_for_every_algorithm() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port);
    let store = open(vec![proxy.url()]);
    let leaky = Limit::LeakyBucket(LeakyBucket::new(50, 5, SECOND).unwrap());
    let log = Limit::SlidingLog(SlidingLog::new(50, SECOND).unwrap());
    let hits: Vec<_> = [window(50, SECOND), tokens(50), leaky, log]
        .into_iter()
        .flat_map(|limit| [("a", limit, TAKE), ("b", limit, TAKE), ("a", limit, TAKE)])
        .collect();
    // A single runtime, and therefore a single connection.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        // Sends the connection's handshake and the scripts.
        apply(&store, &hits).await;
        let before = proxy.round_trips();
        for _ in 0..10 {
            assert!(apply(&store, &hits).await.iter().all(Result::is_ok));
        }
        assert_eq!(proxy.round_trips() - before, 10);
    });
}

#[test]
fn listing_is_invalid_after_redis_was_replaced() {
    let (mut server, store) = connected();
    wait(async {
        let limit = window(5, 600 * SECOND);
        let actors: Vec<_> = (0..100).map(|number| number.to_string()).collect();
        apply(&store, &actors.iter().map(|actor| (actor.as_str(), limit, TAKE)).collect::<Vec<_>>()).await;
        let next = page(&store, limit, None, 10).await.unwrap().next;
        assert!(page(&store, limit, next.clone(), 10).await.is_ok());
        assert_eq!(server.cli(&["SAVE"]), "OK");
        server.kill();
        server.restart();
        recover(&store, limit).await;
        let error = page(&store, limit, next, 10).await.unwrap_err();
        assert!(matches!(error, StoreError::InvalidCursor(_)), "its order is another one now: {error}");
        assert!(page(&store, limit, None, 10).await.is_ok());
    });
}

#[test]
fn other_algorithms_have_their_own_keys_that_expire() {
    let (server, store) = connected();
    wait(async {
        let limit = Limit::TokenBucket(TokenBucket::new(3, 1, 10 * SECOND).unwrap());
        let outcomes = apply(&store, &[("a", limit, take(1)), ("a", limit, take(2)), ("a", limit, take(1))]).await;
        let allowed: Vec<_> = outcomes.into_iter().map(|outcome| outcome.unwrap().allowed).collect();
        assert_eq!(allowed, [true, true, false]);
        let keys = server.cli(&["--raw", "EVAL", "return redis.call('KEYS', 'divvy.token-bucket:*')", "0"]);
        assert!(keys.starts_with("divvy.token-bucket:") && keys.lines().count() == 1, "{keys}");
        let ttl: i64 =
            server.cli(&["EVAL", "return redis.call('PTTL', redis.call('RANDOMKEY'))", "0"]).parse().unwrap();
        assert!((30_000..=40_000).contains(&ttl), "{ttl}: three refills, and the grace between clocks");
        server.cli(&["EVAL", "return redis.call('SET', redis.call('RANDOMKEY'), 'abc')", "0"]);
        let error = one(&store, "a", limit, TAKE).await.unwrap_err().to_string();
        assert!(error.contains("the key does not hold a state of this algorithm"), "{error}");
        assert!(one(&store, "a", limit, Action::Forget).await.unwrap().allowed);
        assert_eq!(one(&store, "a", limit, TAKE).await.unwrap().left, 2, "forgotten, though it was unreadable");
        // An operator might have set this value by hand.
        server.cli(&["EVAL", "return redis.call('SET', redis.call('RANDOMKEY'), '0005 2 0007')", "0"]);
        assert!(one(&store, "a", limit, LOOK).await.unwrap().allowed);
    });
}

/// Sending the script with each call, 12 kB each, would exceed the amount that Redis accepts within the timeout.
#[test]
fn lost_script_is_sent_once_per_batch() {
    let (server, store) = connected();
    let received = || server.info("stats", "total_net_input_bytes");
    wait(async {
        let actors: Vec<_> = (0..500).map(|number| number.to_string()).collect();
        let hits: Vec<_> = actors.iter().map(|actor| (actor.as_str(), tokens(9), TAKE)).collect();
        apply(&store, &hits).await;
        server.cli(&["SCRIPT", "FLUSH"]);
        let before = received();
        assert!(apply(&store, &hits).await.into_iter().all(|outcome| outcome.unwrap().left == 7));
        assert!(received() - before < 1_000_000, "{} bytes", received() - before);
    });
}

/// How much longer than its timeout a batch may take on a machine that runs all tests at once.
const SLACK: Duration = Duration::from_millis(700);

/// Redis may have carried the batch out, so it is not sent again.
#[test]
fn hit_whose_answer_is_lost_counts_once() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port);
    let store = open(vec![proxy.url()]);
    wait(async {
        let limit = window(10, 600 * SECOND);
        assert_eq!(one(&store, "a", limit, TAKE).await.unwrap().left, 9);
        proxy.lose_next_answer();
        assert!(one(&store, "a", limit, TAKE).await.is_err());
        assert_eq!(recover(&store, limit).await.left, 7);
    });
}

/// Returns the future's result, which must be available within the store's timeout.
pub async fn timed<T>(future: impl Future<Output = T>) -> T {
    let start = Instant::now();
    let result = future.await;
    assert!(start.elapsed() < TIMEOUT + SLACK, "answered after {:?}", start.elapsed());
    result
}

/// Sends hits until one is answered, and returns its outcome.
pub async fn recover(store: &RedisStore, limit: Limit) -> Outcome {
    for _ in 0..400 {
        match timed(one(store, "a", limit, TAKE)).await {
            Ok(outcome) => return outcome,
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
    panic!("Redis answers, but the store does not find it again")
}
