//! Where counters are kept: the flags of all stores, and the choice of one.
//!
//! All flags are checked together before anything is opened. A flag without an effect on the selected store is an
//! error.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::{ArgMatches, ValueEnum};
use url::{Position, Url};

use crate::cli::values::{Choices, choice, is_given};
use divvy_core::clock::Clock;
use divvy_core::units::{self, Bytes, MAX_SECONDS, Time};
use divvy_limiter::CounterNames;
use divvy_limiter::store::{
    Backend, Bounds, DEFAULT_ACK_TIMEOUT, DEFAULT_CACHE_MEMORY, DEFAULT_DENIAL_CACHE, DEFAULT_MAX_COUNTERS,
    DEFAULT_MAX_COUNTERS_IN_MEMORY, DEFAULT_MAX_DISK, DEFAULT_MAX_IDEMPOTENCY_KEYS, DEFAULT_MAX_JOURNAL,
    DEFAULT_MAX_RESERVATIONS, DEFAULT_REDIS_TIMEOUT, Durability, FailurePolicy, HAS_ROCKSDB, LOCAL_BUCKETS,
    MemoryStore, NoRocksDb, RedisOptions, RedisSentinel, RedisStore, RedisTls, ReplicaAcks, RequiredReplicas,
    RocksOptions, RocksStore, WhenFull,
};

/// Flags of the rocksdb store, of the stores that divvy keeps itself, and of the redis store, without those that require one of
/// these.
const ROCKSDB_FLAGS: &[&str] =
    &["data_dir", "durability", "backup_dir", "wait_for_lock", "cache_memory", "max_journal", "max_disk"];
const OWN_FLAGS: &[&str] = &["max_counters", "when_full", "max_reservations", "max_idempotency_keys"];
const REDIS_FLAGS: &[&str] = &[
    "on_store_error",
    "denial_cache",
    "redis_url",
    "redis_sentinel_master",
    "redis_ca",
    "redis_cert",
    "redis_timeout",
    "redis_min_replicas_ack",
];

/// Interval for checking whether another process has released the data directory. There is no notification of that.
const LOCK_POLL: Duration = Duration::from_millis(20);

/// Upper bound for remembered denials: 560 MB, all of it allocated at the start.
const MAX_DENIAL_CACHE: u64 = 10_000_000;

/// Range of the memory for counters. The maximum is more than any machine has.
const CACHE_MEMORY: RangeInclusive<u64> = 1 << 20..=1 << 50;
/// Range of the journal's size. The journal has sixteen segments, and each becomes a file of counters.
const MAX_JOURNAL: RangeInclusive<u64> = 1 << 20..=1 << 50;
/// Upper bound for the number of counters, more than any disk can hold.
const MAX_COUNTERS: u64 = 1_000_000_000_000_000;
/// Upper bound for reservations and for idempotency keys: about 20 GB of memory.
const MAX_RECORDS: u64 = 100_000_000;
/// Upper bound for replicas that confirm a change. No Redis has as many.
const MAX_REPLICAS: u64 = 1_000;
/// Upper bound for bytes on disk.
const MAX_DISK: u64 = 1 << 60;

/// Prefix of the REDIS_PORT that Kubernetes sets in pods that run next to a Service named redis. Such a value is an
/// address, and does not select a store.
const SERVICE_LINK: &str = "tcp://";

/// Default Redis address of Button's Divvy.
const DEFAULT_REDIS_HOST: &str = "127.0.0.1";
const DEFAULT_REDIS_PORT: u16 = 6379;

#[derive(clap::Args)]
#[command(next_help_heading = "Store")]
pub struct StoreArgs {
    /// Where counters are kept [default: rocksdb, or memory in a build without it; redis with --redis-url, REDIS_HOST
    /// or REDIS_PORT]
    #[arg(long, value_enum)]
    store: Option<StoreKind>,
    /// rocksdb: data directory, for one process at a time
    #[arg(long, value_name = "DIR", default_value = "./divvy-data")]
    data_dir: PathBuf,
    /// rocksdb: how durable a hit must be before divvy answers it
    #[arg(long, default_value = "wal", value_parser = choice(DURABILITY))]
    durability: Durability,
    /// rocksdb: how long to wait for another process to release the data directory
    #[arg(long, value_name = "SECONDS", default_value_t = Time(Duration::ZERO), value_parser = units::seconds(0..=MAX_SECONDS))]
    wait_for_lock: Time,
    /// rocksdb: memory for counters. A fixed window takes about 32 bytes of it, other counters about 110
    #[arg(long, value_name = "BYTES", default_value_t = DEFAULT_CACHE_MEMORY.into(), value_parser = units::bytes(CACHE_MEMORY))]
    cache_memory: Bytes,
    /// rocksdb: maximum size of the journal of changes. A longer one saves CPU time if the same counters change often.
    /// A start after a crash reads all of it
    #[arg(long, value_name = "BYTES", default_value_t = Bytes(DEFAULT_MAX_JOURNAL), value_parser = units::bytes(MAX_JOURNAL))]
    max_journal: Bytes,
    /// rocksdb: directory for `divvy backup`, created if needed. Backups are cheapest on the file system of --data-dir
    /// [default: none, no backups]
    #[arg(long, value_name = "DIR")]
    backup_dir: Option<PathBuf>,
    /// rocksdb, memory: maximum number of counters. Approximate with rocksdb, where --max-disk is the hard bound
    /// [default: 100000000; memory: 1000000]
    #[arg(long, value_name = "N", value_parser = units::count::<u64>(1..=MAX_COUNTERS))]
    max_counters: Option<u64>,
    /// rocksdb: maximum size of the counters on disk. The journal, up to 192 MiB of write-ahead log and space for
    /// compactions come on top
    #[arg(long, value_name = "BYTES", default_value_t = Bytes(DEFAULT_MAX_DISK), value_parser = units::bytes(1..=MAX_DISK))]
    max_disk: Bytes,
    /// rocksdb, memory: how to answer a hit that needs a new counter when there is no room for it
    #[arg(long, default_value = "error", value_parser = choice(WHEN_FULL))]
    when_full: WhenFull,
    /// rocksdb, memory: maximum number of reservations, including those committed in the last minute, about 200 bytes
    /// of memory each
    #[arg(long, value_name = "N", default_value_t = DEFAULT_MAX_RESERVATIONS, value_parser = units::count::<u64>(0..=MAX_RECORDS))]
    max_reservations: u64,
    /// rocksdb, memory: maximum number of idempotency keys in a minute, one for each rule that counts the request, about
    /// 200 bytes of memory each
    #[arg(long, value_name = "N", default_value_t = DEFAULT_MAX_IDEMPOTENCY_KEYS,
          value_parser = units::count::<u64>(0..=MAX_RECORDS))]
    max_idempotency_keys: u64,
    /// redis: URL of the server: `redis://`, `rediss://` (TLS) or `redis+unix://`. Several URLs, repeated or separated
    /// by commas, are the nodes of a cluster or the sentinels [default: redis://127.0.0.1:6379]
    #[arg(long, help_heading = "Redis", value_name = "URL", value_delimiter = ',', hide_env_values = true)]
    redis_url: Vec<String>,
    /// redis: the URLs are sentinels, and this is their name for the master. Users, passwords and databases in them are
    /// the master's
    #[arg(long, help_heading = "Redis", value_name = "NAME")]
    redis_sentinel_master: Option<String>,
    /// redis: password of the sentinels themselves, if they require one
    #[arg(
        long,
        help_heading = "Redis",
        value_name = "[USER:]PASSWORD",
        requires = "redis_sentinel_master",
        hide_env_values = true
    )]
    redis_sentinel_auth: Option<String>,
    /// redis: trust the certificate authorities in this PEM file instead of the system's
    #[arg(long, help_heading = "Redis", value_name = "FILE")]
    redis_ca: Option<PathBuf>,
    /// redis: client certificate (PEM), for a Redis that requires one
    #[arg(long, help_heading = "Redis", value_name = "FILE", requires = "redis_key")]
    redis_cert: Option<PathBuf>,
    /// redis: private key of --redis-cert (PEM)
    #[arg(long, help_heading = "Redis", value_name = "FILE", requires = "redis_cert")]
    redis_key: Option<PathBuf>,
    /// redis: maximum time that a hit waits for Redis
    #[arg(long, help_heading = "Redis", value_name = "MS", default_value_t = Time(DEFAULT_REDIS_TIMEOUT),
          value_parser = units::millis(1..=MAX_SECONDS * 1000))]
    redis_timeout: Time,
    /// redis: number of replicas that must confirm each change before its hits are answered, or `all`. `all` requires
    /// that min-replicas-to-write is as high [default: none]
    #[arg(long, help_heading = "Redis", value_name = "N|all", value_parser = required_replicas)]
    redis_min_replicas_ack: Option<RequiredReplicas>,
    /// redis: maximum time for that, shorter than --redis-timeout. After it, a hit is answered as if Redis did not respond
    #[arg(long, help_heading = "Redis", value_name = "MS", default_value_t = Time(DEFAULT_ACK_TIMEOUT),
          requires = "redis_min_replicas_ack", value_parser = units::millis(1..=MAX_SECONDS * 1000))]
    redis_ack_timeout: Time,
    /// redis: how to answer a hit when Redis does not respond
    #[arg(long, help_heading = "Redis", default_value = "error", value_parser = choice(ON_STORE_ERROR))]
    on_store_error: FailurePolicy,
    /// redis: exhausted windows that divvy remembers and denies without asking Redis. 0: none
    #[arg(long, help_heading = "Redis", value_name = "N", default_value_t = DEFAULT_DENIAL_CACHE,
          value_parser = units::count::<usize>(0..=MAX_DENIAL_CACHE))]
    denial_cache: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum StoreKind {
    /// On disk, in the data directory
    Rocksdb,
    /// In Redis or Valkey: one server, Sentinel or a cluster. Several divvy servers can share it
    Redis,
    /// In memory, lost when the process ends: for tests and trials
    Memory,
}

const DURABILITY: Choices<Durability> = &[
    ("sync", "The hit is on stable storage", Durability::Sync),
    (
        "wal",
        "The hit is in the write-ahead log, which survives the end of the process. An fsync follows within a second",
        Durability::Wal,
    ),
    ("lazy", "No guarantee. The hit reaches the write-ahead log within 100 ms", Durability::Lazy),
];
const WHEN_FULL: Choices<WhenFull> = &[
    ("error", "An ERR reply", WhenFull::Error),
    ("deny", "Denied, with a reset of one second", WhenFull::Deny),
    ("allow", "Allowed, not counted", WhenFull::Allow),
];
const ON_STORE_ERROR: Choices<FailurePolicy> = &[
    ("deny", "Denied, with a reset of one second", FailurePolicy::Deny),
    ("allow", "Allowed, not counted", FailurePolicy::Allow),
    ("error", "An ERR reply", FailurePolicy::Error),
    ("local", "Counted by this server alone until Redis is back", FailurePolicy::Local { buckets: LOCAL_BUCKETS }),
];

/// A store that can be opened.
#[derive(Debug)]
pub enum StoreChoice {
    Memory { bounds: Bounds },
    Rocksdb { data_dir: PathBuf, options: RocksOptions, wait_for_lock: Duration },
    Redis { options: RedisOptions, on_error: FailurePolicy, denial_cache: usize },
}

impl StoreArgs {
    /// Returns the store that the flags and the variables of Button's Divvy select. `given` has the flags, and `variable` reads
    /// the environment.
    ///
    /// # Errors
    /// A flag does not apply to the selected store, or REDIS_PORT is relevant and not a port number.
    pub fn choose(&self, given: &ArgMatches, variable: impl Fn(&str) -> Option<String>) -> anyhow::Result<StoreChoice> {
        // The operator's choice takes precedence over variables that others may have set.
        let names_redis = !self.redis_url.is_empty();
        let has_chosen = names_redis || self.store.is_some_and(|kind| kind != StoreKind::Redis);
        let inherited = if has_chosen { None } else { inherited_url(variable)? };
        let is_redis_meant = names_redis || inherited.is_some();
        let kind = self.store.unwrap_or(if is_redis_meant { StoreKind::Redis } else { StoreKind::DEFAULT });
        Self::check_flags(given, kind)?;
        if kind == StoreKind::Rocksdb && !HAS_ROCKSDB {
            return Err(NoRocksDb.into());
        }
        Ok(match kind {
            StoreKind::Memory => StoreChoice::Memory { bounds: self.bounds(DEFAULT_MAX_COUNTERS_IN_MEMORY) },
            StoreKind::Rocksdb => StoreChoice::Rocksdb {
                data_dir: self.data_dir.clone(),
                options: RocksOptions {
                    durability: self.durability,
                    cache_memory: self.cache_memory.in_memory(),
                    max_journal: self.max_journal.0,
                    bounds: self.bounds(DEFAULT_MAX_COUNTERS),
                    backup_dir: self.backup_dir.clone(),
                    ..RocksOptions::default()
                },
                wait_for_lock: self.wait_for_lock.0,
            },
            StoreKind::Redis => StoreChoice::Redis {
                options: self.redis_options(inherited),
                on_error: self.on_store_error,
                denial_cache: self.denial_cache,
            },
        })
    }

    fn check_flags(given: &ArgMatches, kind: StoreKind) -> anyhow::Result<()> {
        for (flags, owners) in [
            (ROCKSDB_FLAGS, &[StoreKind::Rocksdb][..]),
            (OWN_FLAGS, &[StoreKind::Rocksdb, StoreKind::Memory]),
            (REDIS_FLAGS, &[StoreKind::Redis]),
        ] {
            let found = flags.iter().find(|flag| is_given(given, flag));
            if let Some(flag) = found.filter(|_| !owners.contains(&kind)) {
                let owners = owners.iter().map(|owner| owner.name()).collect::<Vec<_>>().join(" or ");
                bail!(
                    "--{} (or its DIVVY_ variable) is for the {owners} store, but the store is {}: leave it out, or choose \
                     --store {owners}",
                    flag.replace('_', "-"),
                    kind.name(),
                );
            }
        }
        Ok(())
    }

    fn bounds(&self, default_max_counters: u64) -> Bounds {
        Bounds {
            max_counters: self.max_counters.unwrap_or(default_max_counters),
            max_reservations: self.max_reservations,
            max_idempotency_keys: self.max_idempotency_keys,
            max_disk: self.max_disk.0,
            when_full: self.when_full,
        }
    }

    /// Returns the options of Redis. `inherited` is the server named by the variables of Button's Divvy.
    fn redis_options(&self, inherited: Option<String>) -> RedisOptions {
        let mut urls = self.redis_url.clone();
        if urls.is_empty() {
            urls.push(inherited.unwrap_or_else(|| build_url(DEFAULT_REDIS_HOST, DEFAULT_REDIS_PORT)));
        }
        let auth = self.redis_sentinel_auth.clone();
        let sentinel = self.redis_sentinel_master.clone().map(|master| RedisSentinel { master, auth });
        let tls = RedisTls { ca: self.redis_ca.clone(), client: self.redis_cert.clone().zip(self.redis_key.clone()) };
        let acks =
            self.redis_min_replicas_ack.map(|replicas| ReplicaAcks { replicas, timeout: self.redis_ack_timeout.0 });
        RedisOptions { urls, sentinel, tls, timeout: self.redis_timeout.0, acks }
    }
}

impl StoreChoice {
    /// Waits until another process releases the data directory, but no longer than the operator allows. The directory
    /// may still be in use afterwards.
    #[expect(clippy::disallowed_methods, reason = "waits for another process, before anything is served")]
    pub async fn wait_for_lock(&self) {
        let Self::Rocksdb { data_dir, wait_for_lock, .. } = self else { return };
        let give_up = Instant::now() + *wait_for_lock;
        if !wait_for_lock.is_zero() && RocksStore::is_in_use(data_dir) {
            tracing::info!(data_dir = %data_dir.display(), "waiting for another process to release the data directory");
            while Instant::now() < give_up && RocksStore::is_in_use(data_dir) {
                tokio::time::sleep(LOCK_POLL).await;
            }
        }
    }

    /// Opens the store.
    ///
    /// # Errors
    /// The data directory cannot be opened, or Redis's address is invalid. Redis need not be available.
    pub fn open(&self, clock: Clock) -> anyhow::Result<Backend> {
        Ok(match self {
            Self::Memory { bounds } => Backend::Memory(MemoryStore::new(*bounds)),
            Self::Rocksdb { data_dir, options, .. } => {
                if let Some(dir) = &options.backup_dir {
                    std::fs::create_dir_all(dir)
                        .with_context(|| format!("cannot use the --backup-dir {}", dir.display()))?;
                }
                Backend::Rocks(RocksStore::open(data_dir, RocksOptions { clock, ..options.clone() })?)
            }
            Self::Redis { options, on_error, denial_cache } => {
                let store = RedisStore::open(options.clone())?;
                Backend::redis(store, *denial_cache, *on_error, clock)
            }
        })
    }

    /// Returns the data directory; `None` if the store has none.
    pub fn data_dir(&self) -> Option<&Path> {
        match self {
            Self::Rocksdb { data_dir, .. } => Some(data_dir),
            Self::Memory { .. } | Self::Redis { .. } => None,
        }
    }

    /// Returns how the store names the counters of stacks.
    pub fn counter_names(&self) -> CounterNames {
        match self {
            Self::Redis { options, .. } if options.are_of_a_cluster() => CounterNames::InSlots,
            Self::Redis { .. } => CounterNames::InRedis,
            Self::Memory { .. } | Self::Rocksdb { .. } => CounterNames::Usual,
        }
    }

    /// Describes how durable a hit is, for people.
    pub fn describe_durability(&self) -> &'static str {
        match self {
            Self::Memory { .. } => "none, counters are lost when the server stops",
            Self::Rocksdb { options, .. } => {
                let is_chosen = |(_, _, durability): &&(_, _, Durability)| *durability == options.durability;
                DURABILITY.iter().find(is_chosen).map_or("", |(word, _, _)| *word)
            }
            Self::Redis { .. } => "as Redis is configured",
        }
    }

    /// Describes the store and its location for people, with passwords masked.
    pub fn describe(&self) -> String {
        match self {
            Self::Memory { .. } => "memory (counters are lost when the server stops)".to_owned(),
            Self::Rocksdb { data_dir, .. } => {
                format!("rocksdb in {} (durability {})", data_dir.display(), self.describe_durability())
            }
            Self::Redis { options, on_error, .. } => {
                let on_error = match on_error {
                    FailurePolicy::Deny => "denied",
                    FailurePolicy::Allow => "allowed",
                    FailurePolicy::Error => "answered with an error",
                    FailurePolicy::Local { .. } => "counted locally",
                };
                let urls = options.urls.iter().map(|url| masked(url)).collect::<Vec<_>>().join(", ");
                let place = match &options.sentinel {
                    Some(sentinel) => format!("master {} by sentinels {urls}", sentinel.master),
                    None => urls,
                };
                format!("redis at {place} (while it fails, hits are {on_error})")
            }
        }
    }
}

impl StoreKind {
    /// The default store: one that keeps counters across restarts, if the build has it.
    const DEFAULT: Self = if HAS_ROCKSDB { Self::Rocksdb } else { Self::Memory };

    fn name(self) -> String {
        self.to_possible_value().map(|word| word.get_name().to_owned()).unwrap_or_default()
    }
}

/// Parses a number of replicas, or `all`.
fn required_replicas(text: &str) -> Result<RequiredReplicas, String> {
    let number = units::count(1..=MAX_REPLICAS);
    match text {
        "all" => Ok(RequiredReplicas::All),
        _ => number(text).map(RequiredReplicas::Number).map_err(|reason| format!("{reason}, or all")),
    }
}

/// Returns the server named by REDIS_HOST and REDIS_PORT, if at least one of them is set. `variable` reads the
/// environment.
///
/// # Errors
/// REDIS_PORT is not a port number.
fn inherited_url(variable: impl Fn(&str) -> Option<String>) -> anyhow::Result<Option<String>> {
    let set = |name| variable(name).filter(|value| !value.is_empty());
    let host = set("REDIS_HOST");
    let port = match set("REDIS_PORT") {
        None if host.is_none() => return Ok(None),
        None => DEFAULT_REDIS_PORT,
        Some(link) if host.is_none() && link.starts_with(SERVICE_LINK) => {
            tracing::info!(
                "ignoring REDIS_PORT: it is an address that Kubernetes sets for a Service, not a port number"
            );
            return Ok(None);
        }
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

/// Returns `url` with its passwords masked: in the user part, and in the query (`?pass=`, for Unix sockets).
fn masked(url: &str) -> String {
    const MASK: &str = "***";
    let mut shown = match Url::parse(url) {
        // After an unescaped `#`, `/` or `?`, the rest of a password is not in the user part.
        Ok(parsed) if !parsed.cannot_be_a_base() && !parsed[Position::BeforePath..].contains('@') => parsed,
        // Nobody knows what such a text contains.
        _ => return url.rsplit_once('@').map_or(url.to_owned(), |(_, place)| format!("{MASK}@{place}")),
    };
    if shown.password().is_some() {
        // This fails for a URL without a host, which has no password.
        let _ = shown.set_password(Some(MASK));
    }
    let without_pass = |parameter: &str| match parameter.split_once('=') {
        Some((name, _)) if name.starts_with("pass") => format!("{name}={MASK}"),
        _ => parameter.to_owned(),
    };
    let query = shown.query().map(|query| query.split('&').map(without_pass).collect::<Vec<_>>().join("&"));
    shown.set_query(query.as_deref());
    shown.to_string()
}

#[cfg(test)]
mod tests;
