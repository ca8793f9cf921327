//! Kills divvy and Redis while clients work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rand::RngExt;
use rand::rngs::Xoshiro256PlusPlus as Rng;

use super::redis::{RedisServer, lasting_port};
use super::{RulesFile, Server};

/// Kills divvy at a random moment, and returns the server that `restart` starts. `work` starts each of four clients
/// with a seed. They end when the server is gone; the flag is never set.
pub fn kill_divvy_under<T>(
    server: Server,
    rng: &mut Rng,
    work: impl Fn(&Arc<AtomicBool>, &Server, u64) -> JoinHandle<T>,
    restart: impl FnOnce() -> Server,
) -> (Server, Vec<JoinHandle<T>>) {
    let never = Arc::new(AtomicBool::new(false));
    let clients = (0..4).map(|_| work(&never, &server, rng.random())).collect();
    thread::sleep(Duration::from_millis(rng.random_range(20..250)));
    server.kill();
    (restart(), clients)
}

/// Starts a Redis that keeps everything that it acknowledges, and a divvy in front of it. divvy waits for Redis's disk,
/// even if it is busy, because a late answer must not look like a lost one.
pub fn divvy_on_durable_redis(rules: &RulesFile, flags: &[&str]) -> (RedisServer, Server) {
    let redis = RedisServer::start_with(lasting_port(), &["--appendonly", "yes", "--appendfsync", "always"]);
    let url = redis.url();
    let serve = [rules.path(), "--store", "redis", "--redis-url", &url, "--redis-timeout", "20000"];
    let server = Server::start(&[&serve[..], flags].concat());
    (redis, server)
}

/// Kills Redis at a random moment, and starts it again. `work` starts each of four clients with a seed. They end soon
/// after the flag is set.
pub fn kill_redis_under<T>(
    redis: &mut RedisServer,
    rng: &mut Rng,
    work: impl Fn(&Arc<AtomicBool>, u64) -> JoinHandle<T>,
) -> Vec<JoinHandle<T>> {
    let stop = Arc::new(AtomicBool::new(false));
    let clients = (0..4).map(|_| work(&stop, rng.random())).collect();
    thread::sleep(Duration::from_millis(rng.random_range(20..250)));
    redis.kill();
    thread::sleep(Duration::from_millis(20));
    stop.store(true, Relaxed);
    redis.restart();
    clients
}
