//! Checks the RocksDB that was compiled before.

use std::path::PathBuf;
use std::{env, error, fs};

/// Fails if `ROCKSDB_LIB_DIR` has an archive of another version than the one in Cargo.lock, as after a `git pull`.
fn main() -> Result<(), Box<dyn error::Error>> {
    println!("cargo:rerun-if-env-changed=ROCKSDB_LIB_DIR");
    println!("cargo:rerun-if-changed=../../Cargo.lock");
    let Some(dir) = env::var_os("ROCKSDB_LIB_DIR") else {
        return Ok(());
    };
    let (Ok(stamp), Ok(lock)) =
        (fs::read_to_string(PathBuf::from(dir).join("stamp")), fs::read_to_string("../../Cargo.lock"))
    else {
        return Ok(());
    };
    let locked = lock.split("[[package]]").find(|package| package.contains("name = \"librocksdb-sys\""));
    let version = stamp.split_whitespace().nth(2).unwrap_or_default();
    if locked.is_some_and(|package| !package.contains(&format!("version = \"{version}\""))) {
        return Err("this RocksDB is not the version in Cargo.lock: run `make libraries`".into());
    }
    Ok(())
}
