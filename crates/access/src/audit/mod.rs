//! The audit log: a line for each change by an operator, and for each refused attempt at one.
//!
//! A front begins a change with [`AuditLog::begin`], carries it out, and ends the [`PendingChange`] with its outcome. With a
//! file of its own, lines go through a bounded queue to a thread, so that a slow or failing disk delays no hit. Without a
//! file they are events of the ordinary log, with the target `audit`. If the audit log is required, a change begins only
//! when a line about the attempt is on stable storage. Nothing here depends on protocols or rules.

mod audit_log;
mod change;
mod entry;
mod writer;

pub use self::audit_log::{AuditLog, PendingChange, Unavailable};
pub use self::change::{Action, Caller, Change, State};
