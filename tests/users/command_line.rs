//! `divvy access`, and divvy's own clients with a user.

use divvy::access::{SlowHash, parse};

use super::{Guarded, line, password};
use crate::support::{Place, Server, divvy, divvy_with, done, output, output_for, run};

#[test]
fn hash_of_a_password_is_a_word_of_the_file() {
    for options in [&[][..], &["--sha256"]] {
        let (code, word, errors) = output_for(divvy().args(["access", "hash"]).args(options), "correct horse\n");
        assert_eq!(code, 0, "{errors}");
        let file = parse(&format!("user a on {word}"), "f", None).unwrap();
        match options {
            [] => assert_eq!(file.users[0].slow_hashes, [SlowHash::parse(word.trim_end()).unwrap()]),
            _ => assert_eq!(word, "#4104d36f8da2c254349f85836793ebe029e0c957063a34c91c2e9203187b5631\n"),
        }
    }
    for input in ["", " x\n", "a\tb\n", &"x".repeat(600)] {
        let (code, word, errors) = output_for(&mut divvy_with("access hash"), input);
        assert!(code != 0 && word.is_empty() && errors.contains("not a valid password"), "{input:?}: {errors}");
    }
    for input in ["correct horse\nrest\n", "correct horse\n\n", "correct horse\r\nx"] {
        let (code, word, errors) = output_for(&mut divvy_with("access hash --sha256"), input);
        assert!(code != 0 && word.is_empty() && errors.contains("has a second line"), "{input:?}: {errors}");
    }
}

#[test]
fn check_prints_the_users_or_every_mistake() {
    let place = Place::new("");
    let name = place.path("users.acl");
    let check = |text: &str| {
        place.write("users.acl", text);
        run(&format!("access check {name}"))
    };
    let (code, out, errors) = check(&(line("app", "+@hit ~label:api*") + "user b on +@read\n"));
    assert_eq!(code, 0);
    let users = "user app on (sha256) -@all +@hit ~label:api*\nuser b on -@all +@read\n";
    assert_eq!(out, format!("{name}: 2 users, no errors\n{users}"));
    assert!(errors.starts_with(&format!("warning: {name}:2: the user b cannot log in")), "{errors}");
    let (code, out, errors) = check("user a\nuser b on +@x >secret\n");
    assert!(code != 0 && out.is_empty() && !errors.contains("secret"));
    let lines: Vec<_> = errors.lines().filter(|line| line.starts_with("error")).collect();
    assert_eq!(lines.len(), 3, "{errors}");
    assert!(lines[0].starts_with(&format!("error: {name}:1: the user a is neither on nor off; ")));
    assert!(lines[1].starts_with(&format!("error: {name}:2: ")) && lines[2].starts_with(&format!("error: {name}:2: ")));
}

#[test]
fn own_clients_log_in_as_a_user() {
    let guarded = Guarded::start(&(line("app", "+@hit ~*") + &line("ops", "+@all ~*")), &[]);
    let http = guarded.server.http.to_string();
    let run_as = |user: &str, line: &str| {
        let mut command = divvy_with(&format!("{line} --server {http}"));
        output(command.env("DIVVY_USER", user).env("DIVVY_PASSWORD", password(user)))
    };
    assert_eq!(run_as("app", "hit method=GET path=/status").1, "OK true 999 60\n");
    let (code, _, error) = run_as("app", "limit list");
    assert!(code != 0 && error.contains("this user has no permission for requests of the category read"), "{error}");
    assert_eq!(run_as("ops", "limit list").0, 0);
    let (_, _, error) = run_as("nobody", "limit list");
    assert!(error.contains("DIVVY_USER or --user"), "{error}");
    let url = format!("http://app:{}@{http}", password("app").replace('\'', "%27").replace(' ', "%20"));
    assert_eq!(done(&format!("peek --server {url} method=GET path=/status")), "OK true 999 60\n");
    let mut by_line = divvy_with(&format!("hit --addr {} a=b", guarded.server.line));
    let (code, _, error) = output(by_line.env("DIVVY_USER", "app"));
    assert!(code != 0 && error.contains("need HTTP"), "{error}");
}

#[test]
fn example_is_valid_and_served() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/config/users.acl");
    let (code, out, errors) = run(&format!("access check {example}"));
    assert!(code == 0 && errors.is_empty() && out.contains("5 users"), "{out}{errors}");
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
