//! A bounded table of windows that are used up, and of their ends.
//!
//! [`super::denial_cache`] decides which windows are remembered, and when they answer. The table holds a keyed hash of each
//! bucket's key.

use std::hash::{BuildHasher, RandomState};

use parking_lot::Mutex;
use siphasher::sip128::SipHasher13;

use divvy_core::clock::Timestamp;

/// Places for one hash. With eight, a full table seldom evicts a window while there are free places.
const WAYS: usize = 8;

/// A window that is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UsedUp {
    /// The end of the window.
    pub until: Timestamp,
    /// Time of the store's answer.
    pub learned: Timestamp,
    /// Credits of the limit that has nothing left. A larger limit may grant more.
    pub credits: u64,
    /// Credits used beyond the limit.
    pub owed: u64,
}

/// A slot for a bucket's window. It is free once the window has ended.
#[derive(Debug, Clone, Copy, Default)]
struct Denial {
    /// The hash of the bucket's key.
    hash: [u64; 2],
    used_up: UsedUp,
}

/// Used-up windows by bucket key, in sets of [`WAYS`] places. Each set has a mutex. All are allocated at the start.
#[derive(Debug)]
pub struct Denials {
    sets: Box<[Mutex<[Denial; WAYS]>]>,
    /// Its secret is random, so that no client can choose keys that collide.
    hasher: SipHasher13,
}

impl Denials {
    /// Creates a table of `entries` windows, rounded up to the next multiple of eight. 0 switches it off.
    pub fn new(entries: usize) -> Self {
        let secret = RandomState::new();
        Self {
            sets: (0..entries.div_ceil(WAYS)).map(|_| Mutex::default()).collect(),
            hasher: SipHasher13::new_with_keys(secret.hash_one(0), secret.hash_one(1)),
        }
    }

    /// Returns whether the table has no slots.
    pub fn is_off(&self) -> bool {
        self.sets.is_empty()
    }

    /// Returns the bucket's window, if it is known to be used up and not over at `now`.
    pub fn used_up(&self, key: &[u8], now: Timestamp) -> Option<UsedUp> {
        let (set, hash) = self.place(key)?;
        let set = set.lock();
        set.iter().find(|denial| denial.hash == hash).map(|denial| denial.used_up).filter(|known| now < known.until)
    }

    /// Remembers that the bucket has nothing left, unless `is_stale` returns true once the set is locked. In a full set, the window
    /// that ends first is evicted.
    pub fn remember(&self, key: &[u8], used_up: UsedUp, is_stale: impl FnOnce() -> bool) {
        let Some((set, hash)) = self.place(key) else { return };
        let mut set = set.lock();
        if is_stale() {
            return;
        }
        let known = set.iter().position(|denial| denial.hash == hash);
        let place = match known {
            Some(index) => set.get_mut(index),
            None => set.iter_mut().min_by_key(|denial| denial.used_up.until),
        };
        if let Some(place) = place {
            *place = Denial { hash, used_up };
        }
    }

    /// Forgets the bucket's window.
    pub fn forget(&self, key: &[u8]) {
        let Some((set, hash)) = self.place(key) else { return };
        if let Some(denial) = set.lock().iter_mut().find(|denial| denial.hash == hash) {
            *denial = Denial::default();
        }
    }

    fn place(&self, key: &[u8]) -> Option<(&Mutex<[Denial; WAYS]>, [u64; 2])> {
        let hash = self.hasher.hash(key);
        let index = hash.h1.checked_rem(self.sets.len() as u64)?;
        Some((self.sets.get(usize::try_from(index).ok()?)?, [hash.h1, hash.h2]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_secs(seconds).unwrap()
    }

    fn until(seconds: u64) -> UsedUp {
        UsedUp { until: at(seconds), learned: at(0), credits: 5, owed: 0 }
    }

    fn known(denials: &Denials, key: &[u8], seconds: u64) -> Option<Timestamp> {
        denials.used_up(key, at(seconds)).map(|known| known.until)
    }

    fn key(number: u64) -> [u8; 8] {
        number.to_le_bytes()
    }

    #[test]
    fn window_is_known_until_it_ends() {
        let denials = Denials::new(8);
        denials.remember(b"one", until(60), || false);
        assert_eq!(known(&denials, b"one", 59), Some(at(60)));
        assert_eq!(known(&denials, b"one", 60), None);
        assert_eq!(known(&denials, b"other", 59), None);
        denials.remember(b"one", until(70), || false);
        assert_eq!(known(&denials, b"one", 60), Some(at(70)));
        denials.forget(b"one");
        assert_eq!(known(&denials, b"one", 60), None);
    }

    #[test]
    fn stale_denial_is_not_remembered() {
        let denials = Denials::new(8);
        denials.remember(b"one", until(60), || true);
        assert_eq!(known(&denials, b"one", 1), None);
    }

    #[test]
    fn window_that_ends_first_is_evicted() {
        let denials = Denials::new(WAYS);
        for number in 0..=WAYS as u64 {
            denials.remember(&key(number), until(100 + number), || false);
        }
        let known: Vec<_> = (0..=WAYS as u64).filter(|number| known(&denials, &key(*number), 1).is_some()).collect();
        assert_eq!(known, (1..=WAYS as u64).collect::<Vec<_>>());
    }

    #[test]
    fn table_stays_bounded_and_never_confuses_buckets() {
        let denials = Denials::new(100);
        for number in 0..10_000 {
            denials.remember(&key(number), until(1_000 + number), || false);
        }
        let known: Vec<_> =
            (0..10_000).filter_map(|number| Some((number, known(&denials, &key(number), 1)?))).collect();
        assert!((50..=104).contains(&known.len()), "{} are known", known.len());
        assert!(known.iter().all(|(number, until)| *until == at(1_000 + number)));
    }

    #[test]
    fn table_of_size_0_is_off() {
        let denials = Denials::new(0);
        assert!(denials.is_off());
        denials.remember(b"one", until(60), || false);
        assert_eq!(known(&denials, b"one", 1), None);
        denials.forget(b"one");
    }
}
