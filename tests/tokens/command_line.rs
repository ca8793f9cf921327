//! `divvy token`, and the flags of `divvy serve` for tokens.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use divvy::access::{MAX_TOKEN_BYTES, TokenKeys};

use super::Guarded;
use crate::support::{Log, Place, Server, divvy, divvy_with, done, output, run};

#[test]
fn printed_token_reads_the_status() {
    let guarded = Guarded::start(&[]);
    guarded.hit(&["api=1 user=ann", "export=1 user=ann"]);
    let file = guarded.path("keys");
    let used = |token: &str| guarded.status("user=ann", token.trim_end()).1;
    let printed = run(&format!("token --actor user=ann --ttl 1h --token-key-file {file}"));
    assert_eq!((printed.0, used(&printed.1).len(), printed.2.as_str()), (0, 2, ""));
    let printed = done(&format!("token --actor user=ann --rules 'exp*' --rules x --ttl 7d --token-key-file {file}"));
    assert_eq!(used(&printed), [("exports".to_owned(), 1)]);
    let mut by_variable = divvy_with("token --actor user=ann --ttl 1h");
    let (_, printed, _) = output(by_variable.env("DIVVY_TOKEN_KEY_FILE", file));
    assert_eq!(used(&printed).len(), 2);
}

#[test]
fn key_file_that_everyone_can_read_is_warned_of() {
    let place = Place::with("", &[("keys", &TokenKeys::generate().unwrap())]);
    let file = place.path("keys");
    let warning = format!("{file}: every user of this machine can read it; run `chmod o-r {file}`");
    for (mode, is_warned_of) in [(0o640, false), (0o644, true)] {
        fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
        let (code, printed, error) = run(&format!("token --actor user=ann --ttl 1h --token-key-file {file}"));
        assert!(code == 0 && printed.starts_with("v4.local."), "{printed}{error}");
        assert_eq!(error == format!("warning: {warning}\n"), is_warned_of, "{error}");

        let mut command = divvy();
        let log = Log::of(&mut command);
        command.env("DIVVY_REQUIREPASS", "x").env("RUST_LOG", "info");
        let server = Server::start_as(&mut command, &["--store", "memory", "--token-key-file", &file]);
        assert!(server.terminate().success());
        assert_eq!(log.count(&warning), usize::from(is_warned_of));
    }
}

#[test]
fn key_command_prints_lines_of_a_key_file() {
    for variable in [None, Some("none")] {
        let mut command = divvy_with("token key");
        let (code, lines, error) = output(command.envs(variable.map(|file| ("DIVVY_TOKEN_KEY_FILE", file))));
        assert_eq!((code, error.as_str()), (0, ""));
        assert!(lines.starts_with("# k4.lid.") && lines.lines().count() == 2, "{lines}");
        assert_eq!(TokenKeys::parse(&lines, "keys").unwrap().ids().count(), 1);
    }
}

#[test]
fn mistakes_are_named() {
    let place = Place::with("", &[("keys", &TokenKeys::generate().unwrap())]);
    let file = place.path("keys");
    let error = |arguments: &str| {
        let (code, out, error) = run(&format!("token {arguments}"));
        assert!(code != 0 && out.is_empty(), "{arguments}: {out}");
        error
    };
    let long = "x".repeat(MAX_TOKEN_BYTES);
    for (arguments, expected) in [
        (format!("--actor user=ann --ttl 8d --token-key-file {file}"), "from 1s to 1w"),
        (format!("--actor user --ttl 1h --token-key-file {file}"), "expected key=value"),
        (format!("--actor user=a user=b --ttl 1h --token-key-file {file}"), "has the field \"user\" twice"),
        (format!("--actor user={long} --ttl 1h --token-key-file {file}"), "it is longer than 4096 bytes"),
        ("--actor user=ann --ttl 1h".to_owned(), "--token-key-file <FILE>"),
        ("--actor user=ann --ttl 1h --token-key-file /none".to_owned(), "error: /none: cannot read the file"),
    ] {
        assert!(error(&arguments).contains(expected), "{arguments}: {}", error(&arguments));
    }
    place.write("keys", "k4.local.x\n\nk4.local.y\n");
    let error = error(&format!("--actor user=ann --ttl 1h --token-key-file {file}"));
    assert_eq!(error.lines().count(), 2, "{error}");
    assert!(error.starts_with(&format!("error: {file}:1: this is not a key in PASERK's format")), "{error}");
}
