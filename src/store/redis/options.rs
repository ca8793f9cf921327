//! What the operator says about Redis.

use std::time::Duration;

use super::wire::RedisTls;

/// How long a batch waits for Redis unless the operator says otherwise.
pub const DEFAULT_REDIS_TIMEOUT: Duration = Duration::from_millis(500);

/// Which Redis, and how long to wait for it.
#[derive(Debug, Clone)]
pub struct RedisOptions {
    /// `redis://`, `rediss://` (TLS) or `redis+unix://` with user, password and database where needed. One: that server.
    /// Several: nodes of a cluster, or, with a master's name, sentinels.
    pub urls: Vec<String>,
    pub sentinel: Option<RedisSentinel>,
    pub tls: RedisTls,
    /// The longest that a batch waits for its answers, reconnecting included.
    pub timeout: Duration,
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self { urls: Vec::new(), sentinel: None, tls: RedisTls::default(), timeout: DEFAULT_REDIS_TIMEOUT }
    }
}

/// What sentinels are asked. User, password and database of the URLs are the master's.
#[derive(Debug, Clone)]
pub struct RedisSentinel {
    /// The name under which they know the master.
    pub master: String,
    /// Their own `password` or `user:password`, if they demand one.
    pub auth: Option<String>,
}

impl RedisOptions {
    /// Whether they name the nodes of a cluster, rather than one server or sentinels.
    pub fn are_of_a_cluster(&self) -> bool {
        self.urls.len() > 1 && self.sentinel.is_none()
    }
}
