//! `divvy token`, and the flags of `divvy serve` for tokens.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Output;

use divvy::access::{MAX_TOKEN_BYTES, TokenKeys};

use super::Guarded;
use crate::support::{Log, Server, divvy};

fn token(arguments: &[&str]) -> Output {
    divvy().arg("token").args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Returns the error of a failing command, which prints nothing on standard output.
fn error(output: &Output) -> String {
    assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
    text(&output.stderr)
}

#[test]
fn printed_token_reads_the_status() {
    let guarded = Guarded::start(&[]);
    guarded.hit(&["api=1 user=ann", "export=1 user=ann"]);
    let file = guarded.key_file();
    let file = file.to_str().unwrap();
    let made = token(&["--actor", "user=ann", "--ttl", "1h", "--token-key-file", file]);
    assert!(made.status.success() && made.stderr.is_empty(), "{made:?}");
    assert_eq!(guarded.status("user=ann", text(&made.stdout).trim_end()).1.len(), 2);
    let made =
        token(&["--actor", "user=ann", "--rules", "exp*", "--rules", "x", "--ttl", "7d", "--token-key-file", file]);
    assert_eq!(guarded.status("user=ann", text(&made.stdout).trim_end()).1, [("exports".to_owned(), 1)]);
    let made = divvy().args(["token", "--actor", "user=ann", "--ttl", "1h"]).env("DIVVY_TOKEN_KEY_FILE", file).output();
    assert_eq!(guarded.status("user=ann", text(&made.unwrap().stdout).trim_end()).0, 200);
}

#[test]
fn key_file_that_everyone_can_read_is_warned_of() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys");
    fs::write(&path, TokenKeys::generate().unwrap()).unwrap();
    let file = path.to_str().unwrap();
    let warning = format!("{file}: every user of this machine can read it; run `chmod o-r {file}`");
    for (mode, is_warned_of) in [(0o640, false), (0o644, true)] {
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        let made = token(&["--actor", "user=ann", "--ttl", "1h", "--token-key-file", file]);
        assert!(made.status.success() && text(&made.stdout).starts_with("v4.local."), "{made:?}");
        assert_eq!(text(&made.stderr) == format!("warning: {warning}\n"), is_warned_of, "{made:?}");

        let mut command = divvy();
        let log = Log::of(&mut command);
        command.env("DIVVY_REQUIREPASS", "x").env("RUST_LOG", "info");
        let server = Server::start_as(&mut command, &["--store", "memory", "--token-key-file", file]);
        assert!(server.terminate().success());
        assert_eq!(log.count(&warning), usize::from(is_warned_of));
    }
}

#[test]
fn key_command_prints_lines_of_a_key_file() {
    for variable in [None, Some("none")] {
        let mut command = divvy();
        command.args(["token", "key"]).envs(variable.map(|file| ("DIVVY_TOKEN_KEY_FILE", file)));
        let made = command.output().unwrap();
        assert!(made.status.success() && made.stderr.is_empty(), "{made:?}");
        let lines = text(&made.stdout);
        assert!(lines.starts_with("# k4.lid.") && lines.lines().count() == 2, "{lines}");
        assert_eq!(TokenKeys::parse(&lines, "keys").unwrap().ids().count(), 1);
    }
}

#[test]
fn mistakes_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys");
    fs::write(&path, TokenKeys::generate().unwrap()).unwrap();
    let file = path.to_str().unwrap();
    let long = format!("user={}", "x".repeat(MAX_TOKEN_BYTES));
    for (arguments, expected) in [
        (&["--actor", "user=ann", "--ttl", "8d", "--token-key-file", file][..], "from 1s to 1w"),
        (&["--actor", "user", "--ttl", "1h", "--token-key-file", file], "expected key=value"),
        (&["--actor", "user=a", "user=b", "--ttl", "1h", "--token-key-file", file], "has the field \"user\" twice"),
        (&["--actor", &long, "--ttl", "1h", "--token-key-file", file], "it is longer than 4096 bytes"),
        (&["--actor", "user=ann", "--ttl", "1h"], "--token-key-file <FILE>"),
        (&["--actor", "user=ann", "--ttl", "1h", "--token-key-file", "/none"], "error: /none: cannot read the file"),
    ] {
        let error = error(&token(arguments));
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
    fs::write(&path, "k4.local.x\n\nk4.local.y\n").unwrap();
    let error = error(&token(&["--actor", "user=ann", "--ttl", "1h", "--token-key-file", file]));
    assert_eq!(error.lines().count(), 2, "{error}");
    assert!(error.starts_with(&format!("error: {file}:1: this key is damaged")), "{error}");
}
