//! `divvy hit` over RESP and over the line protocol.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::thread;

use crate::support::command_line::output;
use crate::support::http;
use crate::support::{COMPAT_RULES, LineClient, RulesFile, Server, connect, divvy, encode};

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

/// Starts a server that expects `request` on its first connection, and answers with `reply`.
fn serve_once(request: Vec<u8>, reply: &'static [u8]) -> (SocketAddr, thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut asked = vec![0; request.len()];
        stream.read_exact(&mut asked).unwrap();
        assert_eq!(String::from_utf8(asked), String::from_utf8(request));
        stream.write_all(reply).unwrap();
    });
    (address, server)
}

#[test]
fn both_fronts_print_the_same() {
    let server = Server::in_memory(COMPAT_RULES);
    let (resp, line) = (server.resp.to_string(), server.line.to_string());
    assert_eq!(hit(&["--server", &resp], &STATUS), done("OK true 999 60\n"));
    assert_eq!(hit(&["--addr", &line], &STATUS), done("OK true 998 60\n"));
    let peek = r#"{"operation":{"method":"GET","path":"/status"}}"#;
    let expected = http::HttpClient::connect(server.http).post("/v1/peek", peek).body.replace("998", "997");
    assert_eq!(hit(&["--server", &format!("redis://{resp}"), "--json"], &STATUS), done(&expected), "as over HTTP");
}

#[test]
fn flag_takes_precedence_over_a_variable_and_two_flags_conflict() {
    let server = Server::in_memory(COMPAT_RULES);
    let (resp, line) = (server.resp.to_string(), server.line.to_string());
    let nowhere = "127.0.0.1:1";
    let with = |variables: &[(&str, &str)], options: &[&str]| {
        hit_as(divvy().envs(variables.iter().copied()), options, &STATUS).0
    };
    assert_eq!(with(&[("DIVVY_SERVER", &resp)], &[]), 0);
    assert_eq!(with(&[("DIVVY_ADDR", &line)], &[]), 0);
    assert_eq!(with(&[("DIVVY_ADDR", &line), ("DIVVY_SERVER", nowhere)], &[]), 0);
    assert_eq!(with(&[("DIVVY_ADDR", nowhere)], &["--server", &resp]), 0);
    assert_eq!(with(&[("DIVVY_SERVER", nowhere)], &["--addr", &line]), 0);
    let (code, _, error) = hit(&["--server", &resp, "--addr", &line], &STATUS);
    assert!(code == 2 && error.contains("--server") && error.contains("--addr"), "{error}");
}

#[test]
fn denial_sets_the_exit_code_if_requested() {
    let rules = RulesFile::ini(SCARCE);
    let server = Server::in_memory(rules.path());
    let resp = server.resp.to_string();
    let codes = [(); 2].map(|()| hit(&["--server", &resp, "--exit-code"], &["a=1"]).0);
    assert_eq!(codes, [0, 3]);
    assert_eq!(hit(&["--server", &resp], &["a=1"]).0, 0);
    assert_eq!(hit(&["--addr", &server.line.to_string(), "--exit-code"], &["a=1"]).0, 3);
    assert_eq!(hit(&["--server", "127.0.0.1:1", "--exit-code"], &["a=1"]).0, 1, "an error is not a denial");
}

#[test]
fn cost_follows_the_pairs() {
    let request = encode(&[b"DIVVY.HIT", b"api=upload", b"user=a b=c", b"COST", b"5", b"REPLY", b"JSON"]);
    const REPLY: &[u8] = b"$42\r\n{\"allowed\":true,\"remaining\":95,\"reset\":60}\r\n";
    let (address, server) = serve_once(request, REPLY);
    let answer = hit(&["--server", &address.to_string(), "--cost", "5"], &["api=upload", "user=a b=c"]);
    assert_eq!(answer, done("OK true 95 60\n"));
    server.join().unwrap();

    let (code, _, error) = hit(&["--addr", "127.0.0.1:1", "--cost", "5"], &["a=1"]);
    assert!(code == 1 && error.contains("--cost") && error.contains("--server"), "{error}");
    for wrong in ["-1", "x", "9223372036854775808"] {
        let (code, _, error) = hit(&[&format!("--cost={wrong}")], &["a=1"]);
        assert!(code == 2 && error.contains("--cost"), "{error}");
    }
}

#[test]
fn password_comes_from_the_url_or_the_usual_sources() {
    let mut command = divvy();
    command.env("DIVVY_REQUIREPASS", "correct horse");
    let server = Server::start_as(&mut command, &[COMPAT_RULES, "--store", "memory"]);
    let resp = server.resp.to_string();
    assert_eq!(hit(&["--server", &format!("redis://:correct%20horse@{resp}")], &STATUS).0, 0);
    assert_eq!(hit(&["--server", &resp, "--password", "correct horse"], &STATUS).0, 0);
    assert_eq!(hit_as(divvy().env("DIVVY_PASSWORD", "correct horse"), &["--server", &resp], &STATUS).0, 0);
    let (code, _, error) = hit(&["--server", &format!("redis://:wrong@{resp}")], &STATUS);
    assert!(code == 1 && error.contains("WRONGPASS") && !error.contains("wrong@"), "{error}");
    assert_eq!(hit(&["--server", &resp], &STATUS).0, 1);
}

#[test]
fn missing_server_and_tls_server_are_reported_differently() {
    const ALERT: &[u8] = b"\x15\x03\x03\x00\x02\x02\x32";
    let request = encode(&[b"DIVVY.HIT", b"a=1", b"REPLY", b"JSON"]);
    let (tls, _) = serve_once(request.clone(), ALERT);
    let (code, _, error) = hit(&["--server", &tls.to_string()], &["a=1"]);
    assert!(code == 1 && error.contains("add --tls"), "{error}");
    let (web, _) = serve_once(request, b"HTTP/1.1 400 Bad Request\r\n\r\n");
    let (code, _, error) = hit(&["--server", &web.to_string()], &["a=1"]);
    assert!(code == 1 && error.contains("does not speak RESP") && !error.contains("--tls"), "{error}");
    let (line, _) = serve_once(b"HIT a=1\n".to_vec(), ALERT);
    let (code, _, error) = hit(&["--addr", &line.to_string()], &["a=1"]);
    assert!(code == 1 && error.contains("add --tls"), "{error}");
}

#[test]
fn tls_with_a_server_without_tls_is_reported() {
    let server = Server::in_memory(COMPAT_RULES);
    let (code, _, error) = hit(&["--tls", "--server", &server.resp.to_string()], &STATUS);
    assert_eq!(code, 1);
    // On a machine without certificate authorities, the handshake does not even start.
    assert!(error.contains("leave out --tls") || error.contains("--tls-ca"), "{error}");
    LineClient::connect(server.line).hit("a=b");
    drop(connect(server.resp));
}
