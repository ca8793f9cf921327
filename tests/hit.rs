//! `divvy hit` over HTTP and over the line protocol.

use std::process::Command;

use crate::support::{COMPAT_RULES, Server, connect, divvy, output};

const STATUS: [&str; 2] = ["method=GET", "path=/status"];
const SCARCE: &str = "[a=1]\ncreditLimit = 1\nresetSeconds = 60\n\n[default]\ncreditLimit = 0\nresetSeconds = 0\n";

/// Runs `divvy hit`. Returns its exit code, standard output and standard error.
fn hit(options: &[&str], operation: &[&str]) -> (i32, String, String) {
    hit_as(&mut divvy(), options, operation)
}

fn hit_as(command: &mut Command, options: &[&str], operation: &[&str]) -> (i32, String, String) {
    output(command.arg("hit").args(options).args(operation))
}

fn done(out: &str) -> (i32, String, String) {
    (0, out.to_owned(), String::new())
}

#[test]
fn both_fronts_print_the_same() {
    let server = Server::in_memory(COMPAT_RULES);
    let (http, line) = (server.http.to_string(), server.line.to_string());
    assert_eq!(hit(&["--server", &http], &STATUS), done("OK true 999 60\n"));
    assert_eq!(hit(&["--addr", &line], &STATUS), done("OK true 998 60\n"));
    let peek = r#"{"operation":{"method":"GET","path":"/status"}}"#;
    let expected = server.http().post("/v1/peek", peek).body.replace("998", "997");
    assert_eq!(hit(&["--server", &format!("http://{http}"), "--json"], &STATUS), done(&expected), "as over HTTP");
}

#[test]
fn flag_takes_precedence_over_a_variable_and_two_flags_conflict() {
    let server = Server::in_memory(COMPAT_RULES);
    let (http, line) = (server.http.to_string(), server.line.to_string());
    let nowhere = "127.0.0.1:1";
    let with = |variables: &[(&str, &str)], options: &[&str]| {
        hit_as(divvy().envs(variables.iter().copied()), options, &STATUS).0
    };
    assert_eq!(with(&[("DIVVY_SERVER", &http)], &[]), 0);
    assert_eq!(with(&[("DIVVY_ADDR", &line)], &[]), 0);
    assert_eq!(with(&[("DIVVY_ADDR", &line), ("DIVVY_SERVER", nowhere)], &[]), 0);
    assert_eq!(with(&[("DIVVY_ADDR", nowhere)], &["--server", &http]), 0);
    assert_eq!(with(&[("DIVVY_SERVER", nowhere)], &["--addr", &line]), 0);
    let (code, _, error) = hit(&["--server", &http, "--addr", &line], &STATUS);
    assert!(code == 2 && error.contains("--server") && error.contains("--addr"), "{error}");
}

#[test]
fn denial_sets_the_exit_code_if_requested() {
    let server = Server::serving(SCARCE, &[]);
    let http = server.http.to_string();
    let codes = [(); 2].map(|()| hit(&["--server", &http, "--exit-code"], &["a=1"]).0);
    assert_eq!(codes, [0, 3]);
    assert_eq!(hit(&["--server", &http], &["a=1"]).0, 0);
    assert_eq!(hit(&["--addr", &server.line.to_string(), "--exit-code"], &["a=1"]).0, 3);
    assert_eq!(hit(&["--server", "127.0.0.1:1", "--exit-code"], &["a=1"]).0, 1, "an error is not a denial");
}

#[test]
fn tls_with_a_server_without_tls_is_reported() {
    let server = Server::in_memory(COMPAT_RULES);
    let (code, _, error) = hit(&["--tls", "--server", &server.http.to_string()], &STATUS);
    assert_eq!(code, 1);
    // On a machine without certificate authorities, the handshake does not even start.
    assert!(error.contains("leave out --tls") || error.contains("--tls-ca"), "{error}");
    server.line().hit("a=b");
    drop(connect(server.resp));
}
