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
//! The store's [`SealKey`] is in Redis, under one name for all servers. The first server creates it, and the others read
//! it. Redis may lose the key (FLUSHALL, eviction, a replica that takes over). A server that still has the key then puts it
//! back, unless another server has already created a new one.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, clippy::string_slice, reason = "a test may ask the clock, and panic")
)]

mod options;
mod scan;
mod scripts;
mod topology;
mod wire;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::time::Instant;

pub use self::options::{DEFAULT_REDIS_TIMEOUT, InvalidRedisTarget, RedisOptions, RedisSentinel, RedisTls};
use self::scan::scan;
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
    /// Whether Redis has been found to have no exceptions in a format of earlier builds.
    has_checked_formats: AtomicBool,
}

impl RedisStore {
    /// Checks the options and reads the certificates. The first batch connects, so Redis need not be up.
    ///
    /// # Errors
    /// A URL is not valid, the URLs do not fit together, or a certificate is missing.
    pub fn open(options: RedisOptions) -> Result<Self, InvalidRedisTarget> {
        let target = Box::new(Target::new(&options)?);
        Ok(Self {
            target,
            timeout: options.timeout,
            seal: Seal::default(),
            has_checked_formats: AtomicBool::new(false),
        })
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
        let reply = self.twice(exchange).await?;
        read(&reply).map_err(|failure| self.describe(&failure))
    }

    /// Checks that Redis has no exceptions in a format of earlier builds. They would no longer be in force, and nobody would
    /// notice.
    async fn check_formats(&self) -> Result<(), StoreError> {
        for key in exceptions::OUTDATED {
            if self.ask(exceptions::find_outdated(key), exceptions::is_found).await? {
                let error = format!(
                    "Redis at {} has limits or blocks of actors in the key {key}, in a format of builds before the release of \
                     0.2.0: set them again with `divvy limit`, `divvy block` and `divvy allow` after deleting this key and \
                     those that begin with its name",
                    self.target.name
                );
                return Err(StoreError::Outdated(error.into()));
            }
        }
        self.has_checked_formats.store(true, Relaxed);
        Ok(())
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
        let unreadable = || {
            StoreError::new(format!(
                "{SEAL} in Redis is not a key for reservation ids that this version can read: delete it, unless a later version of divvy wrote it"
            ))
        };
        stored.map(|text| SealKey::parse(&text).ok_or_else(unreadable)).transpose()
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
        let scanned = scan(&self.target, &listing, self.deadline()).await;
        let (actors, next) = scanned.map_err(|failure| self.describe(&failure))?;
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
        if !self.has_checked_formats.load(Relaxed) {
            self.check_formats().await?;
        }
        self.ask(exceptions::follow(&known), |reply| exceptions::page(&known, reply, now)).await
    }

    fn metrics(&self) -> Vec<Metric> {
        let connected = self.target.is_connected().into();
        vec![Metric::gauge("divvy_redis_connected", "1 while there is a connection to Redis.", connected)]
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.target.close();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
