//! Flags that bound the size of divvy's own stores.

use clap::ValueEnum;

use crate::store::{
    Bounds, DEFAULT_MAX_COUNTERS, DEFAULT_MAX_COUNTERS_IN_MEMORY, DEFAULT_MAX_DISK, DEFAULT_MAX_IDEMPOTENCY_KEYS,
    DEFAULT_MAX_RESERVATIONS, WhenFull,
};
use crate::units::{self, Bytes};

/// Upper bound for the number of counters, more than any disk can hold.
const MAX_COUNTERS: u64 = 1_000_000_000_000_000;
/// Upper bound for reservations and for idempotency keys: about 20 GB of memory.
const MAX_RECORDS: u64 = 100_000_000;
/// Upper bound for bytes on disk.
const MAX_DISK: u64 = 1 << 60;

#[derive(Debug, clap::Args)]
pub struct BoundArgs {
    /// rocksdb, memory: maximum number of counters. Approximate with rocksdb, where --max-disk is the hard bound
    /// [default: 100000000; memory: 1000000]
    #[arg(long, value_name = "N", value_parser = units::count::<u64>(1..=MAX_COUNTERS))]
    max_counters: Option<u64>,
    /// rocksdb: maximum size of the counters on disk. The journal, up to 192 MiB of write-ahead log and space for
    /// compactions come on top [default: 16Gi]
    #[arg(long, value_name = "BYTES", value_parser = units::bytes(1..=MAX_DISK))]
    max_disk: Option<Bytes>,
    /// rocksdb, memory: how to answer a hit that needs a new counter when there is no room for it [default: error]
    #[arg(long, value_enum)]
    when_full: Option<WhenFullKind>,
    /// rocksdb, memory: maximum number of reservations, including those committed in the last minute, about 200 bytes
    /// of memory each [default: 100000]
    #[arg(long, value_name = "N", value_parser = units::count::<u64>(0..=MAX_RECORDS))]
    max_reservations: Option<u64>,
    /// rocksdb, memory: maximum number of idempotency keys in a minute, about 200 bytes of memory for each rule that
    /// counts the request [default: 1000000]
    #[arg(long, value_name = "N", value_parser = units::count::<u64>(0..=MAX_RECORDS))]
    max_idempotency_keys: Option<u64>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum WhenFullKind {
    /// An ERR reply
    Error,
    /// Denied, with a reset of one second
    Deny,
    /// Allowed, not counted
    Allow,
}

impl BoundArgs {
    pub fn on_disk(&self) -> Bounds {
        Bounds {
            max_counters: self.max_counters.unwrap_or(DEFAULT_MAX_COUNTERS),
            max_reservations: self.max_reservations.unwrap_or(DEFAULT_MAX_RESERVATIONS),
            max_idempotency_keys: self.max_idempotency_keys.unwrap_or(DEFAULT_MAX_IDEMPOTENCY_KEYS),
            max_disk: self.max_disk.map_or(DEFAULT_MAX_DISK, |Bytes(bytes)| bytes),
            when_full: self.when_full(),
        }
    }

    pub fn in_memory(&self) -> Bounds {
        Bounds { max_counters: self.max_counters.unwrap_or(DEFAULT_MAX_COUNTERS_IN_MEMORY), ..self.on_disk() }
    }

    fn when_full(&self) -> WhenFull {
        match self.when_full {
            Some(WhenFullKind::Deny) => WhenFull::Deny,
            Some(WhenFullKind::Allow) => WhenFull::Allow,
            Some(WhenFullKind::Error) | None => WhenFull::Error,
        }
    }

    pub fn has_max_counters(&self) -> bool {
        self.max_counters.is_some()
    }

    pub fn has_max_reservations(&self) -> bool {
        self.max_reservations.is_some()
    }

    pub fn has_max_idempotency_keys(&self) -> bool {
        self.max_idempotency_keys.is_some()
    }

    pub fn has_max_disk(&self) -> bool {
        self.max_disk.is_some()
    }

    pub fn has_when_full(&self) -> bool {
        self.when_full.is_some()
    }
}
