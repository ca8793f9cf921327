//! The store that forgets everything with the process: for tests and try-outs.

use std::collections::HashMap;

use parking_lot::Mutex;

use super::{Batch, Change, Store, StoreError};
use crate::algorithm::State;
use crate::clock::Timestamp;

/// Fewer buckets than this are not worth looking through for expired ones.
const MIN_SWEEP: usize = 1024;

/// Buckets in a map behind one mutex.
#[derive(Default)]
pub struct MemoryStore {
    buckets: Mutex<Buckets>,
}

#[derive(Default)]
struct Buckets {
    states: HashMap<Box<[u8]>, (State, Timestamp)>,
    /// The number of buckets at which expired ones are dropped again: twice what the last sweep left.
    sweep_at: usize,
}

impl Buckets {
    fn sweep(&mut self, now: Timestamp) {
        if self.states.len() >= self.sweep_at {
            self.states.retain(|_, (_, expires)| now < *expires);
            self.sweep_at = MIN_SWEEP.max(self.states.len() * 2);
        }
    }
}

impl Store for MemoryStore {
    async fn apply(&self, batch: &mut Batch) {
        let now = batch.now();
        let mut buckets = self.buckets.lock();
        buckets.sweep(now);
        batch.answer_each(|_, key, entry| {
            let (outcome, change) = entry.decide(buckets.states.get(key).map(|(state, _)| state));
            match change {
                Change::Keep => {}
                Change::Set(state) => {
                    let expires = entry.expiry(&state, now);
                    buckets.states.insert(key.into(), (state, expires));
                }
                Change::Clear => {
                    buckets.states.remove(key);
                }
            }
            Ok(outcome)
        });
    }

    async fn approximate_len(&self) -> Result<u64, StoreError> {
        Ok(self.buckets.lock().states.len() as u64)
    }

    async fn close(&self) -> Result<(), StoreError> {
        Ok(())
    }
}
