//! The embedded store of a build without the feature `rocksdb`. It cannot be opened. The rest of the crate is the same
//! in both builds.

use std::convert::Infallible;
use std::path::{Path, PathBuf};

use divvy_core::clock::Clock;
use divvy_store::{BackupError, Batch, Durability, Listing, NoRocksDb, Page, RocksOptions, Seal, Store, StoreError};
use divvy_telemetry::metrics::Metric;

/// The embedded store. This type has no values.
pub struct RocksStore(Infallible);

/// The error on opening: the build lacks the feature.
pub type OpenError = NoRocksDb;
/// The error on restoring: the build lacks the feature.
pub type RestoreError = NoRocksDb;

/// Fails without reading the backup or creating the data directory.
///
/// # Errors
/// Always.
pub fn restore(_backup: &Path, _data_dir: &Path, _clock: Clock) -> Result<u64, RestoreError> {
    Err(NoRocksDb)
}

impl RocksStore {
    /// Fails without creating the directory.
    ///
    /// # Errors
    /// Always.
    pub fn open(_path: &Path, _options: RocksOptions) -> Result<Self, OpenError> {
        Err(NoRocksDb)
    }

    /// Returns whether another process has the store in `path` open. This build never opens it.
    pub fn is_in_use(_path: &Path) -> bool {
        false
    }

    /// Is never called, because there is no store.
    ///
    /// # Errors
    /// None.
    pub async fn backup(&self, _name: &str) -> Result<PathBuf, BackupError> {
        match self.0 {}
    }

    /// Is never called, because there is no store.
    pub fn seal(&self) -> &Seal {
        match self.0 {}
    }

    /// Is never called, because there is no store.
    pub fn durability(&self) -> Durability {
        match self.0 {}
    }

    /// Is never called, because there is no store.
    pub fn path(&self) -> &Path {
        match self.0 {}
    }
}

impl Store for RocksStore {
    async fn apply(&self, _batch: &mut Batch) {
        match self.0 {}
    }

    async fn list(&self, _listing: Listing) -> Result<Page, StoreError> {
        match self.0 {}
    }

    async fn approximate_len(&self) -> Result<u64, StoreError> {
        match self.0 {}
    }

    fn metrics(&self) -> Vec<Metric> {
        match self.0 {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_of_opening_names_the_feature_and_no_directory_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        let error = RocksStore::open(&path, RocksOptions::default()).err().unwrap();
        assert!(error.to_string().contains("feature `rocksdb`"), "{error}");
        let error = restore(dir.path(), &path, Clock::system()).unwrap_err();
        assert!(error.to_string().contains("feature `rocksdb`"), "{error}");
        assert!(!path.exists());
    }
}
