//! Listings of a rule's buckets, for every store that supports them.

use divvy::algorithm::{Kind, Limit};
use divvy::clock::Clock;
use divvy::store::key::{Prefix, Space};
use divvy::store::{Action, Backend, Batch, Listing, Store};

use crate::conformance::{StoreFixture, TAKE, limit, memory, redis, redis_cluster, rocks, rocks_evicting, wait};

const HOUR: u64 = 3600 * 1_000_000_000;

/// The pairs of a rule, with characters that are special in globs and in Redis keys.
const PAIRS: [(&str, &str); 2] = [("path", "/a*[b]?\\c"), ("listing", "yes:no")];

fn limits() -> impl Iterator<Item = Limit> {
    let kinds = Kind::ALL.into_iter().filter(|kind| *kind != Kind::Concurrency);
    kinds.map(|kind| Limit::new(kind, 5, 5, HOUR).unwrap())
}

async fn act(store: &Backend, clock: &Clock, limit: Limit, action: Action, actors: &[String]) {
    let prefix = Prefix::new(Space::Rule, PAIRS, &limit);
    let mut batch = Batch::default();
    batch.begin(clock.now());
    for actor in actors {
        batch.push(limit, action, batch.now(), |key| prefix.write_key(actor, key));
    }
    store.apply(&mut batch).await;
    assert!((0..actors.len()).all(|index| batch.outcome(index).unwrap().allowed));
}

/// Returns every bucket of the rule once, sorted: its actor, and the credits left.
async fn listed(store: &Backend, clock: &Clock, limit: Limit, count: usize) -> Vec<(String, u64)> {
    let mut found = Vec::new();
    let mut cursor = None;
    loop {
        let prefix = Prefix::new(Space::Rule, PAIRS, &limit).as_bytes().into();
        let page = store.list(Listing { prefix, limit, cursor, count, now: clock.now() }).await.unwrap();
        for bucket in page.buckets {
            assert!(bucket.outcome.reset_ns > 0 && bucket.outcome.reset_ns <= HOUR, "{bucket:?}");
            found.push((String::from_utf8(bucket.actor).unwrap(), bucket.outcome.left));
        }
        cursor = page.next;
        if cursor.is_none() {
            found.sort();
            found.dedup();
            return found;
        }
    }
}

fn check_listing_of_one_rule(StoreFixture { store, dir: _dir, .. }: StoreFixture) {
    let clock = Clock::system();
    let actors: Vec<_> = ["", "a", "a:b", "é", "*"].into_iter().map(str::to_owned).chain(named(40)).collect();
    wait(async {
        for limit in limits() {
            act(&store, &clock, limit, TAKE, &actors).await;
        }
        for limit in limits() {
            act(&store, &clock, limit, TAKE, &actors[..2]).await;
            let mut expected: Vec<_> = actors.iter().map(|actor| (actor.clone(), 4)).collect();
            expected.iter_mut().take(2).for_each(|(_, left)| *left = 3);
            expected.sort();
            for count in [7, 1_000] {
                assert_eq!(listed(&store, &clock, limit, count).await, expected, "{limit:?} by {count}");
            }
            act(&store, &clock, limit, Action::Forget, &actors[1..]).await;
            assert_eq!(listed(&store, &clock, limit, 7).await, [(String::new(), 3)], "{limit:?}");
            act(&store, &clock, limit, Action::Forget, &actors[..1]).await;
            assert_eq!(listed(&store, &clock, limit, 7).await, [], "{limit:?}");
        }
    });
}

fn named(count: usize) -> impl Iterator<Item = String> {
    (0..count).map(|number| format!("actor-{number}"))
}

/// Counters in memory, on disk, and in a cluster, shard by shard.
#[test]
fn every_store_lists_every_bucket_once() {
    for open in [memory, rocks, rocks_evicting, redis, redis_cluster] {
        check_listing_of_one_rule(open());
    }
}

#[test]
fn foreign_cursor_is_rejected() {
    for StoreFixture { store, dir: _dir, .. } in [memory(), rocks(), redis(), redis_cluster()] {
        let limit = limit(5, 60);
        let prefix = Prefix::new(Space::Rule, PAIRS, &limit).as_bytes().into();
        let cursor = Some("no cursor".to_owned());
        let listing = Listing { prefix, limit, cursor, count: 10, now: Clock::system().now() };
        let error = wait(store.list(listing)).unwrap_err().to_string();
        assert!(error.contains("\"no cursor\" is not a cursor"), "{error}");
    }
}

#[test]
fn expired_buckets_are_not_listed_and_end_no_page() {
    for StoreFixture { store, dir: _dir, .. } in [memory(), rocks()] {
        let clock = Clock::system();
        let limit = limit(5, 1);
        wait(async {
            let prefix = Prefix::new(Space::Rule, PAIRS, &limit);
            let mut batch = Batch::default();
            batch.begin(clock.now());
            for number in 0..25_000 {
                batch.push(limit, TAKE, batch.now(), |key| prefix.write_key(number.to_string(), key));
            }
            store.apply(&mut batch).await;
            // The listing's time is two seconds later.
            let now = clock.now().plus(2_000_000_000);
            let (mut cursor, mut pages) = (None, 0);
            loop {
                let listing = Listing { prefix: prefix.as_bytes().into(), limit, cursor, count: 10, now };
                let page = store.list(listing).await.unwrap();
                assert_eq!(page.buckets, []);
                pages += 1;
                cursor = page.next;
                if cursor.is_none() {
                    break;
                }
            }
            assert_eq!(pages, 3, "a page looks at 10,000 buckets");
        });
    }
}
