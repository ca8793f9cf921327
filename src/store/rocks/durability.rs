//! When a hit may be answered.

/// When a hit may be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// Once it is on stable storage.
    Sync,
    /// Once it is in the write-ahead log, which survives the end of the process; stable storage follows every second.
    #[default]
    Wal,
    /// At once; it is in the write-ahead log within 100 ms.
    Lazy,
}
