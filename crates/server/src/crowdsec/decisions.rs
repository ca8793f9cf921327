//! The decisions that bouncers get: the blocks about addresses and networks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use tokio::task::yield_now;

use super::blocks::Blocks;
use super::journal::Journal;
use super::listing::{Bouncer, Bouncers, ListAnswer, StreamAnswer};
use crate::protocol::crowdsec::DecisionFilter;
use divvy_core::clock::{NANOS_PER_SECOND, Timestamp};
use divvy_limiter::Limiter;
use divvy_telemetry::logging::LogThrottle;

/// Minimum time between two updates of the journal.
const UPDATE_EVERY_NS: u64 = NANOS_PER_SECOND;
/// Number of decisions that are settled before other tasks of the thread run.
const PAGE: usize = 500;

/// The decisions, and the bouncers that ask for them.
pub struct Decisions {
    limiter: Arc<Limiter>,
    blocks: Blocks,
    journal: Arc<Mutex<Journal>>,
    bouncers: Arc<Mutex<Bouncers>>,
    /// Admits one update at a time.
    updating: tokio::sync::Mutex<()>,
    has_updated: AtomicBool,
    /// The revision of the blocks that the journal has.
    revision: AtomicU64,
    /// Time of the last update (nanoseconds since 1970).
    updated: AtomicU64,
}

impl Decisions {
    /// Creates the decisions about the blocks of this field.
    pub fn new(limiter: Arc<Limiter>, field: Arc<str>) -> Self {
        Self {
            blocks: Blocks::new(Arc::clone(&limiter), field),
            limiter,
            journal: Arc::default(),
            bouncers: Arc::default(),
            updating: tokio::sync::Mutex::default(),
            has_updated: AtomicBool::new(false),
            revision: AtomicU64::new(0),
            updated: AtomicU64::new(0),
        }
    }

    /// Returns whether the journal has the blocks of now, or those of less than a second ago.
    pub fn is_current(&self) -> bool {
        let (now, updated) = (self.limiter.now().as_nanos(), self.updated.load(Relaxed));
        // After the clock was set back, the last update is no recent one.
        let is_recent = (updated..updated.saturating_add(UPDATE_EVERY_NS)).contains(&now);
        self.has_updated.load(Relaxed) && (is_recent || self.revision.load(Relaxed) == self.blocks.revision())
    }

    /// Updates the journal. Run it to its end, because half an update would keep blocks that do not exist anymore.
    pub async fn update(&self) {
        let _alone = self.updating.lock().await;
        // Another request may have updated it in the meantime.
        if self.is_current() {
            return;
        }
        // Changes during the update have a later revision.
        let (revision, now) = (self.blocks.revision(), self.limiter.now());
        let mut cursor = None;
        loop {
            let (blocks, next) = self.blocks.page(cursor.as_deref());
            self.journal.lock().note_all(blocks);
            cursor = next;
            if cursor.is_none() {
                break;
            }
            yield_now().await;
        }
        let mut place = self.journal.lock().settle(None, PAGE, now);
        while place.is_some() {
            yield_now().await;
            place = self.journal.lock().settle(place, PAGE, now);
        }
        self.revision.store(revision, Relaxed);
        self.updated.store(now.as_nanos(), Relaxed);
        self.has_updated.store(true, Relaxed);
    }

    /// Brings the journal to the present, which may take long if many blocks have ended. Other tasks run in between. Returns the
    /// time.
    async fn advance(&self) -> Timestamp {
        let now = self.limiter.now();
        while !self.journal.lock().advance(PAGE, now) {
            yield_now().await;
        }
        now
    }

    /// Returns the answer with the decisions in force.
    pub async fn list(&self, filter: DecisionFilter) -> ListAnswer {
        let now = self.advance().await;
        ListAnswer::new(Arc::clone(&self.journal), filter, now)
    }

    /// Returns the answer with the decisions that have changed since the bouncer's last request, or with all of them if it
    /// starts or is not known.
    pub async fn stream(&self, bouncer: Bouncer, is_startup: bool, filter: DecisionFilter) -> StreamAnswer {
        let now = self.advance().await;
        let after = if is_startup { 0 } else { self.bouncers.lock().position(&bouncer) };
        let journal = self.journal.lock();
        if !journal.remembers_since(after) {
            static LATE: LogThrottle = LogThrottle::new();
            let user = bouncer.user().unwrap_or("-").to_owned();
            LATE.say(|more| {
                tracing::warn!(
                    user,
                    more,
                    "a CrowdSec bouncer has not asked for long, and may keep decisions that have ended: restart it"
                );
            });
        }
        let through = journal.last_change();
        drop(journal);
        StreamAnswer::new(Arc::clone(&self.journal), Arc::clone(&self.bouncers), bouncer, filter, now, after..through)
    }
}
