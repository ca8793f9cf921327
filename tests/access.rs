//! The password: the permissions of clients that have given it, and of clients that have not.

use std::fs;
use std::io::{Read, Write};
use std::process::Command;

use crate::clients::{drive_by_node, drive_by_redis_py, run};
use crate::support::log::Log;
use crate::support::{COMPAT_RULES, LineClient, RespClient, Server, connect, divvy, encode};

const PASSWORD: &str = "correct horse==";
const HIT: &str = "DIVVY.HIT method=GET path=/status";

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
fn resp_is_restricted_until_the_password_is_given() {
    let server = guarded(&[]);
    let mut client = RespClient::connect(server.resp);
    let noauth = "-NOAUTH Authentication required.";
    for words in [HIT, "PING", "INFO", "DIVVY.RULES", "DIVVY.RESET a=b", "SELECT 9", "CLIENT ID", "CONFIG GET *"] {
        assert_eq!(client.command(words), noauth, "{words}");
    }
    for words in ["NONSENSE", "NONSENSE a b", "CLIENT NONSENSE", "CLIENT", "PING a b", "READONLY"] {
        assert_eq!(client.command(words), noauth, "{words}");
    }
    assert!(
        client.command("HELLO 3").starts_with("-NOAUTH HELLO must be called with the client already authenticated")
    );
    let wrong = "-WRONGPASS invalid username-password pair or user is disabled.";
    for words in [&["AUTH", "wrong"][..], &["AUTH", "ann", PASSWORD], &["AUTH", "default", ""], &["AUTH", "correct"]] {
        assert_eq!(auth(&mut client, words), wrong, "{words:?}");
    }
    assert_eq!(auth(&mut client, &["HELLO", "3", "AUTH", "default", "wrong"]), wrong);
    assert_eq!(client.command(HIT), noauth);

    assert_eq!(auth(&mut client, &["AUTH", PASSWORD]), "OK");
    assert_eq!(client.command(HIT), "[1 999 60]");
    assert!(client.command("NONSENSE").starts_with("-ERR unknown command"));
    assert_eq!(auth(&mut client, &["AUTH", "wrong"]), wrong);
    assert_eq!(client.command("PING"), "PONG", "a wrong password takes nothing away");
    assert_eq!(client.command("RESET"), "RESET");
    assert_eq!(client.command("PING"), noauth, "after RESET the client is unauthenticated");
    assert_eq!(auth(&mut client, &["AUTH", "default", PASSWORD]), "OK");
    assert_eq!(client.command("PING"), "PONG");
    assert_eq!(RespClient::connect(server.resp).command("QUIT"), "OK");

    let mut other = RespClient::connect(server.resp);
    assert!(auth(&mut other, &["HELLO", "3", "AUTH", "default", PASSWORD, "SETNAME", "me"]).contains("proto 3"));
    assert_eq!(other.command("CLIENT GETNAME"), "me");
}

#[test]
fn pipeline_is_authenticated_from_its_auth_on() {
    let server = guarded(&[]);
    let mut client = RespClient::connect(server.resp);
    let hit: &[&[u8]] = &[b"DIVVY.HIT", b"method=GET", b"path=/status"];
    let pipeline =
        [encode(hit), encode(&[b"AUTH", PASSWORD.as_bytes()]), encode(hit), encode(&[b"RESET"]), encode(hit)];
    client.send(&pipeline.concat());
    let replies: Vec<_> = (0..5).map(|_| client.read_reply()).collect();
    let noauth = "-NOAUTH Authentication required.";
    assert_eq!(replies, [noauth, "OK", "[1 999 60]", "RESET", noauth]);
}

#[test]
fn line_protocol_is_restricted_until_the_password_is_given() {
    let server = guarded(&[]);
    let mut client = LineClient::connect(server.line);
    let mut ask = |line: &str| {
        client.send(format!("{line}\r\n").as_bytes());
        client.read_line()
    };
    let refused = "ERR unauthenticated \"Authentication required: send AUTH and the password first.\"\n";
    assert_eq!(ask("HIT method=GET path=/status"), refused);
    assert_eq!(ask("NONSENSE"), refused);
    assert_eq!(ask("AUTH"), refused);
    assert_eq!(ask("AUTH wrong"), "ERR unauthenticated \"The password is wrong.\"\n");
    assert_eq!(ask(&format!("AUTH {PASSWORD}")), "OK\n");
    assert_eq!(ask("HIT method=GET path=/status"), "OK true 999 60\n");
    assert!(ask("NONSENSE").starts_with("ERR unknown-command"));

    let mut pipelining = LineClient::connect(server.line);
    pipelining.send(format!("auth {PASSWORD}\nHIT method=GET path=/status\n").as_bytes());
    assert_eq!([pipelining.read_line(), pipelining.read_line()], ["OK\n", "OK true 998 60\n"]);
}

#[test]
fn without_a_password_the_line_protocol_is_that_of_buttons_divvy() {
    let server = Server::in_memory(COMPAT_RULES);
    let mut client = LineClient::connect(server.line);
    client.send(b"AUTH secret\n");
    assert_eq!(client.read_line(), "ERR unknown-command \"Unrecognized command: AUTH\"\n");
}

#[test]
fn line_protocol_can_be_open_for_clients_of_buttons_divvy() {
    let server = guarded(&["--open", "line"]);
    drive_by_node("divvy-client", &server, None);
    assert!(RespClient::connect(server.resp).command("PING").starts_with("-NOAUTH"));
}

#[test]
fn popular_clients_send_the_password() {
    let server = guarded(&[]);
    drive_by_node("ioredis", &server, Some(PASSWORD));
    drive_by_node("node-redis", &server, Some(PASSWORD));
    drive_by_redis_py(&server, Some(PASSWORD));
    let port = server.resp.port().to_string();
    let cli = |options: &[&str]| {
        let mut command = Command::new("redis-cli");
        command.args(["-p", &port]).args(options).args(["DIVVY.PEEK", "method=GET", "path=/status"]);
        run(command)
    };
    assert_eq!(cli(&["--no-auth-warning", "-a", PASSWORD]), "1\n1000\n0\n");
    assert_eq!(cli(&["--no-auth-warning", "--user", "default", "--pass", PASSWORD, "-3"]), "1\n1000\n0\n");
    assert_eq!(cli(&[]), "NOAUTH Authentication required.\n\n");
}

#[test]
fn divvys_own_clients_send_the_password() {
    let server = guarded(&[]);
    let divvy_with = |password: Option<&str>, args: &[&str]| {
        let mut command = divvy();
        command.args(args).envs(password.map(|password| ("DIVVY_PASSWORD", password)));
        let output = command.output().unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr))
    };
    let (line, resp) = (server.line.to_string(), server.resp.to_string());
    let hit = ["hit", "--addr", &line, "method=GET", "path=/status"];
    assert_eq!(divvy_with(Some(PASSWORD), &hit), (true, "OK true 999 60\n".to_owned()));
    let (is_served, refusal) = divvy_with(None, &hit);
    assert!(!is_served && refusal.contains("requires a password: set DIVVY_PASSWORD"), "{refusal}");
    let (is_served, refusal) = divvy_with(Some("wrong"), &hit);
    assert!(!is_served && refusal.contains("refused the password: ERR unauthenticated"), "{refusal}");
    for (protocol, address) in [("line", &line), ("resp", &resp)] {
        let bench =
            ["bench", "--protocol", protocol, "--addr", address, "--requests", "100", "--connections", "2", "--json"];
        let (is_served, report) = divvy_with(Some(PASSWORD), &bench);
        assert!(is_served, "{report}");
        let (is_served, refusal) = divvy_with(Some("wrong"), &bench);
        assert!(!is_served && refusal.contains("refused the password"), "{refusal}");
    }
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
fn unauthenticated_clients_may_send_little() {
    let server = guarded(&[]);
    let words = |count: usize, size: usize| encode(&vec![&vec![b'x'; size][..]; count]);
    for (request, error) in [
        (words(11, 1), "-ERR Protocol error: unauthenticated multibulk length"),
        (words(1, 16 * 1024 + 1), "-ERR Protocol error: unauthenticated bulk length"),
        (vec![b'x'; 16 * 1024 + 2], "-ERR Protocol error: too big inline request"),
    ] {
        let mut client = RespClient::connect(server.resp);
        client.send(&request);
        assert_eq!(client.read_reply(), error);
        assert_eq!(client.read_reply(), "", "closed");
    }
    let mut client = RespClient::connect(server.resp);
    let noauth = "-NOAUTH Authentication required.";
    assert_eq!(client.command_of(&[&[b'x'; 16 * 1024][..]; 10]), noauth, "as much as in Redis");
    assert_eq!(auth(&mut client, &["AUTH", PASSWORD]), "OK");
    assert!(
        client.command_of(&[&[b'x'; 20 * 1024][..]; 12]).starts_with("-ERR unknown command"),
        "authenticated by now"
    );

    let hit = format!("HIT a={}\n", "x".repeat(20_000));
    let mut client = LineClient::connect(server.line);
    client.send(hit.as_bytes());
    assert!(client.read_line().contains("longer than 16384 bytes"));
    assert_eq!(client.read_line(), "", "closed");
}

#[test]
fn unauthenticated_clients_have_little_time() {
    let server = guarded(&[]);
    let mut known = RespClient::connect(server.resp);
    assert_eq!(auth(&mut known, &["AUTH", PASSWORD]), "OK");
    let mut known_line = LineClient::connect(server.line);
    known_line.send(format!("AUTH {PASSWORD}\n").as_bytes());
    assert_eq!(known_line.read_line(), "OK\n");

    // One client is silent, and another never stops sending requests.
    assert_eq!(LineClient::connect(server.line).read_line(), "", "closed");
    assert_eq!(RespClient::connect(server.resp).read_reply(), "", "closed");
    let mut busy = connect(server.resp);
    let mut replies = [0; 4096];
    while busy.write_all(b"PING\r\n").is_ok() && busy.read(&mut replies).is_ok_and(|read| read > 0) {}

    assert_eq!(known.command("PING"), "PONG");
    assert_eq!(known_line.hit("method=GET path=/status").1, 999);
}

#[test]
fn password_is_read_from_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("password");
    fs::write(&file, format!("{PASSWORD}\n")).unwrap();
    let server = Server::start(&["--store", "memory", "--requirepass-file", file.to_str().unwrap()]);
    assert_eq!(auth(&mut RespClient::connect(server.resp), &["AUTH", PASSWORD]), "OK");
}

#[test]
fn invalid_password_is_rejected_and_not_shown() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("password");
    fs::write(&file, "two\nlines\n").unwrap();
    let file = file.to_str().unwrap();
    let long = "q".repeat(513);
    for (args, reason) in [
        (["--requirepass", ""], "it is empty"),
        (["--requirepass", " sesame"], "it starts or ends with white space"),
        (["--requirepass", "se\tsame"], "it contains a control character"),
        (["--requirepass", &long], "it has more than 512 bytes"),
        (["--requirepass-file", file], "it contains a control character"),
        (["--requirepass-file", "/nowhere/password"], "cannot read /nowhere/password"),
        (["--requirepass-file", "/dev/zero"], "it is a device, but must be a regular file"),
    ] {
        let output = divvy().args(["serve", "--store", "memory"]).args(args).output().unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && message.contains(reason), "{args:?}: {message}");
        assert!(["same", "qqq", "lines"].iter().all(|secret| !message.contains(secret)), "{message}");
    }
}

#[test]
fn wrong_passwords_are_logged_at_a_limited_rate_without_the_password() {
    const CONNECTIONS: usize = 40;
    const TRIES: usize = 7;
    let mut command = divvy();
    let log = Log::of(&mut command);
    command.env("DIVVY_REQUIREPASS", PASSWORD).env("RUST_LOG", "trace");
    let server = Server::start_as(&mut command, &["--store", "memory"]);
    // The answer to each is delayed.
    let mut clients: Vec<_> = (0..CONNECTIONS).map(|_| RespClient::connect(server.resp)).collect();
    for client in &mut clients {
        client.send(&encode(&[b"AUTH", b"open-sesame"]).repeat(TRIES));
    }
    for client in &mut clients {
        for _ in 0..TRIES {
            assert!(client.read_reply().starts_with("-WRONGPASS"));
        }
    }
    let mut line = LineClient::connect(server.line);
    line.send(b"AUTH open-sesame\n");
    assert!(line.read_line().starts_with("ERR unauthenticated"));
    assert!(auth(&mut clients[0], &["AUTH", PASSWORD]) == "OK");
    log.await_count(1, "wrong password");
    assert!(server.terminate().success());
    assert!(log.count("wrong password") < CONNECTIONS * TRIES / 10, "{}", log.count("wrong password"));
    for secret in ["sesame", PASSWORD, "correct"] {
        assert_eq!(log.count(secret), 0, "{secret} is in the log");
    }
}

#[test]
fn connection_is_closed_after_failing_attempts_in_a_row() {
    let server = guarded(&[]);
    let wrong = encode(&[b"AUTH", b"wrong"]);
    let client = RespClient::connect(server.resp);
    let right = encode(&[b"AUTH", PASSWORD.as_bytes()]);
    let refused = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";
    let expected = format!("{}+OK\r\n{}", refused.repeat(7), refused.repeat(8));
    assert_eq!(replies_until_closed(&client, &[wrong.repeat(7), right, wrong.repeat(50)]), expected);

    let mut line = LineClient::connect(server.line);
    line.send("AUTH wrong\n".repeat(50).as_bytes());
    let replies: Vec<_> = std::iter::from_fn(|| Some(line.read_line()).filter(|reply| !reply.is_empty())).collect();
    assert_eq!(replies, ["ERR unauthenticated \"The password is wrong.\"\n"; 8]);

    // Attempts in a transaction count, too.
    let mut client = RespClient::connect(server.resp);
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

#[test]
fn open_none_excludes_other_values() {
    for value in ["none,hit", "hit,none", "none,none"] {
        let output =
            divvy().args(["serve", "--store", "memory", "--requirepass", "x", "--open", value]).output().unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && message.contains("--open none opens nothing"), "{value}: {message}");
    }
}

#[test]
fn two_authorization_headers_are_rejected() {
    let server = guarded(&[]);
    let ask = |address, path: &str, values: &[&str]| {
        let headers: String = values.iter().map(|value| format!("authorization: Bearer {value}\r\n")).collect();
        let request = format!("GET {path} HTTP/1.1\r\nhost: divvy\r\nconnection: close\r\n{headers}\r\n");
        crate::support::http::request(address, request).status
    };
    let service = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    for (address, path) in [(server.http, "/v1/rules"), (server.grpc, service)] {
        assert_ne!(ask(address, path, &[PASSWORD]), 401, "{path}");
        for both in [[PASSWORD, "wrong"], ["wrong", PASSWORD], [PASSWORD, PASSWORD]] {
            assert_eq!(ask(address, path, &both), 401, "{path}: {both:?}");
        }
    }
}
