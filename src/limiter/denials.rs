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
/// Maximum length of the keys of all notes (bytes).
const MAX_NOTED_BYTES: usize = 4 * 1024 * 1024;

/// Denials that are not counted yet.
#[derive(Debug, Default)]
pub(super) struct Denials {
    notes: Mutex<Notes>,
    has_notes: Notify,
    /// Number of denials that were lost, because there was no room for a note.
    lost: AtomicU64,
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
    /// Returns the actor.
    pub fn actor(&self) -> Option<&str> {
        let actor = self.counter.strip_prefix(self.penalty.counters.as_bytes())?;
        std::str::from_utf8(actor).ok()
    }
}

impl Denials {
    /// Notes that the rule with this penalty denied the actors, once each, at `at`.
    pub fn note<'a>(&self, denied: impl Iterator<Item = (&'a Arc<RulePenalty>, &'a [u8])>, at: Timestamp) {
        let mut denied = denied.peekable();
        if denied.peek().is_none() {
            return;
        }
        let mut notes = self.notes.lock();
        for (penalty, actor) in denied {
            if !notes.add(penalty, actor, at) {
                self.lost.fetch_add(1, Relaxed);
            }
        }
        drop(notes);
        self.has_notes.notify_one();
    }

    /// Waits until something is noted.
    pub async fn wait(&self) {
        self.has_notes.notified().await;
    }

    /// Takes all notes.
    pub fn take(&self) -> Vec<DeniedActor> {
        let notes = std::mem::take(&mut *self.notes.lock());
        let of_note = |(counter, Note { penalty, count, at })| DeniedActor { penalty, counter, count, at };
        notes.by_counter.into_iter().map(of_note).collect()
    }

    /// Returns the number of denials that were lost.
    pub fn lost(&self) -> u64 {
        self.lost.load(Relaxed)
    }
}

impl Notes {
    /// Notes a denial. Returns whether there is room for it.
    fn add(&mut self, penalty: &Arc<RulePenalty>, actor: &[u8], at: Timestamp) -> bool {
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
}
