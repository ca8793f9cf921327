//! `divvy access`, and divvy's own clients with a user.

use std::io::Write;
use std::process::{Command, Stdio};

use divvy::access::{SlowHash, parse};

use super::{Guarded, line, password};
use crate::support::{Server, divvy};

/// Runs a command with this input. Returns whether it succeeded, and its output.
fn output(command: &mut Command, input: &str) -> (bool, String, String) {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

#[test]
fn hash_of_a_password_is_a_word_of_the_file() {
    for options in [&[][..], &["--sha256"]] {
        let (is_done, word, errors) = output(divvy().args(["access", "hash"]).args(options), "correct horse\n");
        assert!(is_done, "{errors}");
        let file = parse(&format!("user a on {word}"), "f", None).unwrap();
        match options {
            [] => assert_eq!(file.users[0].slow_hashes, [SlowHash::parse(word.trim_end()).unwrap()]),
            _ => assert_eq!(word, "#4104d36f8da2c254349f85836793ebe029e0c957063a34c91c2e9203187b5631\n"),
        }
    }
    for input in ["", " x\n", "a\tb\n", &"x".repeat(600)] {
        let (is_done, word, errors) = output(divvy().args(["access", "hash"]), input);
        assert!(!is_done && word.is_empty() && errors.contains("not a valid password"), "{input:?}: {errors}");
    }
    for input in ["correct horse\nrest\n", "correct horse\n\n", "correct horse\r\nx"] {
        let (is_done, word, errors) = output(divvy().args(["access", "hash", "--sha256"]), input);
        assert!(!is_done && word.is_empty() && errors.contains("has a second line"), "{input:?}: {errors}");
    }
}

#[test]
fn check_prints_the_users_or_every_mistake() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("users.acl");
    let check = |text: &str| {
        std::fs::write(&path, text).unwrap();
        output(divvy().args(["access", "check"]).arg(&path), "")
    };
    let name = path.display();
    let (is_valid, out, errors) = check(&(line("app", "+@hit ~label:api*") + "user b on +@read\n"));
    assert!(is_valid);
    let users = "user app on (sha256) -@all +@hit ~label:api*\nuser b on -@all +@read\n";
    assert_eq!(out, format!("{name}: 2 users, no errors\n{users}"));
    assert!(errors.starts_with(&format!("warning: {name}:2: the user b cannot log in")), "{errors}");
    let (is_valid, out, errors) = check("user a\nuser b on +@x >secret\n");
    assert!(!is_valid && out.is_empty() && !errors.contains("secret"));
    let lines: Vec<_> = errors.lines().filter(|line| line.starts_with("error")).collect();
    assert_eq!(lines.len(), 3, "{errors}");
    assert!(lines[0].starts_with(&format!("error: {name}:1: the user a is neither on nor off; ")));
    assert!(lines[1].starts_with(&format!("error: {name}:2: ")) && lines[2].starts_with(&format!("error: {name}:2: ")));
}

#[test]
fn own_clients_log_in_as_a_user() {
    let guarded = Guarded::start(&(line("app", "+@hit ~*") + &line("ops", "+@all ~*")), &[]);
    let http = guarded.server.http.to_string();
    let run = |user: &str, args: &[&str]| {
        let mut command = divvy();
        command.env("DIVVY_USER", user).env("DIVVY_PASSWORD", password(user)).args(args).args(["--server", &http]);
        output(&mut command, "")
    };
    assert_eq!(run("app", &["hit", "method=GET", "path=/status"]).1, "OK true 999 60\n");
    let (is_done, _, error) = run("app", &["limit", "list"]);
    assert!(!is_done && error.contains("this user has no permission for requests of the category read"), "{error}");
    assert!(run("ops", &["limit", "list"]).0);
    let (_, _, error) = run("nobody", &["limit", "list"]);
    assert!(error.contains("DIVVY_USER or --user"), "{error}");
    let url = format!("http://app:{}@{http}", password("app").replace('\'', "%27").replace(' ', "%20"));
    let (is_done, out, error) = output(divvy().args(["peek", "--server", &url, "method=GET", "path=/status"]), "");
    assert!(is_done && out == "OK true 999 60\n", "{out}{error}");
    let line = guarded.server.line.to_string();
    let (is_done, _, error) = output(divvy().env("DIVVY_USER", "app").args(["hit", "--addr", &line, "a=b"]), "");
    assert!(!is_done && error.contains("needs HTTP"), "{error}");
}

#[test]
fn example_is_valid_and_served() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/config/users.acl");
    let (is_valid, out, errors) = output(divvy().args(["access", "check", example]), "");
    assert!(is_valid && errors.is_empty() && out.contains("5 users"), "{out}{errors}");
    let server = Server::start(&["--store", "memory", "--access-file", example]);
    let mut client = server.resp();
    for (user, password) in [
        ("application", "application-token"),
        ("operator", "operator-password"),
        ("dashboard", "dashboard-token"),
        ("crowdsec", "bouncer-token"),
    ] {
        assert_eq!(client.command(&format!("AUTH {user} {password}")), "OK");
        assert_eq!(client.command("ACL WHOAMI"), user);
    }
}
