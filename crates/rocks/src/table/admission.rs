//! Admission of changes: each needs a commit, a disk that takes writes, and room.

use std::sync::Arc;

use crate::commit::group_commit::GroupCommit;
use crate::upkeep::health::Health;
use divvy_store::bounds::{CounterBudget, RecordBudgets};

/// Decides which changes of counters and records are admitted, and which commit they belong to.
pub struct Admission {
    pub commits: Arc<GroupCommit>,
    pub health: Health,
    pub counters: Arc<CounterBudget>,
    pub records: RecordBudgets,
}
