//! Keys of buckets.
//!
//! A key consists of `version, algorithm, space, name, limit, actor`. The fields that identify the rule come first, so
//! one rule's buckets are one range of keys, and a changed limit has new buckets. Every field but the last has a
//! self-delimiting encoding, so no two buckets share a key.

mod parts;
mod prefix;
mod space;

pub use self::parts::{KeyParts, decode, split_limit, split_stored_limit};
pub use self::prefix::{Prefix, write_client_key};
pub use self::space::Space;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::version::VERSION;
    use divvy_core::algorithm::{CountBasis, FixedWindow, Kind, LeakyBucket, Limit, SlidingWindow, TokenBucket};
    use proptest::prelude::*;

    fn token_bucket() -> impl Strategy<Value = Limit> {
        (1..400u64, 1..400u64, 1..400u64).prop_map(|(capacity, refill, interval)| {
            Limit::TokenBucket(TokenBucket::new(capacity, refill, interval).unwrap())
        })
    }

    fn client_key(space: Space, limit: &Limit, key: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        write_client_key(space, limit, key, &mut out);
        out
    }

    #[test]
    fn named_counter_has_one_key_for_limits_that_differ_in_credits() {
        let fields = ["user".to_owned()];
        let key = |limit: Limit, refill| {
            let mut key = Vec::new();
            Prefix::named(Space::Named, "usage", &fields, None, &limit, refill).write_key("a", &mut key);
            let decoded = decode(&key).unwrap();
            assert_eq!((decoded.space, decoded.actor), (Space::Named, b"a".as_slice()));
            let (prefix, read) = split_stored_limit(&key).unwrap();
            assert_eq!(
                (prefix, read.kind(), read.count_basis()),
                (&key[..key.len() - 1], limit.kind(), CountBasis::Used)
            );
            key
        };
        let fixed = |credits, nanos| Limit::FixedWindow(FixedWindow::new(credits, nanos).unwrap());
        let sliding = |credits, nanos| Limit::SlidingWindow(SlidingWindow::new(credits, nanos).unwrap());
        let tokens = |credits, nanos| Limit::TokenBucket(TokenBucket::new(credits, credits, nanos).unwrap());
        let leaky = |capacity, count, nanos| Limit::LeakyBucket(LeakyBucket::new(capacity, count, nanos).unwrap());
        assert_eq!(key(fixed(5, 60), None), key(fixed(6, 60), None));
        assert_eq!(key(sliding(5, 60), None), key(sliding(6, 60), None));
        assert_eq!(key(tokens(5, 60), None), key(tokens(6, 60), None), "a refill brings all of them");
        assert_eq!(key(leaky(5, 5, 60), None), key(leaky(7, 6, 60), None));
        let keys = [
            key(fixed(5, 60), None),
            key(fixed(5, 61), None),
            key(sliding(5, 60), None),
            key(tokens(5, 60), None),
            key(tokens(5, 60), Some(5)),
            key(tokens(5, 61), None),
            key(leaky(5, 5, 60), None),
        ];
        let different: std::collections::HashSet<_> = keys.iter().collect();
        assert_eq!(different.len(), keys.len());
    }

    #[test]
    fn spaces_do_not_share_keys() {
        let limit = Limit::LeakyBucket(LeakyBucket::new(9, 4, 70).unwrap());
        let mut rule = Vec::new();
        Prefix::new(Space::Rule, [], &limit).write_key("key", &mut rule);
        let [tokens, throttle] = [Space::TokenBucket, Space::Throttle].map(|space| client_key(space, &limit, b"key"));
        assert!(rule != tokens && tokens != throttle && throttle != rule);
    }

    fn any_limit() -> impl Strategy<Value = Limit> {
        let kinds: Vec<_> = Kind::ALL.into_iter().filter(|kind| *kind != Kind::Concurrency).collect();
        (prop::sample::select(kinds), 1..1_000u64, 1..u64::MAX, 1..u64::MAX)
            .prop_map(|(kind, credits, refill, nanos)| Limit::new(kind, credits, refill, nanos).unwrap())
    }

    proptest! {
        #[test]
        fn key_reads_back(
            limit in any_limit(),
            pairs in prop::collection::vec((".{0,200}", ".{0,20}"), 0..5),
            actor in ".{0,20}",
        ) {
            let mut key = Vec::new();
            let borrowed = pairs.iter().map(|(key, value)| (key.as_str(), value.as_str()));
            let mut sorted: Vec<_> = borrowed.clone().collect();
            sorted.sort_unstable();
            Prefix::new(Space::Rule, borrowed, &limit).write_key(&actor, &mut key);
            let decoded = KeyParts { space: Space::Rule, pairs: sorted, actor: actor.as_bytes() };
            prop_assert_eq!(decode(&key), Some(decoded));
            let without_actor = &key[..key.len() - actor.len()];
            prop_assert_eq!(split_limit(&key), Some((without_actor, Some(limit))));
            prop_assert_eq!(split_stored_limit(&key), Some((without_actor, limit)));
        }

        #[test]
        fn client_key_reads_back(limit in any_limit(), actor in prop::collection::vec(any::<u8>(), 0..20)) {
            let key = client_key(Space::Throttle, &limit, &actor);
            prop_assert_eq!(decode(&key), Some(KeyParts { space: Space::Throttle, pairs: vec![], actor: &actor }));
        }

        #[test]
        fn decoding_foreign_keys_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let mut key = vec![VERSION, 1, 0];
            key.extend_from_slice(&bytes);
            if let Some(decoded) = decode(&key) {
                prop_assert!(bytes.ends_with(decoded.actor));
            }
        }

        #[test]
        fn two_buckets_have_two_keys(
            (one, other) in (token_bucket(), token_bucket()),
            (key, another) in (prop::collection::vec(any::<u8>(), 0..4), prop::collection::vec(any::<u8>(), 0..4)),
        ) {
            let same = client_key(Space::TokenBucket, &one, &key) == client_key(Space::TokenBucket, &other, &another);
            prop_assert_eq!(same, one == other && key == another);
        }
    }
}
