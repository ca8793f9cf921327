//! A bounded memory of windows that are used up: which bucket has nothing left until when.
//!
//! Only the memory lives here; [`super::denial_cache`] decides what goes in and what may be answered from it. It holds a
//! keyed hash in place of a bucket's key, and knows no limits, no outcomes and no clock.

use std::hash::{BuildHasher, RandomState};

use parking_lot::Mutex;
use siphasher::sip128::{Hash128, SipHasher13};

use crate::clock::Timestamp;

/// Places that one hash can go to: enough that a full memory seldom evicts what it could have kept.
const WAYS: usize = 8;

/// One bucket's window. A place whose window has ended is free.
#[derive(Debug, Clone, Copy, Default)]
struct Denial {
    high: u64,
    low: u64,
    until: Timestamp,
}

impl Denial {
    fn is_of(&self, hash: Hash128) -> bool {
        (self.high, self.low) == (hash.h1, hash.h2)
    }
}

/// Used-up windows by bucket key: sets of [`WAYS`] places, each set behind its own mutex, all allocated at start.
#[derive(Debug)]
pub struct Denials {
    sets: Box<[Mutex<[Denial; WAYS]>]>,
    /// Its secret is drawn at start, so that no client can choose keys that collide.
    hasher: SipHasher13,
}

impl Denials {
    /// A memory of `entries` windows, rounded up to the next multiple of eight; 0 remembers nothing.
    pub fn new(entries: usize) -> Self {
        let secret = RandomState::new();
        Self {
            sets: (0..entries.div_ceil(WAYS)).map(|_| Mutex::default()).collect(),
            hasher: SipHasher13::new_with_keys(secret.hash_one(0), secret.hash_one(1)),
        }
    }

    /// Whether it can remember anything at all.
    pub fn is_off(&self) -> bool {
        self.sets.is_empty()
    }

    /// Until when the bucket has nothing left; `None` when nothing is known of it at `now`.
    pub fn until(&self, key: &[u8], now: Timestamp) -> Option<Timestamp> {
        let (set, hash) = self.place(key)?;
        let set = set.lock();
        set.iter().find(|denial| denial.is_of(hash) && now < denial.until).map(|denial| denial.until)
    }

    /// Remembers that the bucket has nothing left until then, unless `is_stale` says otherwise by the time no other caller
    /// can touch its place. In a full set the window that would end first gives way.
    pub fn remember(&self, key: &[u8], until: Timestamp, is_stale: impl FnOnce() -> bool) {
        let Some((set, hash)) = self.place(key) else { return };
        let mut set = set.lock();
        if is_stale() {
            return;
        }
        let known = set.iter().position(|denial| denial.is_of(hash));
        let place = match known {
            Some(index) => set.get_mut(index),
            None => set.iter_mut().min_by_key(|denial| denial.until),
        };
        if let Some(place) = place {
            *place = Denial { high: hash.h1, low: hash.h2, until };
        }
    }

    /// Forgets what is known of the bucket.
    pub fn forget(&self, key: &[u8]) {
        let Some((set, hash)) = self.place(key) else { return };
        if let Some(denial) = set.lock().iter_mut().find(|denial| denial.is_of(hash)) {
            *denial = Denial::default();
        }
    }

    fn place(&self, key: &[u8]) -> Option<(&Mutex<[Denial; WAYS]>, Hash128)> {
        let hash = self.hasher.hash(key);
        let index = hash.h1.checked_rem(self.sets.len() as u64)?;
        Some((self.sets.get(usize::try_from(index).ok()?)?, hash))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_secs(seconds).unwrap()
    }

    fn key(number: u64) -> [u8; 8] {
        number.to_le_bytes()
    }

    #[test]
    fn a_window_is_known_until_it_ends() {
        let denials = Denials::new(8);
        denials.remember(b"one", at(60), || false);
        assert_eq!(denials.until(b"one", at(59)), Some(at(60)));
        assert_eq!(denials.until(b"one", at(60)), None);
        assert_eq!(denials.until(b"other", at(59)), None);
        denials.remember(b"one", at(70), || false);
        assert_eq!(denials.until(b"one", at(60)), Some(at(70)));
        denials.forget(b"one");
        assert_eq!(denials.until(b"one", at(60)), None);
    }

    #[test]
    fn what_is_stale_is_not_remembered() {
        let denials = Denials::new(8);
        denials.remember(b"one", at(60), || true);
        assert_eq!(denials.until(b"one", at(1)), None);
    }

    #[test]
    fn the_window_that_ends_first_gives_way() {
        let denials = Denials::new(WAYS);
        for number in 0..=WAYS as u64 {
            denials.remember(&key(number), at(100 + number), || false);
        }
        let known: Vec<_> = (0..=WAYS as u64).filter(|number| denials.until(&key(*number), at(1)).is_some()).collect();
        assert_eq!(known, (1..=WAYS as u64).collect::<Vec<_>>());
    }

    #[test]
    fn many_more_buckets_than_places_never_mix_up_and_never_outgrow_it() {
        let denials = Denials::new(100);
        for number in 0..10_000 {
            denials.remember(&key(number), at(1_000 + number), || false);
        }
        let known: Vec<_> =
            (0..10_000).filter_map(|number| Some((number, denials.until(&key(number), at(1))?))).collect();
        assert!((50..=104).contains(&known.len()), "{} are known", known.len());
        assert!(known.iter().all(|(number, until)| *until == at(1_000 + number)));
    }

    #[test]
    fn one_of_size_0_is_off() {
        let denials = Denials::new(0);
        assert!(denials.is_off());
        denials.remember(b"one", at(60), || false);
        assert_eq!(denials.until(b"one", at(1)), None);
        denials.forget(b"one");
    }
}
