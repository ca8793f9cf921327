//! Places for what may be open at the same time, such as connections: bounded in total, and for each client.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;

/// The taken places, and the bounds on them. A key, such as an address, stands for a client.
#[derive(Debug)]
pub struct Places<K> {
    max: usize,
    /// Maximum number with one key; `None` if only the total is bounded.
    max_of_key: Option<usize>,
    taken: Mutex<Taken<K>>,
}

#[derive(Debug)]
struct Taken<K> {
    all: usize,
    /// Places by key. Empty if keys are not bounded.
    by_key: HashMap<K, usize>,
}

/// The bound that leaves no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoPlace {
    /// All places are taken.
    InTotal,
    /// The client has its share of them.
    OfKey,
}

/// A place, which is free again when this is dropped.
#[derive(Debug)]
pub struct Place<K: Eq + Hash> {
    places: Arc<Places<K>>,
    key: Option<K>,
}

impl<K: Eq + Hash + Clone> Places<K> {
    /// Creates free places: `max` in total, and `max_of_key` for one client.
    pub fn new(max: usize, max_of_key: Option<usize>) -> Arc<Self> {
        Arc::new(Self { max, max_of_key, taken: Mutex::new(Taken { all: 0, by_key: HashMap::new() }) })
    }

    /// Takes a place. Without a key, only the total is bounded.
    ///
    /// # Errors
    /// A bound is reached.
    pub fn take(self: &Arc<Self>, key: Option<K>) -> Result<Place<K>, NoPlace> {
        let mut taken = self.taken.lock();
        if taken.all >= self.max {
            return Err(NoPlace::InTotal);
        }
        let key = key.filter(|_| self.max_of_key.is_some());
        if let (Some(key), Some(max)) = (&key, self.max_of_key) {
            let of_key = taken.by_key.entry(key.clone()).or_default();
            if *of_key >= max {
                return Err(NoPlace::OfKey);
            }
            *of_key += 1;
        }
        taken.all += 1;
        Ok(Place { places: Arc::clone(self), key })
    }
}

impl<K: Eq + Hash> Drop for Place<K> {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock();
        taken.all -= 1;
        if let Some(Entry::Occupied(mut of_key)) = self.key.take().map(|key| taken.by_key.entry(key)) {
            *of_key.get_mut() -= 1;
            if *of_key.get() == 0 {
                of_key.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_bounded_in_total_and_by_key_and_reusable() {
        let places = Places::new(3, Some(2));
        let of_ann = [places.take(Some("ann")).unwrap(), places.take(Some("ann")).unwrap()];
        assert_eq!(places.take(Some("ann")).unwrap_err(), NoPlace::OfKey);
        let of_bob = places.take(Some("bob")).unwrap();
        assert_eq!(places.take(Some("carl")).unwrap_err(), NoPlace::InTotal);
        drop(of_ann);
        assert_eq!(places.taken.lock().by_key.len(), 1, "clients that left are forgotten");
        let again = [places.take(Some("ann")).unwrap(), places.take(Some("carl")).unwrap()];
        assert_eq!(places.take(None).unwrap_err(), NoPlace::InTotal);
        drop((of_bob, again));
        let _all = [(); 3].map(|()| places.take(None).unwrap());
        assert_eq!(places.take(None).unwrap_err(), NoPlace::InTotal);
    }

    #[test]
    fn keys_without_a_bound_are_not_counted() {
        let places = Places::new(2, None);
        let _both = [places.take(Some("ann")).unwrap(), places.take(Some("ann")).unwrap()];
        assert_eq!(places.take(Some("ann")).unwrap_err(), NoPlace::InTotal);
        assert!(places.taken.lock().by_key.is_empty());
    }
}
