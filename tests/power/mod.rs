//! Disks that lose power at any moment, or fail temporarily.
//!
//! `interpose.c` observes the calls of the server under test to the file system. From a [`trace`] of writes, syncs and
//! acknowledgements, [`disk`] builds the disks that a power cut could have left, and [`cuts`] opens each of them. With
//! faults that begin and end on command, [`failing`] checks how the server recovers.

mod cuts;
mod disk;
mod failing;
mod interposed;
mod trace;

/// Returns a directory in memory if possible. The tests write and open thousands of disks, and on a real disk a single
/// fsync may take minutes while others use it. A test of recovery would then measure the machine.
fn in_memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}
