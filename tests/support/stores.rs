//! Servers on each of the stores.

use super::Server;
use super::redis::{RedisCluster, RedisServer, on_redis};
use super::sentinel::{MASTER, SENTINEL_PASSWORD, Sentinels};

/// Runs a test on a server for each store that is no other program: memory, and RocksDB if this build has it.
pub fn on_local_stores(rules: &str, test: impl Fn(&Server)) {
    test(&Server::serving(rules, &[]));
    if cfg!(feature = "rocksdb") {
        let data = tempfile::tempdir().unwrap();
        test(&Server::serving(rules, &["--data-dir", data.path().to_str().unwrap()]));
    }
}

/// Runs a test on a server for each store, started with these arguments: memory, RocksDB, one Redis, a Redis behind Sentinels,
/// and a cluster.
pub fn on_every_store(rules: &str, args: &[&str], test: impl Fn(&str, &Server)) {
    let serve = |store: &[&str]| Server::serving(rules, &[store, args].concat());
    let data = tempfile::tempdir().unwrap();
    test("memory", &serve(&["--store", "memory"]));
    if cfg!(feature = "rocksdb") {
        test("RocksDB", &serve(&["--data-dir", data.path().to_str().unwrap()]));
    }
    let (redis, sentinels, cluster) = (RedisServer::start(), Sentinels::start(), RedisCluster::start());
    let by_sentinel = ["--redis-sentinel-master", MASTER, "--redis-sentinel-auth", SENTINEL_PASSWORD];
    for (store, urls, more) in [
        ("Redis", redis.url(), &[][..]),
        ("Sentinel", sentinels.urls(), &by_sentinel),
        ("Cluster", cluster.urls().join(","), &[]),
    ] {
        test(store, &serve(&[&on_redis(&urls), more].concat()));
    }
}
