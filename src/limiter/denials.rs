//! Denials that count for the blocks that rules set, until they are counted in the store.
//!
//! A report notes whom a rule with a [penalty](crate::rules::Penalty) denied, and hits wait for nothing more. A task takes the
//! notes, counts them, and sets the blocks that are due. So a block holds from a later batch on.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::policy::RulePenalty;
use crate::clock::Timestamp;

/// Maximum number of actors whose denials are noted at a time. Denials of others are lost: they did not count.
const MAX_NOTED: usize = 10_000;
/// Maximum length of an actor that a rule blocks (bytes). Clients choose the names, and blocks stay in memory for long.
const MAX_ACTOR: usize = 256;
/// Maximum length of the keys of all notes (bytes).
const MAX_NOTED_BYTES: usize = 4 * 1024 * 1024;

/// Denials that are not counted yet.
#[derive(Debug, Default)]
pub(super) struct Denials {
    /// Denials by the store.
    notes: Mutex<Notes>,
    /// Denials by the denial cache, which are counted later, many at once: the cache saves the store from a flood.
    cached: Mutex<Notes>,
    has_notes: Notify,
    /// Number of denials that did not count.
    lost: AtomicU64,
}

/// A denial of an actor by a rule with a penalty.
#[derive(Debug, Clone, Copy)]
pub(super) struct Denial<'a> {
    pub penalty: &'a Arc<RulePenalty>,
    pub actor: &'a [u8],
    /// Whether the denial cache denied.
    pub is_cached: bool,
}

#[derive(Debug, Default)]
struct Notes {
    by_counter: HashMap<Box<[u8]>, Note>,
    /// Length of all keys.
    bytes: usize,
}

#[derive(Debug)]
struct Note {
    penalty: Arc<RulePenalty>,
    count: u64,
    at: Timestamp,
}

/// Denials of one actor by one rule.
#[derive(Debug)]
pub(super) struct DeniedActor {
    pub penalty: Arc<RulePenalty>,
    /// Key of the counter of denials. It ends with the actor.
    pub counter: Box<[u8]>,
    /// Number of denials.
    pub count: u64,
    /// Time of the latest.
    pub at: Timestamp,
}

impl DeniedActor {
    /// Returns the actor, which is always text.
    pub fn actor(&self) -> &str {
        let actor = self.counter.strip_prefix(self.penalty.counters.as_bytes());
        std::str::from_utf8(actor.unwrap_or_default()).unwrap_or_default()
    }
}

impl Denials {
    /// Notes denials at `at`.
    pub fn note<'a>(&self, denials: impl Iterator<Item = Denial<'a>>, at: Timestamp) {
        let mut is_new = false;
        for denial in denials.filter(|denial| denial.actor.len() <= MAX_ACTOR) {
            let notes = if denial.is_cached { &self.cached } else { &self.notes };
            is_new |= !denial.is_cached;
            if !notes.lock().add(&denial, at) {
                self.lose(1);
            }
        }
        if is_new {
            self.has_notes.notify_one();
        }
    }

    /// Waits until the store has denied.
    pub async fn wait(&self) {
        self.has_notes.notified().await;
    }

    /// Takes the notes of denials by the store.
    pub fn take(&self) -> Vec<DeniedActor> {
        std::mem::take(&mut *self.notes.lock()).into_actors()
    }

    /// Takes the notes of denials by the denial cache.
    pub fn take_cached(&self) -> Vec<DeniedActor> {
        std::mem::take(&mut *self.cached.lock()).into_actors()
    }

    /// Records that denials did not count, because the store failed.
    pub fn lose(&self, count: u64) {
        self.lost.fetch_add(count, Relaxed);
    }

    /// Returns the number of denials that did not count.
    pub fn lost(&self) -> u64 {
        self.lost.load(Relaxed)
    }
}

impl Notes {
    /// Notes a denial. Returns whether there is room for it.
    fn add(&mut self, Denial { penalty, actor, .. }: &Denial<'_>, at: Timestamp) -> bool {
        let counter = [penalty.counters.as_bytes(), actor].concat();
        if let Some(note) = self.by_counter.get_mut(counter.as_slice()) {
            (note.count, note.at) = (note.count + 1, note.at.max(at));
            return true;
        }
        if self.by_counter.len() >= MAX_NOTED || self.bytes + counter.len() > MAX_NOTED_BYTES {
            return false;
        }
        self.bytes += counter.len();
        self.by_counter.insert(counter.into(), Note { penalty: Arc::clone(penalty), count: 1, at });
        true
    }

    fn into_actors(self) -> Vec<DeniedActor> {
        let of_note = |(counter, Note { penalty, count, at })| DeniedActor { penalty, counter, count, at };
        self.by_counter.into_iter().map(of_note).collect()
    }
}
