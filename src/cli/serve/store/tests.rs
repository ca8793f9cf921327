use clap::{CommandFactory, FromArgMatches, Parser};

use super::*;

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    store: StoreArgs,
}

/// The variable that Kubernetes sets for a Service named redis.
const LINK: (&str, &str) = ("REDIS_PORT", "tcp://10.0.0.1:6379");

fn choose(flags: &str, environment: &[(&str, &str)]) -> Result<String, String> {
    let words = ["divvy"].into_iter().chain(flags.split_whitespace());
    let given = Flags::command().try_get_matches_from(words).map_err(|error| error.to_string())?;
    let flags = Flags::from_arg_matches(&given).map_err(|error| error.to_string())?;
    let variable = |name: &str| environment.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
    flags.store.choose(&given, variable).map(|choice| choice.describe()).map_err(|error| error.to_string())
}

#[cfg(feature = "rocksdb")]
#[test]
fn flags_and_variables_select_the_store() {
    let redis = |place: &str| format!("redis at {place} (while it fails, hits are answered with an error)");
    let host = ("REDIS_HOST", "cache");
    let cases = [
        ("", vec![], "rocksdb in ./divvy-data (durability wal)".to_owned()),
        ("--durability lazy --data-dir d", vec![], "rocksdb in d (durability lazy)".to_owned()),
        ("", vec![host], redis("redis://cache:6379")),
        ("", vec![("REDIS_PORT", "7000")], redis("redis://127.0.0.1:7000")),
        ("", vec![host, ("REDIS_PORT", "7000")], redis("redis://cache:7000")),
        ("", vec![("REDIS_HOST", "::1")], redis("redis://[::1]:6379")),
        ("", vec![("REDIS_HOST", ""), ("REDIS_PORT", "")], "rocksdb in ./divvy-data (durability wal)".to_owned()),
        ("", vec![LINK], "rocksdb in ./divvy-data (durability wal)".to_owned()),
        ("--store memory", vec![LINK], "memory (counters are lost when the server stops)".to_owned()),
        ("--store memory", vec![host, LINK], "memory (counters are lost when the server stops)".to_owned()),
        ("--store redis", vec![LINK], redis("redis://127.0.0.1:6379")),
        ("--redis-url redis://a:1", vec![host, LINK], redis("redis://a:1")),
        ("--redis-url redis://a:1", vec![("REDIS_PORT", "many")], redis("redis://a:1")),
        ("--store rocksdb", vec![host], "rocksdb in ./divvy-data (durability wal)".to_owned()),
        ("--store memory", vec![host], "memory (counters are lost when the server stops)".to_owned()),
        ("--store redis", vec![], redis("redis://127.0.0.1:6379")),
        ("--store redis", vec![host], redis("redis://cache:6379")),
        ("--redis-url redis://u:pw@a:1", vec![host], redis("redis://u:***@a:1")),
        (
            "--redis-url redis://a:1,redis://b:2 --redis-url redis://c:3",
            vec![],
            redis("redis://a:1, redis://b:2, redis://c:3"),
        ),
        ("--redis-url redis://a:1 --redis-sentinel-master m", vec![], redis("master m by sentinels redis://a:1")),
    ];
    for (flags, environment, expected) in cases {
        assert_eq!(choose(flags, &environment), Ok(expected), "{flags} {environment:?}");
    }
}

#[cfg(feature = "rocksdb")]
#[test]
fn flags_of_another_store_are_rejected() {
    let refused = [
        ("--store memory --redis-url redis://a", "--redis-url (or its DIVVY_ variable) is for the redis store, but"),
        (
            "--on-store-error deny",
            "--on-store-error (or its DIVVY_ variable) is for the redis store, but the store is rocksdb",
        ),
        ("--denial-cache 0", "leave it out, or choose --store redis"),
        ("--store redis --durability sync", "--durability (or its DIVVY_ variable) is for the rocksdb store, but"),
        (
            "--store redis --data-dir d",
            "--data-dir (or its DIVVY_ variable) is for the rocksdb store, but the store is redis",
        ),
        ("--redis-ca ca.pem", "--redis-ca (or its DIVVY_ variable) is for the redis store, but the store is rocksdb"),
        ("--store redis --redis-cert c.pem", "--redis-key <FILE>"),
        ("--store redis --redis-sentinel-auth pw", "--redis-sentinel-master <NAME>"),
        ("--store redis --redis-timeout 0", "must be from 1ms to"),
        (
            "--redis-min-replicas-ack all",
            "--redis-min-replicas-ack (or its DIVVY_ variable) is for the redis store, but",
        ),
        ("--store redis --redis-min-replicas-ack 0", "must be a whole number from 1 to 1000, or all"),
        ("--store redis --redis-ack-timeout 50ms", "--redis-min-replicas-ack <N|all>"),
    ];
    for (flags, expected) in refused {
        let error = choose(flags, &[]).unwrap_err();
        assert!(error.contains(expected), "{flags}: {error}");
    }
    assert!(choose("", &[("REDIS_HOST", "cache"), LINK]).unwrap_err().contains("REDIS_PORT is \"tcp://"));
    assert!(choose("", &[("REDIS_PORT", "many")]).unwrap_err().contains("REDIS_PORT is \"many\""));
}

#[test]
fn requested_failure_policy_is_selected() {
    for (policy, expected) in [("deny", "denied"), ("allow", "allowed"), ("local", "counted locally")] {
        let described = choose(&format!("--store redis --on-store-error {policy}"), &[]).unwrap();
        assert!(described.ends_with(&format!("hits are {expected})")), "{described}");
    }
}

#[cfg(not(feature = "rocksdb"))]
#[test]
fn build_without_rocksdb_defaults_to_memory_and_rejects_rocksdb() {
    let memory = "memory (counters are lost when the server stops)".to_owned();
    assert_eq!(choose("", &[LINK]), Ok(memory));
    assert!(choose("--redis-url redis://a:1", &[]).unwrap().starts_with("redis at redis://a:1"));
    let error = choose("--store rocksdb --data-dir d", &[]).unwrap_err();
    assert!(error.contains("built without RocksDB") && error.contains("feature `rocksdb`"), "{error}");
    let error = choose("--data-dir d", &[]).unwrap_err();
    assert!(error.contains("for the rocksdb store, but the store is memory"), "{error}");
}

#[test]
fn only_passwords_are_masked() {
    let shown = [
        ("redis://127.0.0.1:6379/2", "redis://127.0.0.1:6379/2"),
        ("redis://:secret@cache:6379", "redis://:***@cache:6379"),
        ("rediss://ann:secret@cache:6380/1", "rediss://ann:***@cache:6380/1"),
        ("redis://ann:se@cr:et@cache", "redis://ann:***@cache"),
        ("redis://ann@cache", "redis://ann@cache"),
        ("redis://ann:12#cret@cache", "***@cache"),
        ("redis://ann:#cret@cache:6379", "***@cache:6379"),
        ("redis://ann:1/cret@cache", "***@cache"),
        ("redis+unix:///run/redis.sock?db=1&pass=secret", "redis+unix:///run/redis.sock?db=1&pass=***"),
        ("ann:secret@cache", "***@cache"),
    ];
    for (url, expected) in shown {
        assert_eq!(masked(url), expected);
    }
}
