//! Hashes that stand for keys in the table.

use std::hash::{BuildHasher, RandomState};

use siphasher::sip128::SipHasher13;

use crate::sync::is_modeled;
use divvy_store::record_key;

/// Returns the number of stripes, a power of two. The model checker finds more with only a few of them.
pub fn stripes() -> usize {
    if is_modeled() { 2 } else { 1024 }
}

/// A hash that stands for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyHash {
    pub high: u64,
    low: u64,
}

impl KeyHash {
    /// Returns the number of the counter's stripe.
    pub fn stripe(self) -> usize {
        self.low as usize % stripes()
    }
}

/// Hashes keys with a secret.
pub struct KeyHasher(SipHasher13);

impl KeyHasher {
    /// Draws a secret. The model checker needs the same one in each run.
    pub fn new() -> Self {
        let random = RandomState::new();
        let [low, high] = if is_modeled() { [0, 1] } else { [random.hash_one(0), random.hash_one(1)] };
        Self(SipHasher13::new_with_keys(low, high))
    }

    /// Hashes a counter's key.
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        let hash = self.0.hash(key);
        KeyHash { high: hash.h1, low: hash.h2 }
    }

    /// Hashes a key from the journal, of a counter or a record.
    pub fn hash_of(&self, key: &[u8]) -> KeyHash {
        let bucket = self.hash(record_key::bucket(key));
        if record_key::is_record(key) { self.hash_of_record(key, bucket) } else { bucket }
    }

    /// Hashes a record's key. The record is in the stripe of its bucket.
    pub fn hash_of_record(&self, key: &[u8], bucket: KeyHash) -> KeyHash {
        KeyHash { high: self.0.hash(key).h1, low: bucket.low }
    }
}
