//! Expired exceptions, and the store that keeps them.

use super::*;
use crate::register::FORGOTTEN_AT_ONCE;
use crate::register::memory::Exceptions;
use crate::store::{Backend, MemoryStore};
use crate::tests::parse_rules;

const RULES: &str = "
[user=*]; creditLimit = 5; resetSeconds = 60; actorField = user; label = user
[default]; creditLimit = 0
";
const LASTS: Duration = Duration::from_secs(60);

fn limiter_on(store: Backend) -> Limiter {
    crate::tests::limiter_on(store, parse_rules(RULES))
}

fn limit_of(actor: &str) -> ExceptionTarget<'_> {
    ExceptionTarget::limit("user", actor)
}

async fn set(limiter: &Limiter, actor: &str) {
    let terms = ExceptionTerms { credits: Some(7), lasts: Some(LASTS), ..ExceptionTerms::default() };
    limiter.set_exception(limit_of(actor), terms, &Scope::EVERYTHING).await.unwrap();
}

/// Returns a time when every limit set so far has expired.
fn later(limiter: &Limiter) -> Timestamp {
    limiter.now().plus(2 * LASTS.as_secs() * NANOS_PER_SECOND)
}

/// Drops expired limits from memory.
fn drop_all(limiter: &Limiter) {
    limiter.exceptions.drop_from_memory(Exceptions::ALL, &limiter.store, later(limiter));
}

#[tokio::test]
async fn expired_limits_are_dropped_in_bounded_steps() {
    let limiter = limiter_on(Backend::Memory(MemoryStore::default()));
    for number in 0..2 * FORGOTTEN_AT_ONCE + 5 {
        set(&limiter, &number.to_string()).await;
    }
    let mut left = Vec::new();
    for _ in 0..3 {
        drop_all(&limiter);
        left.push(limiter.exceptions.memory.len(Class::Limits));
    }
    assert_eq!(left, [FORGOTTEN_AT_ONCE + 5, 5, 0]);
    let mut over = Vec::new();
    while limiter.exceptions.forget_some(&limiter.store).await.unwrap() {
        over.push(limiter.exceptions.over.lock().len());
    }
    assert_eq!(over, [FORGOTTEN_AT_ONCE + 5, 5, 0]);
}

#[tokio::test]
async fn flood_of_one_class_leaves_the_room_of_the_other() {
    let limiter = limiter_on(Backend::Memory(MemoryStore::default())).with_max_actor_limits(2).with_max_overrides(3);
    let terms = ExceptionTerms { credits: Some(7), ..ExceptionTerms::default() };
    for (kind, max) in [(ExceptionKind::Limit, 2), (ExceptionKind::Block, 3)] {
        let mut set = 0;
        for actor in ["a", "b", "c", "d", "e"] {
            let of = ExceptionTarget { kind, ..limit_of(actor) };
            set += usize::from(limiter.set_exception(of, terms, &Scope::EVERYTHING).await.is_ok());
        }
        assert_eq!(set, max, "{kind:?}");
    }
    let of = ExceptionTarget { kind: ExceptionKind::Allow, ..limit_of("a") };
    assert!(limiter.set_exception(of, terms, &Scope::EVERYTHING).await.is_err(), "blocks and allows share a bound");
    assert!(limiter.set_exception(limit_of("a"), ExceptionTerms::default(), &Scope::EVERYTHING).await.is_err());
}

#[cfg(feature = "rocksdb")]
mod on_disk {
    use super::*;
    use crate::store::{ExceptionCursor, RocksOptions, RocksStore, Store};

    /// Returns the actors whose limits are in the store.
    async fn stored(limiter: &Limiter) -> Vec<String> {
        let page = limiter.store.follow_exceptions(ExceptionCursor::Nothing, limiter.now()).await.unwrap();
        page.changes.into_iter().map(|change| change.actor).collect()
    }

    #[tokio::test]
    async fn limit_that_is_set_again_during_the_cleanup_stays() {
        let dir = tempfile::tempdir().unwrap();
        let store = RocksStore::open(dir.path(), RocksOptions::default()).unwrap();
        let limiter = limiter_on(Backend::Rocks(store));
        for actor in ["a", "b", "c", "d"] {
            set(&limiter, actor).await;
        }
        drop_all(&limiter);
        assert_eq!(
            (limiter.exceptions.memory.len(Class::Limits), stored(&limiter).await),
            (0, ["a", "b", "c", "d"].map(Into::into).into())
        );
        set(&limiter, "b").await;
        limiter
            .set_exception(
                limit_of("c"),
                ExceptionTerms { credits: Some(9), ..ExceptionTerms::default() },
                &Scope::EVERYTHING,
            )
            .await
            .unwrap();
        assert!(!limiter.remove_exception(limit_of("d"), None, &Scope::EVERYTHING).await.unwrap());
        assert!(limiter.exceptions.forget_some(&limiter.store).await.unwrap());
        assert_eq!(stored(&limiter).await, ["b", "c"]);
        assert_eq!(limiter.exception_of(limit_of("c"), &Scope::EVERYTHING).unwrap().unwrap().credits, Some(9));
        drop_all(&limiter);
        assert!(limiter.exceptions.forget_some(&limiter.store).await.unwrap());
        assert!(!limiter.exceptions.forget_some(&limiter.store).await.unwrap());
        assert_eq!(stored(&limiter).await, ["c"]);
        limiter.store.close().await.unwrap();
    }
}
