//! Tests of all fronts at once.

#[cfg(feature = "rocksdb")]
mod dropped_connections;
