//! Compiles `interpose.c` once, and runs servers with it.

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
pub fn interposed(root: &Path) -> Command {
    let mut command = divvy();
    command.env("LD_PRELOAD", &*LIBRARY).env("DIVVY_POWER_ROOT", root);
    command
}
