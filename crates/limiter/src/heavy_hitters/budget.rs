//! The memory that all boards share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A bound on memory, and the part in use (bytes).
#[derive(Debug)]
pub struct Budget {
    max: usize,
    used: AtomicUsize,
}

/// A part of the budget. It is returned when the grant is dropped.
#[derive(Debug)]
pub struct Grant {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Budget {
    pub fn new(max: usize) -> Self {
        Self { max, used: AtomicUsize::new(0) }
    }

    pub fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    /// Takes this many bytes, if they are free.
    pub fn take(self: &Arc<Self>, bytes: usize) -> Option<Grant> {
        let taken =
            self.used.fetch_update(Relaxed, Relaxed, |used| used.checked_add(bytes).filter(|all| *all <= self.max));
        taken.ok().map(|_| Grant { budget: Arc::clone(self), bytes })
    }
}

impl Grant {
    /// Returns the bytes that are not in use.
    pub fn free(&self) -> usize {
        self.budget.max.saturating_sub(self.budget.used())
    }

    /// Adds bytes to the grant. Returns false if they are not free.
    #[must_use]
    pub fn grow(&mut self, bytes: usize) -> bool {
        let Some(mut more) = self.budget.take(bytes) else { return false };
        self.bytes += std::mem::take(&mut more.bytes);
        true
    }

    /// Returns bytes to the budget.
    pub fn shrink(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.budget.used.fetch_sub(bytes, Relaxed);
    }

    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.shrink(self.bytes);
    }
}
