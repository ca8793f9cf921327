//! Runs of divvy's own commands.

use std::path::Path;
use std::process::Command;

use super::{Server, divvy};

/// Runs a command. Returns its exit code, standard output and standard error.
pub fn output(command: &mut Command) -> (i32, String, String) {
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// Runs `divvy` with these arguments.
pub fn run(args: &[&str]) -> (i32, String, String) {
    output(divvy().args(args))
}

/// Runs `divvy`, which must succeed. Returns its standard output.
pub fn done(args: &[&str]) -> String {
    let (code, out, error) = run(args);
    assert_eq!(code, 0, "{args:?}: {out}{error}");
    out
}

/// Runs `divvy`, which must fail. Returns its standard error.
pub fn refused(args: &[&str]) -> String {
    let (code, out, error) = run(args);
    assert_ne!(code, 0, "{args:?}: {out}");
    error
}

/// Runs `divvy` with these arguments as a client of this server.
pub fn run_at(server: &Server, args: &[&str]) -> (i32, String, String) {
    output(divvy().args(args).env("DIVVY_SERVER", server.http.to_string()))
}

/// Restores a backup into a new data directory.
pub fn restore(backup: impl AsRef<Path>, data: impl AsRef<Path>) {
    let (code, out, error) = output(divvy().arg("restore").arg(backup.as_ref()).arg("--data-dir").arg(data.as_ref()));
    assert_eq!(code, 0, "{out}{error}");
}
