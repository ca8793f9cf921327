//! Group commit and the journal: how changes become durable.
//!
//! [`group_commit`] chooses the connection that makes a commit, decides how long it waits for others, and releases those that wait
//! for it. A commit is one [`journal`] record. The journal is cut into [`segments`]. A counter's mark says which of them holds its last
//! change.

pub mod group_commit;
pub mod journal;
pub mod segments;
