//! A shard number for each thread, so that threads count in different cache lines.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Number of shards. If there are more threads, some share one.
pub const SHARDS: usize = 16;

thread_local! {
    static OWN: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Relaxed) % SHARDS
    };
}

/// Returns this thread's shard, below [`SHARDS`].
pub fn own() -> usize {
    OWN.with(|own| *own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_one_shard_and_neighbors_have_different_ones() {
        let places: Vec<_> = (0..2 * SHARDS).map(|_| std::thread::spawn(|| (own(), own())).join().unwrap()).collect();
        assert!(places.iter().all(|(one, again)| one == again && *one < SHARDS));
        assert!(places.iter().any(|(place, _)| *place != places[0].0));
    }
}
