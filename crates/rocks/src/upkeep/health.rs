//! The condition of the database: whether it takes writes, and why not.
//!
//! A failed write to the log is final for an open RocksDB database: data that it had not synced may be lost, and it
//! takes no more writes. The engine then refuses changes, and a thread reopens the database.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use crate::sync::Mutex;
use crate::sync::atomic::AtomicU8;
use divvy_store::contract::{Entry, StoreError};

/// The operations that the database supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Condition {
    /// Reads and writes.
    Well = 0,
    /// Reads at most. The database must be reopened.
    Broken = 1,
    /// Reads. The next commit first writes everything that the disk may lack.
    Reopened = 2,
}

/// The condition of the database, and the failure that caused it.
#[derive(Default)]
pub struct Health {
    /// The current [`Condition`], at first [`Condition::Well`].
    condition: AtomicU8,
    fault: Mutex<Option<StoreError>>,
}

impl Health {
    pub fn condition(&self) -> Condition {
        match self.condition.load(Acquire) {
            0 => Condition::Well,
            1 => Condition::Broken,
            _ => Condition::Reopened,
        }
    }

    pub fn is_well(&self) -> bool {
        self.condition() == Condition::Well
    }

    /// Returns the failure that makes writes fail; `None` while the database is well.
    #[inline]
    pub fn fault(&self) -> Option<StoreError> {
        if self.is_well() { None } else { Some(self.known_fault()) }
    }

    #[cold]
    fn known_fault(&self) -> StoreError {
        let unknown = || StoreError::new("the disk failed; the database is being reopened");
        self.fault.lock().clone().unwrap_or_else(unknown)
    }

    /// Returns the error for an entry that would create a counter while the disk refuses writes. Such counters could
    /// not be written, and would fill the memory.
    pub fn refusal(&self, entry: &Entry) -> Option<StoreError> {
        if entry.action.gives_back() { None } else { self.fault() }
    }

    /// Records that a write or an fsync failed.
    pub fn broke(&self, error: &StoreError) {
        *self.fault.lock() = Some(error.clone());
        self.condition.store(Condition::Broken as u8, Release);
    }

    /// Records that the database was reopened.
    pub fn reopened(&self) {
        self.condition.store(Condition::Reopened as u8, Release);
    }

    /// Records that everything is on the disk again, unless there was a failure since [`Health::reopened`].
    pub fn caught_up(&self) {
        let (reopened, well) = (Condition::Reopened as u8, Condition::Well as u8);
        if self.condition.compare_exchange(reopened, well, AcqRel, Acquire).is_ok() {
            *self.fault.lock() = None;
        }
    }
}
