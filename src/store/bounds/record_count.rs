//! Numbers of records by kind.

#[cfg(test)]
use crate::algorithm::Record;

/// Numbers of reservations and of answers to idempotent requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RecordCount {
    pub reservations: u64,
    pub answered: u64,
}

#[cfg(test)]
impl RecordCount {
    /// Counts one record.
    pub fn of(record: &Record) -> Self {
        let reservations = record.is_reservation().into();
        Self { reservations, answered: 1 - reservations }
    }
}

#[cfg(test)]
impl std::ops::AddAssign for RecordCount {
    fn add_assign(&mut self, other: Self) {
        self.reservations += other.reservations;
        self.answered += other.answered;
    }
}
