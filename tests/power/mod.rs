//! Disks that lose power at any moment, or fail temporarily.
//!
//! `interpose.c` observes the calls of the server under test to the file system. From a [`trace`] of writes, syncs and
//! acknowledgements, [`disk`] builds the disks that a power cut could have left, and [`cuts`] opens each of them. With
//! faults that begin and end on command, [`failing`] checks how the server recovers.

mod cuts;
mod disk;
mod failing;
mod trace;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use crate::support::divvy;

/// The library, in the build's directory for tests. Its name contains this process's id, because other runs may compile
/// their own.
static LIBRARY: LazyLock<PathBuf> = LazyLock::new(|| {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/power/interpose.c");
    let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join("interpose.so");
    let compiling = library.with_extension(format!("{}.so", std::process::id()));
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut command = Command::new(compiler);
    command.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"]).arg(&compiling).arg(source);
    let status = command.args(["-ldl", "-lpthread"]).status().expect("a C compiler, which RocksDB needs as well");
    assert!(status.success(), "tests/power/interpose.c does not compile");
    std::fs::rename(&compiling, &library).unwrap();
    library
});

/// Returns the program under test. Every call that changes something below `root` is observed.
fn interposed(root: &Path) -> Command {
    let mut command = divvy();
    command.env("LD_PRELOAD", &*LIBRARY).env("DIVVY_POWER_ROOT", root);
    command
}

/// Returns a directory in memory if possible. The tests write and open thousands of disks, and on a real disk a single
/// fsync may take minutes while others use it. A test of recovery would then measure the machine.
fn in_memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}
