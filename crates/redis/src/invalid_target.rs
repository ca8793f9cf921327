//! Errors in the operator's options for Redis.

use std::io;
use std::path::PathBuf;

use redis::RedisError;

/// The reason why the options do not describe a store.
#[derive(Debug, thiserror::Error)]
pub enum InvalidRedisTarget {
    /// The list of URLs is empty.
    #[error("no Redis URL is given; write one such as redis://127.0.0.1:6379")]
    NoUrl,
    // The URL may contain a password, so it is not repeated.
    /// A URL cannot be parsed, or names no address.
    #[error(
        "Redis URL {number} is not valid: {reason}; write redis://[user:password@]host:port[/database], rediss:// for TLS, or redis+unix:///path"
    )]
    Url {
        /// Position in the list, from 1.
        number: usize,
        /// The parser's error, without the URL.
        reason: RedisError,
    },
    /// The URLs of a cluster's nodes contradict each other, or use features that a cluster does not have.
    #[error("the Redis URLs do not fit together: {0}")]
    Mixed(&'static str),
    /// Certificates are given, but a URL does not use TLS.
    #[error("Redis URL {number} does not use TLS, so certificates have no effect: write rediss://, or leave them out")]
    NoTls {
        /// Position in the list, from 1.
        number: usize,
    },
    /// A file cannot be read.
    #[error("cannot read {}: {reason}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        reason: io::Error,
    },
    /// A file has no section of the expected kind.
    #[error("{} contains no {kind} in PEM format (a section that begins with -----BEGIN)", path.display())]
    NotPem {
        /// The file.
        path: PathBuf,
        /// The expected content, such as "certificate".
        kind: &'static str,
    },
    /// The TLS library refuses the certificates.
    #[error("cannot use the certificates for Redis: {0}")]
    Certificates(RedisError),
    /// The client for the sentinels cannot be created.
    #[error("cannot create a client for these sentinels: {0}")]
    Sentinel(RedisError),
}
