//! Servers on each of the stores.

use super::redis::{RedisCluster, RedisServer};
use super::sentinel::{MASTER, SENTINEL_PASSWORD, Sentinels};
use super::{RulesFile, Server};

/// Runs a test on a server for each store: memory, RocksDB, and one Redis.
pub fn on_each_store(rules: &RulesFile, test: impl Fn(&Server)) {
    let data = tempfile::tempdir().unwrap();
    Server::on_each_store(rules.path(), data.path()).iter().for_each(&test);
    let redis = RedisServer::start();
    test(&Server::start(&[rules.path(), "--store", "redis", "--redis-url", &redis.url()]));
}

/// Runs a test on a server for each store, started with these arguments: those of [`on_each_store`], a Redis behind
/// Sentinels, and a cluster.
pub fn on_every_store(rules: &str, args: &[&str], test: impl Fn(&str, &Server)) {
    let rules = RulesFile::ini(rules);
    let serve = |store: &[&str]| Server::start(&[&[rules.path()], store, args].concat());
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
        let redis = ["--store", "redis", "--redis-timeout", "20000", "--redis-url", &urls];
        test(store, &serve(&[&redis[..], more].concat()));
    }
}
