//! Errors in the operator's options for Redis.

use std::io;
use std::path::PathBuf;

use redis::RedisError;

/// The reason why no store can be made of the options.
#[derive(Debug, thiserror::Error)]
pub enum InvalidRedisTarget {
    #[error("no Redis URL is given; write one such as redis://127.0.0.1:6379")]
    NoUrl,
    // The URL itself may hold a password, so it is not repeated.
    #[error(
        "Redis URL {number} is not valid: {reason}; write redis://[user:password@]host:port[/database], rediss:// for TLS, or redis+unix:///path"
    )]
    Url { number: usize, reason: RedisError },
    #[error("the Redis URLs do not fit together: {0}")]
    Mixed(&'static str),
    #[error("Redis URL {number} does not use TLS, so certificates have no effect: write rediss://, or leave them out")]
    NoTls { number: usize },
    #[error("cannot read {}: {reason}", path.display())]
    Unreadable { path: PathBuf, reason: io::Error },
    #[error("{} contains no {kind} in PEM format (a section that begins with -----BEGIN)", path.display())]
    NotPem { path: PathBuf, kind: &'static str },
    #[error("cannot use the certificates for Redis: {0}")]
    Certificates(RedisError),
    #[error("cannot create a client for these sentinels: {0}")]
    Sentinel(RedisError),
}
