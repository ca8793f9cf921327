//! The operator's options for Redis.

use std::time::Duration;

use super::wire::RedisTls;

/// Default timeout of a batch.
pub const DEFAULT_REDIS_TIMEOUT: Duration = Duration::from_millis(500);

/// The options of the store.
#[derive(Debug, Clone)]
pub struct RedisOptions {
    /// `redis://`, `rediss://` (TLS) or `redis+unix://` with user, password and database where needed. One URL names a server.
    /// Several URLs name nodes of a cluster, or sentinels if `sentinel` is given.
    pub urls: Vec<String>,
    /// Settings of the sentinels. `None` if the URLs name servers.
    pub sentinel: Option<RedisSentinel>,
    /// Certificates, for URLs with TLS.
    pub tls: RedisTls,
    /// Maximum time that a batch waits for its replies, including reconnecting.
    pub timeout: Duration,
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self { urls: Vec::new(), sentinel: None, tls: RedisTls::default(), timeout: DEFAULT_REDIS_TIMEOUT }
    }
}

/// The settings of sentinels. User, password and database in the URLs are for the master.
#[derive(Debug, Clone)]
pub struct RedisSentinel {
    /// The name of the master in the sentinels' configuration.
    pub master: String,
    /// The sentinels' own `password` or `user:password`, if they require one.
    pub auth: Option<String>,
}

impl RedisOptions {
    /// Returns whether the URLs name nodes of a cluster, and not one server or sentinels.
    pub fn are_of_a_cluster(&self) -> bool {
        self.urls.len() > 1 && self.sentinel.is_none()
    }
}
