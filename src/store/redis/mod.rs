//! The store that keeps its counters in Redis (or Valkey), so that divvy has no state of its own.
//!
//! [`wire`] moves bytes to and from one Redis. [`topology`] finds the server for each call. [`scripts`] says what to send for a
//! batch, and reads the replies.
//!
//! A batch is one round trip. A call touches one bucket, so that it works across the slots of a
//! cluster, and all actions on one bucket are one call, so that they take effect in the batch's order. Only the call of a
//! group touches several buckets, which a cluster must have in one slot. There are two kinds of bucket:
//! - A rule's fixed window has the key and the meaning of the original Divvy, so that the two can count together. One script
//!   decides, by Redis's clock.
//! - Any other bucket is the state of an algorithm. A script for each algorithm decides in Redis as [`crate::algorithm`] does
//!   elsewhere, by Redis's clock or by times from clients.
//!
//! Reservations and answers to idempotent requests have keys of their own. Their number has no bound but Redis's memory.
//!
//! A call is sent again only if Redis said that it did not carry it out. A call whose reply got lost is an error, and may
//! have counted once.

mod invalid_target;
mod options;
mod scan;
mod scripts;
mod seal_key;
mod topology;
mod wire;

use std::time::Duration;

use tokio::time::Instant;

pub use self::invalid_target::InvalidRedisTarget;
pub use self::options::{DEFAULT_REDIS_TIMEOUT, RedisOptions, RedisSentinel};
use self::scan::{Scan, Scanned};
pub use self::scripts::window_script;
use self::scripts::{actor_limits, asked_by, script_call};
use self::topology::Target;
pub use self::wire::RedisTls;
use self::wire::{Call, Failure, Reply};
use super::seal::Seal;
use crate::algorithm::Outcome;
use crate::clock::Timestamp;
use crate::metrics::Metric;
use crate::store::contract::{
    Batch, LimitChange, LimitCursor, LimitPage, ListedBucket, Listing, Page, SHOW, Store, StoreError,
};

/// Buckets in Redis.
///
/// Batches may be applied on any number of tokio's runtimes: each has a connection of its own.
pub struct RedisStore {
    // Boxed: what a client library keeps of addresses and settings is large beside everything else.
    target: Box<Target>,
    timeout: Duration,
    seal: Seal,
}

impl RedisStore {
    /// Checks the options and reads the certificates: Redis need not be up, and is connected to by the first batch.
    ///
    /// # Errors
    /// When an URL is none that Redis clients understand, the URLs do not go together, or a certificate is missing.
    pub fn open(options: RedisOptions) -> Result<Self, InvalidRedisTarget> {
        let target = Box::new(Target::new(&options)?);
        Ok(Self { target, timeout: options.timeout, seal: Seal::default() })
    }

    /// The key for ids, once it has been read: see [`RedisStore::follow_seal`].
    pub fn seal(&self) -> &Seal {
        &self.seal
    }
}

impl Store for RedisStore {
    async fn apply(&self, batch: &mut Batch) {
        let deadline = self.deadline();
        let layout = self.target.layout();
        let mut asked = asked_by(batch, layout);
        let calls: Vec<Call> = asked.iter_mut().map(|asked| script_call::call(batch, asked, layout)).collect();
        let replies = self.target.exchange(&calls, deadline).await;
        let mut answers: Vec<Option<Result<Outcome, StoreError>>> = vec![None; batch.len()];
        for (asked, reply) in asked.iter().zip(replies) {
            let outcomes = reply.and_then(|reply| script_call::outcomes(batch, asked, &reply));
            match outcomes.map_err(|failure| self.describe(&failure)) {
                Ok(outcomes) => {
                    let outcomes =
                        outcomes.into_iter().map(|outcome| outcome.map_err(|failure| self.describe(&failure)));
                    set(&mut answers, asked.indices().zip(outcomes));
                }
                Err(error) => set(&mut answers, asked.indices().map(|index| (index, Err(error.clone())))),
            }
        }
        let mut answers = answers.into_iter();
        let too_few = || Err(StoreError::new("Redis sent fewer replies than requested"));
        batch.answer_each(|_| answers.next().flatten().unwrap_or_else(too_few));
    }

    async fn list(&self, listing: Listing) -> Result<Page, StoreError> {
        let deadline = self.deadline();
        let scanned = self.target.scan(&Scan::of(&listing), listing.cursor.as_deref(), deadline).await;
        let Scanned { actors, next } = scanned.map_err(|failure| self.describe(&failure))?;
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
                // As good as fresh; or unreadable, and the others are listed all the same.
                Ok(_) | Err(StoreError::Failed(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(page)
    }

    async fn approximate_len(&self) -> Result<u64, StoreError> {
        self.target.count_keys(self.deadline()).await.map_err(|failure| self.describe(&failure))
    }

    /// A cluster is ready while any of its masters takes hits: all servers see the same cluster, and a load balancer that
    /// takes them all away serves no client.
    async fn check(&self) -> Result<(), StoreError> {
        self.target.check(self.deadline()).await.map_err(|failure| self.describe(&failure))
    }

    async fn change_limit(&self, change: LimitChange, now: Timestamp) -> Result<Option<bool>, StoreError> {
        let reply = self.ask(actor_limits::change(&change, now)).await?;
        actor_limits::was_there(&reply).map(Some).map_err(|failure| self.describe(&failure))
    }

    async fn follow_limits(&self, known: LimitCursor) -> Result<LimitPage, StoreError> {
        let reply = self.ask(actor_limits::follow(&known)).await?;
        actor_limits::page(&known, &reply).map_err(|failure| self.describe(&failure))
    }

    fn metrics(&self) -> Vec<Metric> {
        let connected = f64::from(u8::from(self.target.is_connected()));
        vec![Metric::gauge("divvy_redis_connected", "1 while there is a connection to Redis.", connected)]
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.target.close();
        Ok(())
    }
}

impl RedisStore {
    async fn ask(&self, call: Call) -> Result<Reply, StoreError> {
        let replies = self.target.exchange(&[call], self.deadline()).await;
        let reply = replies.into_iter().next().unwrap_or(Err(Failure::NoNode));
        reply.map_err(|failure| self.describe(&failure))
    }

    /// When a call that begins now must have ended.
    #[expect(clippy::disallowed_methods, reason = "how long to wait for Redis")]
    fn deadline(&self) -> Instant {
        Instant::now() + self.timeout
    }

    fn describe(&self, failure: &Failure) -> StoreError {
        failure.describe(&self.target.name)
    }
}

/// Puts each answer in the place of its action.
fn set(
    places: &mut [Option<Result<Outcome, StoreError>>],
    answers: impl Iterator<Item = (usize, Result<Outcome, StoreError>)>,
) {
    for (index, answer) in answers {
        if let Some(place) = places.get_mut(index) {
            *place = Some(answer);
        }
    }
}
