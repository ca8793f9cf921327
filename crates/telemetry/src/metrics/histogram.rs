//! A histogram that records many equal observations with two atomic additions.
//!
//! The library's histogram records one observation at a time, but all hits of a batch took the same time. Each bucket
//! also keeps the sum of its observations, which gives its mean. Each thread has its own shard.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};

use prometheus::proto;

/// Unit of the observed values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Values are observed in nanoseconds and shown in seconds.
    Seconds,
    /// Values are counts.
    Things,
}

impl Unit {
    fn shown(self, value: u64) -> f64 {
        match self {
            Self::Seconds => value as f64 / 1e9,
            Self::Things => value as f64,
        }
    }
}

/// Observations in buckets. Clones share them.
#[derive(Debug, Clone)]
pub struct Histogram(Arc<Core>);

#[derive(Debug)]
struct Core {
    unit: Unit,
    bounds: Box<[u64]>,
    /// Buckets, shard by shard. Each shard has one bucket more than there are bounds, for values beyond the last bound.
    buckets: Box<[Bucket]>,
}

/// A bucket, in its own cache line, so that no two threads write to the same line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Bucket {
    observations: AtomicU64,
    /// Sum of the values. It takes years of heavy load to overflow, and then Prometheus sees a counter that was reset.
    sum: AtomicU64,
}

/// A bucket's contents at one moment: the number of observations, and the sum of their values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BucketContents {
    pub observations: u64,
    pub sum: u64,
}

impl Histogram {
    /// Creates a histogram. `bounds` are the largest value of each bucket, ascending.
    pub fn new(unit: Unit, bounds: &[u64]) -> Self {
        let buckets = (0..SHARDS * (bounds.len() + 1)).map(|_| Bucket::default()).collect();
        Self(Arc::new(Core { unit, bounds: bounds.into(), buckets }))
    }

    /// Records `times` observations of `value`.
    pub fn observe(&self, value: u64, times: u64) {
        let index = self.0.bounds.partition_point(|bound| *bound < value);
        if let Some(bucket) = self.0.buckets.get(own() * self.0.shard_len() + index) {
            bucket.observations.fetch_add(times, Relaxed);
            bucket.sum.fetch_add(value.wrapping_mul(times), Relaxed);
        }
    }

    /// Returns the contents of all buckets in the order of their bounds. The last bucket has no bound.
    pub fn observed(&self) -> Vec<BucketContents> {
        let mut observed = vec![BucketContents::default(); self.0.shard_len()];
        for shard in self.0.buckets.chunks(self.0.shard_len()) {
            for (observed, bucket) in observed.iter_mut().zip(shard) {
                observed.observations += bucket.observations.load(Relaxed);
                observed.sum = observed.sum.wrapping_add(bucket.sum.load(Relaxed));
            }
        }
        observed
    }

    pub(super) fn to_proto(&self) -> proto::Metric {
        let (mut count, mut sum) = (0, 0u64);
        let mut buckets = Vec::with_capacity(self.0.bounds.len());
        let mut bounds = self.0.bounds.iter();
        for observed in self.observed() {
            count += observed.observations;
            sum = sum.wrapping_add(observed.sum);
            if let Some(bound) = bounds.next() {
                let mut bucket = proto::Bucket::default();
                bucket.set_cumulative_count(count);
                bucket.set_upper_bound(self.0.unit.shown(*bound));
                buckets.push(bucket);
            }
        }
        let mut histogram = proto::Histogram::default();
        histogram.set_sample_count(count);
        histogram.set_sample_sum(self.0.unit.shown(sum));
        histogram.set_bucket(buckets);
        let mut metric = proto::Metric::default();
        metric.set_histogram(histogram);
        metric
    }
}

impl Core {
    /// Returns the number of buckets in a shard.
    fn shard_len(&self) -> usize {
        self.bounds.len() + 1
    }
}

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
