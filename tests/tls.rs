//! TLS: real clients, client certificates, replaced certificates, and failed handshakes.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, crypto};

use crate::clients::run;
use crate::support::{Answering, COMPAT_RULES, Certificates, Log, Server, connect, divvy, done, http, refused, until};

const HIT: &[u8] = b"HIT method=GET path=/status\n";

/// Starts a server that uses TLS on every front, unless `args` say otherwise. Returns it with its log.
fn secured(certificates: &Certificates, args: &[&str]) -> (Server, Log) {
    let mut command = divvy();
    let log = Log::of(&mut command);
    command.env("DIVVY_TLS_CERT", certificates.path("server.pem"));
    command.env("DIVVY_TLS_KEY", certificates.path("server.key"));
    let server = Server::start_as(&mut command, &[&[COMPAT_RULES, "--store", "memory"], args].concat());
    (server, log)
}

type TlsStream = StreamOwned<ClientConnection, TcpStream>;

/// Performs a handshake as a client that trusts the authority.
fn handshake(certificates: &Certificates, address: SocketAddr, alpn: &[&str]) -> TlsStream {
    let mut authorities = RootCertStore::empty();
    authorities.add(CertificateDer::from_pem_file(certificates.path("ca.pem")).unwrap()).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(authorities)
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    let mut session = ClientConnection::new(Arc::new(config), ServerName::try_from("localhost").unwrap()).unwrap();
    let mut stream = connect(address);
    session.complete_io(&mut stream).unwrap();
    StreamOwned::new(session, stream)
}

fn ask(stream: &mut TlsStream, request: &[u8]) -> String {
    stream.write_all(request).unwrap();
    let mut line = String::new();
    BufReader::with_capacity(1, stream).read_line(&mut line).unwrap();
    line
}

fn shown_certificate(stream: &TlsStream) -> Vec<u8> {
    stream.conn.peer_certificates().unwrap()[0].to_vec()
}

fn redis_cli(server: &Server, certificates: &Certificates, identity: Option<&str>, words: &[&str]) -> Output {
    let mut command = Command::new("redis-cli");
    command.args(["--tls", "--cacert", &certificates.path("ca.pem"), "-p", &server.resp.port().to_string()]);
    if let Some(name) = identity {
        let (certificate, key) = (certificates.path(&format!("{name}.pem")), certificates.path(&format!("{name}.key")));
        command.args(["--cert", &certificate, "--key", &key]);
    }
    command.args(words).output().unwrap()
}

#[test]
fn redis_cli_works_over_tls() {
    let certificates = Certificates::new();
    let (server, _log) = secured(&certificates, &[]);
    let hit = ["DIVVY.HIT", "method=GET", "path=/status"];
    let output = redis_cli(&server, &certificates, None, &hit);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "1\n999\n60\n");
    // Longer than a TLS record.
    let long = "x".repeat(40_000);
    let output = redis_cli(&server, &certificates, None, &["ECHO", &long]);
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim_end(), long);
}

#[test]
fn openssl_can_use_the_line_protocol() {
    let certificates = Certificates::new();
    let (server, _log) = secured(&certificates, &[]);
    for (version, answer) in [("-tls1_2", "OK true 999 60"), ("-tls1_3", "OK true 998 60")] {
        let mut command = Command::new("openssl");
        command.args(["s_client", "-quiet", "-verify_return_error", version, "-CAfile", &certificates.path("ca.pem")]);
        command.args(["-connect", &server.line.to_string()]).stderr(Stdio::null());
        assert_eq!(Answering::start(&mut command).ask("HIT method=GET path=/status"), answer, "{version}");
    }
}

#[test]
fn curl_can_use_both_http_versions() {
    let certificates = Certificates::new();
    let (server, _log) = secured(&certificates, &[]);
    for (option, version) in [("--http2", "2"), ("--http1.1", "1.1")] {
        let mut command = Command::new("curl");
        command.args(["-sS", option, "--cacert", &certificates.path("ca.pem"), "-w", "%{http_version}"]);
        command.arg(format!("https://localhost:{}/healthz", server.http.port()));
        assert_eq!(run(command), format!("ok\n{version}"));
    }
}

#[test]
fn grpc_is_http_2_and_tls_can_be_limited_to_some_fronts() {
    let certificates = Certificates::new();
    let (server, _log) = secured(&certificates, &["--tls-fronts", "resp,grpc"]);
    let stream = handshake(&certificates, server.grpc, &["h2"]);
    assert_eq!(stream.conn.alpn_protocol(), Some(&b"h2"[..]));
    assert_eq!(server.line().hit("method=GET path=/status").1, 999);
    assert_eq!(redis_cli(&server, &certificates, None, &["PING"]).stdout, b"PONG\n");
}

#[test]
fn client_without_tls_gets_the_reason_and_so_does_the_log() {
    let certificates = Certificates::new();
    let (server, log) = secured(&certificates, &[]);
    let request = b"GET /healthz HTTP/1.1\r\nhost: divvy\r\n\r\n";
    for (front, address, sent, begin) in [
        ("line", server.line, HIT, "ERR unknown \"this port speaks TLS"),
        ("resp", server.resp, b"PING\r\n", "-ERR this port speaks TLS"),
        ("http", server.http, request, "HTTP/1.1 400 Bad Request\r\n"),
        ("grpc", server.grpc, request, "HTTP/1.1 400 Bad Request\r\n"),
    ] {
        let mut stream = connect(address);
        stream.write_all(sent).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with(begin), "{answer:?}");
        log.await_line(&[
            "TLS handshake failed",
            "plain text on a TLS port",
            &format!("front=\"{front}\""),
            "peer=127.0.0.1:",
        ]);
    }
    let response = http::get(server.http, "/healthz");
    assert_eq!((response.status, &*response.body), (400, "this port speaks TLS only: use https:\n"));
    assert_eq!(response.header("content-length").unwrap(), response.body.len().to_string());
}

#[test]
fn only_clients_with_a_certificate_from_the_authority_are_accepted() {
    let certificates = Certificates::new();
    let (server, log) = secured(&certificates, &["--tls-client-ca", &certificates.path("ca.pem")]);
    let ping = |identity| redis_cli(&server, &certificates, identity, &["PING"]);
    assert_eq!(ping(Some("client")).stdout, b"PONG\n");
    for certificate in [None, Some("foreign")] {
        let output = ping(certificate);
        assert!(!output.status.success() && output.stdout != b"PONG\n", "{certificate:?}: {output:?}");
    }
    log.await_line(&["TLS handshake failed", "peer sent no certificates"]);
    log.await_line(&["TLS handshake failed", "UnknownIssuer"]);

    let [ca, own, key] = ["ca.pem", "client.pem", "client.key"].map(|name| certificates.path(name));
    let tls = format!("--tls-ca {ca} --tls-cert {own} --tls-key {key}");
    assert_eq!(done(&format!("hit --addr {} {tls} method=GET path=/status", server.line)), "OK true 999 60\n");
}

#[test]
fn certificate_is_replaced_during_running_connections() {
    let certificates = Certificates::new();
    let (server, log) = secured(&certificates, &["--reload-interval", "1"]);
    let mut old = handshake(&certificates, server.line, &[]);
    assert!(ask(&mut old, HIT).starts_with("OK true 999 "));

    let renewed = certificates.issue("server");
    assert_ne!(shown_certificate(&old), renewed);
    log.await_count(1, "loaded the new TLS certificate");
    let mut new = handshake(&certificates, server.line, &[]);
    assert_eq!(shown_certificate(&new), renewed);
    assert!(ask(&mut new, HIT).starts_with("OK true 998 "));
    assert!(ask(&mut old, HIT).starts_with("OK true 997 "), "an old connection lives on");
}

#[test]
fn invalid_replacement_changes_nothing_and_sighup_checks_again() {
    let certificates = Certificates::new();
    let (server, log) = secured(&certificates, &["--reload-interval", "0"]);
    let first = shown_certificate(&handshake(&certificates, server.resp, &[]));
    let kept = fs::read_to_string(certificates.path("server.pem")).unwrap();
    for (content, reason) in [
        ("nonsense", "server.pem contains no certificate"),
        (kept.replace("-----END", "----").as_str(), "server.pem"),
        (&fs::read_to_string(certificates.path("client.pem")).unwrap(), "is not that of the first certificate in"),
    ] {
        certificates.write("server.pem", content);
        server.signal("-HUP");
        log.await_line(&["cannot load the new TLS files: the old ones stay in use", reason]);
        assert_eq!(shown_certificate(&handshake(&certificates, server.resp, &[])), first);
    }
    fs::remove_file(certificates.path("server.pem")).unwrap();
    assert!(Command::new("mkfifo").arg(certificates.path("server.pem")).status().unwrap().success());
    server.signal("-HUP");
    log.await_line(&[
        "cannot load the new TLS files",
        "server.pem (--tls-cert): it is a pipe, but must be a regular file",
    ]);
    fs::remove_file(certificates.path("server.pem")).unwrap();
    let renewed = certificates.issue("server");
    server.signal("-HUP");
    log.await_count(1, "loaded the new TLS certificate");
    assert_eq!(shown_certificate(&handshake(&certificates, server.resp, &[])), renewed);
}

#[test]
fn unusable_files_are_rejected_at_the_start() {
    let certificates = Certificates::new();
    certificates.write("empty.pem", "");
    let path = |name: &str| certificates.path(name);
    for (cert, key, reason) in [
        ("empty.pem", "server.key", "empty.pem contains no certificate"),
        ("server.pem", "server.pem", "server.pem contains no unencrypted private key"),
        ("server.pem", "client.key", "client.key is not that of the first certificate"),
    ] {
        let files = format!("--tls-cert {} --tls-key {} --tls-client-ca {}", path(cert), path(key), path("ca.pem"));
        let message = refused(&format!("serve --store memory {files}"));
        assert!(message.contains(reason), "{cert} {key}: {message}");
    }
    assert!(refused(&format!("serve --tls-cert {}", path("server.pem"))).contains("--tls-key"));
}

#[test]
fn unfinished_handshake_is_closed_and_frees_its_place() {
    let certificates = Certificates::new();
    let (server, log) = secured(&certificates, &["--max-connections", "2"]);
    let beginnings = [&b""[..], b"\x16\x03\x01\x02\x00\x01"];
    let streams = beginnings.map(|beginning| {
        let mut stream = connect(server.line);
        stream.write_all(beginning).unwrap();
        stream
    });
    for mut stream in streams {
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert_eq!(answer, b"");
    }
    log.await_count(2, "timed out");
    until(|| redis_cli(&server, &certificates, None, &["PING"]).stdout == b"PONG\n");
}

#[test]
fn orderly_end_sends_close_notify() {
    let certificates = Certificates::new();
    let (server, _log) = secured(&certificates, &[]);
    let mut stream = handshake(&certificates, server.resp, &[]);
    stream.write_all(b"QUIT\r\n").unwrap();
    let mut answer = String::new();
    // Without a close_notify, this would be an error.
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "+OK\r\n");

    let mut stream = handshake(&certificates, server.line, &[]);
    assert_eq!(ask(&mut stream, HIT), "OK true 999 60\n");
    assert!(server.terminate().success());
    stream.read_to_string(&mut answer).unwrap();
}
