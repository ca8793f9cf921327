//! The servers that share the counters, in a list, for the few calls that go to all of them.

use std::sync::Arc;

use tokio::time::Instant;

use super::node_client::NodeClient;
use crate::wire::{Call, Failure, Reply};

/// The key that tests whether a server takes writes. In a cluster, a hash tag follows.
pub const PROBE: &[u8] = b"divvy.probe";

/// All servers that have counters of their own.
pub struct Shards {
    /// Changes when a slot of a cluster moves.
    pub version: u64,
    pub list: Vec<Shard>,
}

/// One server, or one master of a cluster.
pub struct Shard {
    pub client: Arc<NodeClient>,
    /// The master's address, for failures.
    pub name: Option<Arc<str>>,
    /// A key that this server may write.
    pub probe: Vec<u8>,
}

impl Shard {
    pub async fn ask(&self, call: Call, deadline: Instant) -> Result<Reply, Failure> {
        self.client.ask(call, deadline).await.map_err(|failure| self.locate(failure))
    }

    /// Adds the server's name to the failure, in a cluster.
    pub fn locate(&self, failure: Failure) -> Failure {
        match &self.name {
            Some(name) => Failure::AtNode(Arc::clone(name), failure.into()),
            None => failure,
        }
    }

    /// Checks that the server takes writes. The key expires after a millisecond.
    pub async fn check(&self, deadline: Instant) -> Result<(), Failure> {
        self.ask(Call::command(&[b"SET", &self.probe, b"1", b"PX", b"1"]), deadline).await.map(drop)
    }

    pub async fn count_keys(&self, deadline: Instant) -> Result<u64, Failure> {
        self.ask(Call::command(&[b"DBSIZE"]), deadline).await?.decode("the number of keys is not a number")
    }
}
