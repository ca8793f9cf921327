//! divvy-crowdsec's command line. Its work is tested in divvy's `tests/crowdsec.rs`, with divvy and the real CrowdSec.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::process::{Command, Output};

fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_divvy-crowdsec")).args(args).env_remove("RUST_LOG").output().unwrap()
}

#[test]
fn wrong_settings_are_explained_at_start() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (key, empty) = (file("key", "abc\n"), file("empty", "\n"));
    let (url, listen) = ("http://127.0.0.1:8080", "127.0.0.1:0");
    for (args, expected) in [
        (&[][..], "nothing to do: add --url"),
        (&["--url", url], "--key-file <FILE>"),
        (&["--key-file", &key], "--url <URL>"),
        (&["--url", "127.0.0.1", "--key-file", &key], "--url: it is not a URL"),
        (&["--url", "redis://a", "--key-file", &key], "write a URL such as http://127.0.0.1:8080"),
        (&["--url", url, "--key-file", &empty], "the key must be the only line"),
        (&["--url", url, "--key-file", "/none"], "--key-file: cannot read /none"),
        (&["--url", url, "--key-file", &key, "--ca", &key], "--ca has no effect"),
        (&["--url", url, "--key-file", &key, "--divvy-url", "x"], "--divvy-url: it is not a URL"),
        (&["--url", url, "--key-file", &key, "--divvy-key-file", "/none"], "--divvy-key-file: cannot read /none"),
        (&["--listen", listen, "--bouncer-keys", &key], "line 1: write a name and a hash"),
        (&["--listen", listen, "--tls-cert", &key], "--tls-key <FILE>"),
        (&["--listen", listen, "--tls-cert", &key, "--tls-key", &key], "--tls-key"),
        (&["--bouncer-keys", &key], "--listen <ADDRESS>"),
        (&["--listen", "nowhere", "--field", "ip"], "--listen nowhere"),
        (&["--field", "a b"], "must be the name of a field"),
    ] {
        let output = run(args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(expected), "{args:?}: {error}");
    }
}

#[test]
#[cfg(feature = "packaging")]
fn manual_page_and_completions_have_the_flags() {
    for (args, expected) in [(&["--man"][..], ".TH divvy"), (&["--completions", "bash"], "--bouncer-keys")] {
        let output = run(args);
        assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains(expected), "{args:?}");
    }
}
