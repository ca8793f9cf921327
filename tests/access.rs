//! The password: the permissions of clients that have given it, and of clients that have not.

use std::fs;
use std::io::{Read, Write};
use std::process::Command;

use crate::clients::{drive_by_node, run};
use crate::support::{COMPAT_RULES, RespClient, Server, divvy, encode, refused};

const PASSWORD: &str = "correct horse==";

/// Starts a server that requires [`PASSWORD`].
fn guarded(args: &[&str]) -> Server {
    let mut command = divvy();
    command.env("DIVVY_REQUIREPASS", PASSWORD);
    Server::start_as(&mut command, &[&[COMPAT_RULES, "--store", "memory"], args].concat())
}

fn auth(client: &mut RespClient, words: &[&str]) -> String {
    client.command_of(&words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>())
}

#[test]
fn line_protocol_can_be_open_for_clients_of_buttons_divvy() {
    let server = guarded(&["--open", "line"]);
    drive_by_node("divvy-client", &server, &[]);
    assert!(server.resp().command("PING").starts_with("-NOAUTH"));
}

#[test]
fn grpc_requires_the_password_except_for_health() {
    let server = guarded(&[]);
    let status = |path: &str, token: Option<&str>| {
        let mut command = Command::new("curl");
        command.args(["-s", "-o", "/dev/null", "-D", "-", "--http2-prior-knowledge", "-X", "POST"]);
        command.args(["-H", "content-type: application/grpc", "--data-binary", "@/dev/null"]);
        command.args(token.into_iter().flat_map(|token| ["-H".to_owned(), format!("authorization: {token}")]));
        command.arg(format!("http://{}{path}", server.grpc));
        run(command)
    };
    let limits = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    for token in [None, Some("Bearer wrong"), Some("Basic wrong"), Some("Bearer"), Some("Bearer ")] {
        let refusal = status(limits, token);
        assert!(
            refusal.starts_with("HTTP/2 401") && refusal.contains("www-authenticate: Bearer"),
            "{token:?}: {refusal}"
        );
    }
    assert!(status("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", None).starts_with("HTTP/2 401"));
    assert!(status(limits, Some(&format!("bearer {PASSWORD}"))).starts_with("HTTP/2 200"));
    assert!(status("/grpc.health.v1.Health/Check", None).starts_with("HTTP/2 200"));
}

/// Regression test: a client that sends a body receives an answer given before the body was read. curl dropped every
/// fourth such answer, because the library resets the stream after the answer unless the body has ended.
#[test]
fn answer_before_the_body_reaches_an_http_2_client() {
    let server = guarded(&[]);
    for _ in 0..40 {
        let mut command = Command::new("curl");
        command.args(["-s", "-o", "/dev/null", "-w", "%{http_code}", "--http2-prior-knowledge", "-d", "{}"]);
        command.arg(format!("http://{}/v1/hit", server.http));
        assert_eq!(run(command), "401");
    }
}

#[test]
fn password_is_read_from_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("password");
    fs::write(&file, format!("{PASSWORD}\n")).unwrap();
    let server = Server::start(&["--store", "memory", "--requirepass-file", file.to_str().unwrap()]);
    assert_eq!(auth(&mut server.resp(), &["AUTH", PASSWORD]), "OK");
}

#[test]
fn invalid_password_is_rejected_and_not_shown() {
    for (args, reason) in [
        ("--requirepass 'se\tsame'", "or contains a control character"),
        ("--requirepass-file /nowhere/password", "cannot read /nowhere/password"),
        ("--requirepass-file /dev/zero", "it is a device, but must be a regular file"),
    ] {
        let message = refused(&format!("serve --store memory {args}"));
        assert!(message.contains(reason) && !message.contains("same"), "{message}");
    }
}

#[test]
fn connection_is_closed_after_failing_attempts_in_a_row() {
    let server = guarded(&[]);
    let wrong = encode(&[b"AUTH", b"wrong"]);
    let client = server.resp();
    let right = encode(&[b"AUTH", PASSWORD.as_bytes()]);
    let refused = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";
    let expected = format!("{}+OK\r\n{}", refused.repeat(7), refused.repeat(8));
    assert_eq!(replies_until_closed(&client, &[wrong.repeat(7), right, wrong.repeat(50)]), expected);

    // Attempts in a transaction count, too.
    let mut client = server.resp();
    assert_eq!(auth(&mut client, &["AUTH", PASSWORD]), "OK");
    let replies = replies_until_closed(&client, &[encode(&[b"MULTI"]), wrong.repeat(50), encode(&[b"EXEC"])]);
    assert_eq!(replies, format!("+OK\r\n{}*50\r\n{}", "+QUEUED\r\n".repeat(50), refused.repeat(8)));
}

fn replies_until_closed(client: &RespClient, requests: &[Vec<u8>]) -> String {
    let (mut stream, mut replies) = (client.stream(), String::new());
    stream.write_all(&requests.concat()).unwrap();
    stream.read_to_string(&mut replies).unwrap();
    replies
}
