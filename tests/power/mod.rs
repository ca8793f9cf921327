//! What a disk can do: lose its power at any moment, and fail for a while.
//!
//! The server under test runs with `interpose.c` between it and the file system. With a [`trace`] of what it wrote and
//! synced, and when it acknowledged what, [`disk`] builds the disks that a power cut could have left, and [`cuts`] opens
//! each of them. With faults that begin and end at will, [`failing`] looks at how the server comes through.

mod cuts;
mod disk;
mod failing;
mod interposed;
mod trace;

/// A directory in memory, where there is one: thousands of disks are written and opened, and a real disk may take minutes
/// for a single fsync while others are busy with it. Then a test of how a failure ends would see the machine's own.
fn in_memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}
