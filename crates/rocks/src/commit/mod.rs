//! Group commit and the journal: how changes become durable.
//!
//! [`group_commit`] chooses the connection that makes a commit, and releases those that wait for it. [`gathering`] decides
//! how long a commit waits for others. A commit is one [`journal`] record. The journal is cut into [`segments`]. A counter's
//! [mark](segment_marks) says which of them holds its last change.

pub mod gathering;
pub mod group_commit;
pub mod journal;
pub mod segment_marks;
pub mod segments;
pub mod sorted_changes;
pub mod unsynced_records;
