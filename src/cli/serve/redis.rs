//! Flags for the Redis that the redis store uses.

use std::path::PathBuf;

use anyhow::{Context, bail};

use divvy_core::units::{self, MAX_SECONDS, Time};
use divvy_limiter::store::{DEFAULT_REDIS_TIMEOUT, RedisOptions, RedisSentinel, RedisTls};

/// Prefix of the REDIS_PORT that Kubernetes sets in pods that run next to a Service named redis. Such a value is an
/// address, and does not select a store.
const SERVICE_LINK: &str = "tcp://";

/// Default Redis address of Button's Divvy.
const DEFAULT_REDIS_HOST: &str = "127.0.0.1";
const DEFAULT_REDIS_PORT: u16 = 6379;

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Redis")]
pub struct RedisArgs {
    /// redis: URL of the server: `redis://`, `rediss://` (TLS) or `redis+unix://`. Several URLs, repeated or separated
    /// by commas, are the nodes of a cluster or the sentinels [default: redis://127.0.0.1:6379]
    #[arg(long, value_name = "URL", value_delimiter = ',', hide_env_values = true)]
    redis_url: Vec<String>,
    /// redis: the URLs are sentinels, and this is their name for the master. Users, passwords and databases in them are
    /// the master's
    #[arg(long, value_name = "NAME")]
    redis_sentinel_master: Option<String>,
    /// redis: password of the sentinels themselves, if they require one
    #[arg(long, value_name = "[USER:]PASSWORD", hide_env_values = true)]
    redis_sentinel_auth: Option<String>,
    /// redis: trust the certificate authorities in this PEM file instead of the system's
    #[arg(long, value_name = "FILE")]
    redis_ca: Option<PathBuf>,
    /// redis: client certificate (PEM), for a Redis that requires one
    #[arg(long, value_name = "FILE")]
    redis_cert: Option<PathBuf>,
    /// redis: private key of --redis-cert (PEM)
    #[arg(long, value_name = "FILE")]
    redis_key: Option<PathBuf>,
    /// redis: maximum time that a hit waits for Redis [default: 500ms]
    #[arg(long, value_name = "MS", value_parser = units::millis(1..=MAX_SECONDS * 1000))]
    redis_timeout: Option<Time>,
}

impl RedisArgs {
    /// Returns whether the operator named a Redis server.
    pub fn names_a_server(&self) -> bool {
        !self.redis_url.is_empty()
    }

    /// Returns each flag, and whether it was given.
    pub fn given_flags(&self) -> [(&'static str, bool); 7] {
        [
            ("--redis-url", self.names_a_server()),
            ("--redis-sentinel-master", self.redis_sentinel_master.is_some()),
            ("--redis-sentinel-auth", self.redis_sentinel_auth.is_some()),
            ("--redis-ca", self.redis_ca.is_some()),
            ("--redis-cert", self.redis_cert.is_some()),
            ("--redis-key", self.redis_key.is_some()),
            ("--redis-timeout", self.redis_timeout.is_some()),
        ]
    }

    /// Returns the options. `inherited` is the server named by the variables of Button's Divvy.
    ///
    /// # Errors
    /// A flag is given without one that it requires.
    pub fn options(&self, inherited: Option<String>) -> anyhow::Result<RedisOptions> {
        let urls = if self.names_a_server() {
            self.redis_url.clone()
        } else {
            vec![inherited.unwrap_or_else(|| build_url(DEFAULT_REDIS_HOST, DEFAULT_REDIS_PORT))]
        };
        let sentinel = match (&self.redis_sentinel_master, &self.redis_sentinel_auth) {
            (Some(master), auth) => Some(RedisSentinel { master: master.clone(), auth: auth.clone() }),
            (None, Some(_)) => bail!("--redis-sentinel-auth has no effect without --redis-sentinel-master"),
            (None, None) => None,
        };
        let client = match (&self.redis_cert, &self.redis_key) {
            (Some(cert), Some(key)) => Some((cert.clone(), key.clone())),
            (None, None) => None,
            _ => bail!("--redis-cert and --redis-key go together: give both, or neither"),
        };
        let tls = RedisTls { ca: self.redis_ca.clone(), client };
        let timeout = self.redis_timeout.map_or(DEFAULT_REDIS_TIMEOUT, |Time(timeout)| timeout);
        Ok(RedisOptions { urls, sentinel, tls, timeout })
    }
}

/// Describes the Redis server for people, with passwords masked.
pub fn describe(options: &RedisOptions) -> String {
    let urls: Vec<_> = options.urls.iter().map(|url| masked(url)).collect();
    let urls = urls.join(", ");
    match &options.sentinel {
        Some(sentinel) => format!("master {} by sentinels {urls}", sentinel.master),
        None => urls,
    }
}

/// Returns the server named by REDIS_HOST and REDIS_PORT, if at least one of them is set. `variable` reads the
/// environment.
///
/// # Errors
/// REDIS_PORT is not a port number.
pub fn inherited_url(variable: impl Fn(&str) -> Option<String>) -> anyhow::Result<Option<String>> {
    let set = |name| variable(name).filter(|value| !value.is_empty());
    let host = set("REDIS_HOST");
    let is_link = |port: &String| host.is_none() && port.starts_with(SERVICE_LINK);
    let port = set("REDIS_PORT").filter(|port| {
        if is_link(port) {
            tracing::info!(
                "ignoring REDIS_PORT: it is an address that Kubernetes sets for a Service, not a port number"
            );
        }
        !is_link(port)
    });
    if host.is_none() && port.is_none() {
        return Ok(None);
    }
    let port = match port {
        None => DEFAULT_REDIS_PORT,
        Some(text) => text.parse().with_context(|| format!("REDIS_PORT is {text:?}, but must be a port number"))?,
    };
    Ok(Some(build_url(host.as_deref().unwrap_or(DEFAULT_REDIS_HOST), port)))
}

fn build_url(host: &str, port: u16) -> String {
    // An IPv6 address contains colons.
    if host.contains(':') && !host.starts_with('[') {
        format!("redis://[{host}]:{port}")
    } else {
        format!("redis://{host}:{port}")
    }
}

/// Replacement for a password in a URL.
const MASK: &str = "***";

/// Returns `url` with its passwords masked: in the user part, and in the query (`?pass=`, for Unix sockets).
fn masked(url: &str) -> String {
    let (address, query) = match url.split_once('?') {
        Some((address, query)) => (address, Some(query)),
        None => (url, None),
    };
    let mut shown = without_password(address);
    if let Some(query) = query {
        let parameters: Vec<_> = query.split('&').map(without_pass).collect();
        shown = format!("{shown}?{}", parameters.join("&"));
    }
    shown
}

/// Masks the password in everything up to the last `@`. The password itself may contain an unescaped `@`.
fn without_password(address: &str) -> String {
    let Some((user, place)) = address.rsplit_once('@') else { return address.to_owned() };
    let (scheme, user) = user.split_once("://").unwrap_or(("", user));
    let name = user.split_once(':').map(|(name, _)| name);
    match (scheme, name) {
        ("", _) => format!("{MASK}@{place}"),
        (_, Some(name)) => format!("{scheme}://{name}:{MASK}@{place}"),
        (_, None) => format!("{scheme}://{user}@{place}"),
    }
}

fn without_pass(parameter: &str) -> String {
    match parameter.split_once('=') {
        Some((name, _)) if name.starts_with("pass") => format!("{name}={MASK}"),
        _ => parameter.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_passwords_are_masked() {
        let shown = [
            ("redis://127.0.0.1:6379/2", "redis://127.0.0.1:6379/2"),
            ("redis://:secret@cache:6379", "redis://:***@cache:6379"),
            ("rediss://ann:secret@cache:6380/1", "rediss://ann:***@cache:6380/1"),
            ("redis://ann:se@cr:et@cache", "redis://ann:***@cache"),
            ("redis://ann@cache", "redis://ann@cache"),
            ("redis+unix:///run/redis.sock?db=1&pass=secret", "redis+unix:///run/redis.sock?db=1&pass=***"),
            ("ann:secret@cache", "***@cache"),
        ];
        for (url, expected) in shown {
            assert_eq!(masked(url), expected);
        }
    }
}
