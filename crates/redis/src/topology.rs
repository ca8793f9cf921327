//! The servers that keep the counters: one server, the master that sentinels name, or the masters of a cluster.

mod breaker;
mod cluster;
mod endpoint;
mod node_client;
mod sentinel;
mod shard;
mod shared_connection;
mod slot_map;
mod slot_tags;
mod target;

pub use self::shard::Shard;
pub use self::slot_tags::{share_slot, tag_of};
pub use self::target::{Layout, Target};
