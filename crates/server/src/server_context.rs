//! The state that all fronts share.

use std::sync::Arc;

use crate::health::Health;
use crate::limits::Limits;
use crate::net::memory::BufferMemory;
use crate::net::work::{MAX_AT_ONCE, WorkSlots};
use crate::operations::Operations;
use divvy_access::audit::AuditLog;
use divvy_limiter::Limiter;

/// The state that all fronts share.
#[derive(Clone)]
pub struct ServerContext {
    pub limiter: Arc<Limiter>,
    /// Carries out what operators ask for.
    pub operations: Operations,
    pub limits: Limits,
    /// Budget for buffers and for requests in work.
    pub memory: Arc<BufferMemory>,
    /// Bounds the large requests in work.
    pub slots: WorkSlots,
    pub health: Arc<Health>,
}

impl ServerContext {
    /// Creates the context of a server whose changes are recorded in `audit`.
    pub fn new(limiter: Arc<Limiter>, audit: Arc<AuditLog>, limits: Limits, health: Arc<Health>) -> Self {
        let operations = Operations::new(Arc::clone(&limiter), audit);
        let memory = BufferMemory::new(limits.max_buffer_memory, Arc::clone(limiter.metrics()));
        Self { limiter, operations, limits, memory, slots: WorkSlots::new(MAX_AT_ONCE), health }
    }
}
