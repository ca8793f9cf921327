//! The operator's options for Redis, certificates in files among them, and the errors in them.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use redis::{ClientTlsConfig, RedisError, TlsCertificates};

use divvy_core::regular_file;

/// Default timeout of a batch.
pub const DEFAULT_REDIS_TIMEOUT: Duration = Duration::from_millis(500);
/// Default time that replicas have to confirm a change.
pub const DEFAULT_ACK_TIMEOUT: Duration = Duration::from_millis(100);
/// Maximum size of a file. It has room for thousands of certificates.
const MAX_FILE_BYTES: u64 = 16 << 20;

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
    /// The replicas that must confirm each change before its hits are answered. `None` if they need not.
    pub acks: Option<ReplicaAcks>,
}

/// The replicas that must confirm each change.
#[derive(Debug, Clone, Copy)]
pub struct ReplicaAcks {
    /// Their number.
    pub replicas: RequiredReplicas,
    /// The time that they have. It is shorter than the batch's.
    pub timeout: Duration,
}

/// A number of replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequiredReplicas {
    /// All that the server has. It must have one, and take no writes without all of them.
    All,
    /// This number, regardless of how many the server has.
    Number(u32),
}

impl Default for RedisOptions {
    fn default() -> Self {
        let tls = RedisTls::default();
        Self { urls: Vec::new(), sentinel: None, tls, timeout: DEFAULT_REDIS_TIMEOUT, acks: None }
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

/// PEM files, for servers whose certificate is not signed by a public authority, and for servers that require client
/// certificates.
#[derive(Debug, Clone, Default)]
pub struct RedisTls {
    /// The trusted authorities, in place of the system's.
    pub ca: Option<PathBuf>,
    /// divvy's own certificate, and its private key.
    pub client: Option<(PathBuf, PathBuf)>,
}

impl RedisTls {
    /// Reads the files. Returns `None` if there are no files.
    pub fn read(&self) -> Result<Option<TlsCertificates>, InvalidRedisTarget> {
        if self.ca.is_none() && self.client.is_none() {
            return Ok(None);
        }
        let root_cert = self.ca.as_deref().map(|path| read(path, "CERTIFICATE")).transpose()?;
        let read_both = |(cert, key): &(PathBuf, PathBuf)| -> Result<_, InvalidRedisTarget> {
            Ok(ClientTlsConfig { client_cert: read(cert, "CERTIFICATE")?, client_key: read(key, "PRIVATE KEY")? })
        };
        let client_tls = self.client.as_ref().map(read_both).transpose()?;
        Ok(Some(TlsCertificates { client_tls, root_cert }))
    }
}

/// Reads a file, which must have a section of that kind. The library would accept an empty file, and would then trust
/// no authority.
fn read(path: &Path, kind: &'static str) -> Result<Vec<u8>, InvalidRedisTarget> {
    let content = regular_file::read(path, MAX_FILE_BYTES)
        .map_err(|reason| InvalidRedisTarget::Unreadable(path.to_owned(), reason))?;
    let end = format!("{kind}-----");
    let is_there = String::from_utf8_lossy(&content)
        .lines()
        .any(|line| line.starts_with("-----BEGIN ") && line.trim_end().ends_with(&end));
    if is_there { Ok(content) } else { Err(InvalidRedisTarget::NotPem(path.to_owned(), kind)) }
}

/// The reason why the options do not describe a store.
#[derive(Debug, thiserror::Error)]
pub enum InvalidRedisTarget {
    /// The list of URLs is empty.
    #[error("no Redis URL is given; write one such as redis://127.0.0.1:6379")]
    NoUrl,
    // The URL may contain a password, so it is not repeated.
    /// A URL cannot be parsed, or names no address.
    #[error("Redis URL {0} is not valid: {1}; write one such as redis://user:password@host:port/database")]
    Url(usize, RedisError),
    /// The URLs of a cluster's nodes contradict each other, or use features that a cluster does not have.
    #[error("Redis URLs of a cluster need the same scheme, user and password, and no database or unix socket")]
    Mixed,
    /// Certificates are given, but a URL does not use TLS.
    #[error("Redis URL {0} does not use TLS, so certificates have no effect: write rediss://, or leave them out")]
    NoTls(usize),
    /// A file cannot be read.
    #[error("cannot read {0}: {1}")]
    Unreadable(PathBuf, io::Error),
    /// A file has no section of the expected kind.
    #[error("{0} contains no {1} in PEM format (a section that begins with -----BEGIN)")]
    NotPem(PathBuf, &'static str),
    /// The TLS library refuses the certificates.
    #[error("cannot use the certificates for Redis: {0}")]
    Certificates(RedisError),
    /// The client for the sentinels cannot be created.
    #[error("cannot create a client for these sentinels: {0}")]
    Sentinel(RedisError),
    /// A batch would give up before its WAIT does.
    #[error("--redis-ack-timeout ({0:?}) must be shorter than --redis-timeout ({1:?})")]
    AckTimeout(Duration, Duration),
}
