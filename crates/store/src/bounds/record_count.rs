//! Numbers of records by kind.

#[cfg(any(test, feature = "testing"))]
use divvy_core::algorithm::Record;

/// Numbers of reservations and of answers to idempotent requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RecordCount {
    /// Open reservations.
    pub reservations: u64,
    /// Answers to idempotent requests.
    pub answered: u64,
}

#[cfg(any(test, feature = "testing"))]
impl RecordCount {
    /// Counts one record.
    pub fn of(record: &Record) -> Self {
        let reservations = record.is_reservation().into();
        Self { reservations, answered: 1 - reservations }
    }
}

#[cfg(any(test, feature = "testing"))]
impl std::ops::AddAssign for RecordCount {
    fn add_assign(&mut self, other: Self) {
        self.reservations += other.reservations;
        self.answered += other.answered;
    }
}
