//! The store that keeps its counters in Redis (or Valkey), so that divvy has no state of its own.
//!
//! [`wire`] transfers bytes to and from one Redis. [`topology`] finds the server for each call. [`scripts`] turns a
//! batch into calls, and reads the replies.
//!
//! A batch is one round trip. A call touches one bucket, so that it works across the slots of a
//! cluster, and all actions on one bucket are one call, so that they take effect in the batch's order. Only the call of a
//! group touches several buckets, which a cluster must have in one slot. There are two kinds of bucket:
//! - A rule's fixed window has the same key and meaning as in the original Divvy, so that both programs can share it.
//!   One script decides, by Redis's clock.
//! - Any other bucket is the state of an algorithm. A script for each algorithm decides in Redis as [`divvy_core::algorithm`] does
//!   elsewhere, by Redis's clock or by times from clients.
//!
//! Reservations and answers to idempotent requests have keys of their own. Their number has no bound but Redis's memory.
//!
//! A call is sent again only if Redis said that it did not carry it out. If a reply is lost, the call fails, and may
//! have counted once.
//!
//! Actors of a rule are listed by `SCAN`, which visits all keys of the database, including other rules' buckets, so a page may be empty
//! long before the last one. It may return a key twice. In a cluster, it visits one shard after the other.
//!
//! The store's [`SealKey`] is in Redis, under one name for all servers. The first server creates it, and the others read
//! it. Redis may lose the key (FLUSHALL, eviction, a replica that takes over). A server that still has the key then puts it
//! back, unless another server has already created a new one.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, clippy::string_slice, reason = "a test may ask the clock, and panic")
)]

mod options;
mod scripts;
mod topology;
mod wire;

use std::fmt;
use std::hash::BuildHasher;
use std::time::Duration;

use foldhash::fast::FixedState;
use futures_util::future::try_join_all;
use tokio::time::Instant;

pub use self::options::{
    DEFAULT_ACK_TIMEOUT, DEFAULT_REDIS_TIMEOUT, InvalidRedisTarget, RedisOptions, RedisSentinel, RedisTls, ReplicaAcks,
    RequiredReplicas,
};
use self::scripts::names::{around_actor, tag_length};
pub use self::scripts::window_script;
use self::scripts::{exceptions, make_call, plan_calls, read_outcomes};
use self::topology::Target;
use self::wire::{Call, Failure, Reply};
use divvy_core::clock::Timestamp;
use divvy_store::{
    Batch, Changed, ExceptionChange, ExceptionCursor, ExceptionPage, ListedBucket, Listing, Page, Replaces, SHOW, Seal,
    SealKey, Store, StoreError,
};
use divvy_telemetry::metrics::Metric;

/// The name of the store's [`SealKey`].
const SEAL: &str = "divvy.seal";

/// The store of buckets in Redis.
///
/// Batches may be applied on any number of tokio runtimes. Each runtime has a connection of its own.
pub struct RedisStore {
    // Boxed: the client library's addresses and settings are much larger than the other fields.
    target: Box<Target>,
    timeout: Duration,
    seal: Seal,
}

impl RedisStore {
    /// Checks the options and reads the certificates. The first batch connects, so Redis need not be up.
    ///
    /// # Errors
    /// A URL is not valid, the URLs do not fit together, or a certificate is missing.
    pub fn open(options: RedisOptions) -> Result<Self, InvalidRedisTarget> {
        let target = Box::new(Target::new(&options)?);
        Ok(Self { target, timeout: options.timeout, seal: Seal::default() })
    }

    /// Checks that Redis has the replicas that must confirm changes, if Redis answers.
    ///
    /// # Errors
    /// It does not, so that every hit would fail.
    pub async fn check_replication(&self) -> Result<(), StoreError> {
        let refusal = self.target.check_replication(self.deadline()).await;
        refusal.map_or(Ok(()), |refusal| Err(StoreError::new(format!("Redis at {}: {refusal}", self.target.name))))
    }

    /// Returns the seal. It has a key once [`RedisStore::follow_seal`] has read it.
    pub fn seal(&self) -> &Seal {
        &self.seal
    }

    /// Makes an attempt that has the same effect if it is carried out twice. Repeats it if the connection broke: a firewall or Redis
    /// may end a connection that was idle, and an outage fails the second attempt, too.
    async fn twice<T, F: Future<Output = Result<T, Failure>>>(&self, attempt: impl Fn() -> F) -> Result<T, StoreError> {
        let mut result = attempt().await;
        if result.as_ref().is_err_and(Failure::is_broken_connection) {
            result = attempt().await;
        }
        result.map_err(|failure| self.describe(&failure))
    }

    /// Sends such a call, and reads its reply.
    async fn ask<T>(&self, call: Call, read: impl FnOnce(&Reply) -> Result<T, Failure>) -> Result<T, StoreError> {
        let calls = [call];
        let exchange =
            || async { self.target.exchange(&calls, self.deadline()).await.pop().unwrap_or(Err(Failure::NoNode)) };
        read(&self.twice(exchange).await?).map_err(|failure| self.describe(&failure))
    }

    /// Reads the key for ids, or creates it if Redis has none.
    ///
    /// # Errors
    /// Redis does not answer, refuses, or has something else under the name. Then the key in memory stays in force.
    pub async fn follow_seal(&self) -> Result<(), StoreError> {
        let key = match self.read_seal_key().await? {
            Some(key) => key,
            None => self.make_seal_key().await?,
        };
        if self.seal.replace(key).is_some_and(|before| before != key) {
            tracing::warn!("the key for reservation ids in Redis has changed: ids of earlier reservations are refused");
        }
        Ok(())
    }

    async fn make_seal_key(&self) -> Result<SealKey, StoreError> {
        let key = self.seal.known().map_or_else(SealKey::random, Ok)?;
        self.ask(Call::command_on_key(&[b"SET", SEAL.as_bytes(), key.to_text().as_bytes(), b"NX"]), |_| Ok(())).await?;
        // Another server may have been first.
        self.read_seal_key().await?.ok_or_else(|| StoreError::new("Redis lost the key for reservation ids immediately"))
    }

    async fn read_seal_key(&self) -> Result<Option<SealKey>, StoreError> {
        let read = |reply: &Reply| reply.decode("the key for reservation ids is not text");
        let stored: Option<String> = self.ask(Call::command_on_key(&[b"GET", SEAL.as_bytes()]), read).await?;
        let unreadable =
            || format!("this version cannot read {SEAL} in Redis: delete it, unless a later divvy wrote it");
        stored.map(|text| SealKey::parse(&text).ok_or_else(|| StoreError::new(unreadable()))).transpose()
    }

    /// Returns the actors in a page of `SCAN`, and the cursor of the next page, if there is one.
    ///
    /// In a cluster, a cursor is valid as long as no slot has moved to another node. Otherwise, keys could be left out.
    async fn scan(&self, listing: &Listing) -> Result<(Vec<Vec<u8>>, Option<String>), Failure> {
        let deadline = self.deadline();
        self.target.look_up(deadline).await?;
        let (shards, version) = self.target.shards(deadline).await?;
        let begin = Cursor::resume(listing.cursor.as_deref(), version)?;
        let shard = shards.get(begin.shard).ok_or(Failure::NoNode)?;
        // A name is an optional tag, which differs between actors, and a part before and a part after the actor.
        let tag_length = tag_length(&listing.prefix);
        let (before, after) = around_actor(&listing.prefix, &listing.limit);
        let pattern = [b"?".repeat(tag_length), escaped(&before), b"*".to_vec(), escaped(&after)].concat();
        let (position, count) = (begin.position.to_string(), listing.count.to_string());
        let calls = [
            Call::command(&[b"INFO", b"server"]),
            Call::command(&[b"SCAN", position.as_bytes(), b"MATCH", &pattern, b"COUNT", count.as_bytes()]),
        ];
        let [info, page] = shard.ask(calls, deadline).await?;
        let info: String = info.decode("INFO is not text")?;
        let run_id = info.lines().find_map(|line| line.strip_prefix("run_id:")).unwrap_or_default();
        let process = FixedState::default().hash_one(run_id);
        let (position, found): (u64, Vec<Vec<u8>>) = page.decode("a page of SCAN is not a cursor and names")?;
        if !begin.is_known_to(process) {
            return Err(Failure::Cursor(begin.to_string()));
        }
        let actor =
            |name: &Vec<u8>| Some(name.get(tag_length..)?.strip_prefix(&*before)?.strip_suffix(&*after)?.to_vec());
        let shard = if position == 0 { begin.shard + 1 } else { begin.shard };
        let next = Cursor { shard, process, position, ..begin };
        Ok((found.iter().filter_map(actor).collect(), (shard < shards.len()).then(|| next.to_string())))
    }

    /// Returns the deadline of a call that begins now.
    #[expect(clippy::disallowed_methods, reason = "how long to wait for Redis")]
    fn deadline(&self) -> Instant {
        Instant::now() + self.timeout
    }

    fn describe(&self, failure: &Failure) -> StoreError {
        failure.describe(&self.target.name)
    }
}

impl Store for RedisStore {
    async fn apply(&self, batch: &mut Batch) {
        let deadline = self.deadline();
        let layout = self.target.layout();
        let mut plans = plan_calls(batch, layout);
        let calls: Vec<Call> = plans.iter_mut().map(|plan| make_call(batch, plan, layout)).collect();
        let replies = self.target.exchange(&calls, deadline).await;
        let too_few = StoreError::new("Redis sent fewer replies than requested");
        let mut outcomes = vec![Err(too_few); batch.len()];
        for (plan, reply) in plans.iter().zip(replies) {
            let read = reply.and_then(|reply| read_outcomes(batch, plan, &reply));
            let read = read.unwrap_or_else(|failure| vec![Err(failure); plan.indices().count()]);
            for (index, outcome) in plan.indices().zip(read) {
                if let Some(place) = outcomes.get_mut(index) {
                    *place = outcome.map_err(|failure| self.describe(&failure));
                }
            }
        }
        batch.outcomes = outcomes;
    }

    async fn list(&self, listing: Listing) -> Result<Page, StoreError> {
        let (actors, next) = self.scan(&listing).await.map_err(|failure| self.describe(&failure))?;
        let mut batch = Batch::default();
        batch.begin(listing.now);
        for actor in &actors {
            let write_key = |key: &mut Vec<u8>| key.extend([&*listing.prefix, actor].concat());
            batch.push(listing.limit, SHOW, listing.now, write_key);
        }
        self.apply(&mut batch).await;
        let mut page = Page { buckets: Vec::with_capacity(actors.len()), next };
        for (index, actor) in actors.into_iter().enumerate() {
            match batch.outcome(index) {
                Ok(outcome) if outcome.reset_ns > 0 => page.buckets.push(ListedBucket { actor, outcome }),
                // The bucket is equivalent to a fresh one, or unreadable. The others are listed anyway.
                Ok(_) | Err(StoreError::Failed(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(page)
    }

    async fn approximate_len(&self) -> Result<u64, StoreError> {
        self.target.count_keys(self.deadline()).await.map_err(|failure| self.describe(&failure))
    }

    /// Checks the store. A cluster is ready as long as any of its masters takes hits. All servers see the same cluster,
    /// so a load balancer would otherwise remove all servers.
    async fn check(&self) -> Result<(), StoreError> {
        self.twice(|| self.target.check(self.deadline())).await
    }

    /// Sends all changes at once. If one fails, others may have been made.
    async fn change_exceptions(
        &self,
        changes: Vec<ExceptionChange>,
        replaces: Replaces,
        now: Timestamp,
    ) -> Result<Vec<Changed>, StoreError> {
        let made = changes
            .iter()
            .map(|change| async { self.ask(exceptions::change(change, &replaces, now), exceptions::changed).await });
        try_join_all(made.collect::<Vec<_>>()).await
    }

    async fn follow_exceptions(&self, known: ExceptionCursor, now: Timestamp) -> Result<ExceptionPage, StoreError> {
        self.ask(exceptions::follow(&known), |reply| exceptions::page(&known, reply, now)).await
    }

    fn metrics(&self) -> Vec<Metric> {
        let connected = self.target.is_connected().into();
        let connected = Metric::gauge("divvy_redis_connected", "1 while there is a connection to Redis.", connected);
        [connected].into_iter().chain(self.target.replication_metrics()).collect()
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.target.close();
        Ok(())
    }
}

/// The position of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cursor {
    /// Version of the list of shards. 0 if there is one server.
    shards: u64,
    shard: usize,
    /// Id of the Redis process that the position belongs to. Each process has its own order of keys.
    process: u64,
    /// Redis's own cursor. At the start of a shard it is 0, which is valid in any process.
    position: u64,
}

impl Cursor {
    /// Parses a cursor, given the current version of the shards. Without a text, returns the start.
    fn resume(text: Option<&str>, shards: u64) -> Result<Self, Failure> {
        let Some(text) = text else { return Ok(Self { shards, shard: 0, process: 0, position: 0 }) };
        let known = Self::parse(text).filter(|cursor| cursor.shards == shards);
        known.ok_or_else(|| Failure::Cursor(text.to_owned()))
    }

    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(4, ':');
        let shards = u64::from_str_radix(parts.next()?, 16).ok()?;
        let shard = parts.next()?.parse().ok()?;
        let process = u64::from_str_radix(parts.next()?, 16).ok()?;
        Some(Self { shards, shard, process, position: parts.next()?.parse().ok()? })
    }

    /// Returns whether a page that begins here may come from that process.
    fn is_known_to(&self, process: u64) -> bool {
        self.position == 0 || self.process == process
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}:{}:{:x}:{}", self.shards, self.shard, self.process, self.position)
    }
}

/// Returns a glob that matches only `text`.
fn escaped(text: &[u8]) -> Vec<u8> {
    let backslash = |byte: &u8| b"*?[]\\^-".contains(byte).then_some(b'\\');
    text.iter().flat_map(|byte| backslash(byte).into_iter().chain([*byte])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_characters_of_globs_are_escaped() {
        assert_eq!(escaped(b"a*b?c[d]e\\"), b"a\\*b\\?c\\[d\\]e\\\\");
    }

    #[test]
    fn cursor_reads_back_and_other_texts_are_refused() {
        let cursor = Cursor { shards: u64::MAX, shard: 2, process: 0xab, position: 1 << 60 };
        assert_eq!(Cursor::parse(&cursor.to_string()), Some(cursor));
        for text in ["", "17", "1:2:3", "1:2:3:x", "x:2:3:4", "1:2:3:4:5", "1:-2:3:4"] {
            assert_eq!(Cursor::parse(text), None, "{text}");
        }
        assert!(Cursor::resume(None, 7).unwrap().is_known_to(0xac));
        assert!(cursor.is_known_to(0xab) && !cursor.is_known_to(0xac));
    }
}
