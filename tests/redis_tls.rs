//! How divvy gets to Redis: TLS with an authority of one's own, certificates for both sides, and a unix socket.

use crate::support::certificates::Certificates;
use crate::support::redis::{RedisServer, free_port};
use crate::support::{LineClient, RulesFile, Server};

/// A Redis with TLS on the returned port; its plain port is for redis-cli.
fn redis(certificates: &Certificates, demands_certificates: &str) -> (RedisServer, u16) {
    let port = free_port();
    let [certificate, key, ca] = ["server.pem", "server.key", "ca.pem"].map(|name| certificates.path(name));
    let listens = ["--tls-port", &port.to_string(), "--tls-auth-clients", demands_certificates].map(str::to_owned);
    let files = ["--tls-cert-file", &certificate, "--tls-key-file", &key, "--tls-ca-cert-file", &ca];
    let args: Vec<&str> = listens.iter().map(String::as_str).chain(files).collect();
    (RedisServer::start_with(free_port(), &args), port)
}

/// The reply to one hit of a server on that Redis.
fn hit(url: &str, flags: &[&str]) -> String {
    let rules = RulesFile::ini("[default]\ncreditLimit = 5\nresetSeconds = 600\n");
    // A handshake takes its time on a busy machine.
    let patient = ["--redis-timeout", "20000"];
    let server = Server::start(&[&[rules.path(), "--redis-url", url], flags, &patient].concat());
    let mut client = LineClient::connect(server.line);
    client.send(b"HIT a=b\n");
    client.read_line()
}

#[test]
fn a_private_authority_is_trusted_when_it_is_given_and_no_other() {
    let certificates = Certificates::new();
    let (redis, port) = redis(&certificates, "no");
    let url = format!("rediss://127.0.0.1:{port}");
    assert_eq!(hit(&url, &["--redis-ca", &certificates.path("ca.pem")]), "OK true 4 600\n");
    assert_eq!(redis.cli(&["GET", "divvy:::5:600"]), "4");
    for flags in [&["--redis-ca", &certificates.path("foreign-ca.pem")][..], &[]] {
        let refused = hit(&url, flags);
        let is_clear = refused.contains("cannot connect to Redis") && refused.contains("invalid peer certificate");
        assert!(refused.starts_with("ERR ") && is_clear, "{flags:?}: {refused}");
    }
}

#[test]
fn a_redis_that_demands_a_certificate_gets_divvy_s_own() {
    let certificates = Certificates::new();
    let (_redis, port) = redis(&certificates, "yes");
    let [ca, certificate, key] = ["ca.pem", "client.pem", "client.key"].map(|name| certificates.path(name));
    let url = format!("rediss://127.0.0.1:{port}");
    let own = ["--redis-ca", &ca, "--redis-cert", &certificate, "--redis-key", &key];
    assert_eq!(hit(&url, &own), "OK true 4 600\n");
    let refused = hit(&url, &["--redis-ca", &ca]);
    assert!(refused.starts_with("ERR ") && refused.contains("cannot connect to Redis"), "{refused}");
}

#[test]
fn a_unix_socket_with_user_and_password() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("redis.sock").to_str().unwrap().to_owned();
    let redis = RedisServer::start_with(free_port(), &["--unixsocket", &path, "--requirepass", "secret"]);
    assert_eq!(hit(&format!("redis+unix://{path}?user=default&pass=secret&db=3"), &[]), "OK true 4 600\n");
    let cli = ["-a", "secret", "--no-auth-warning", "-n", "3", "GET", "divvy:::5:600"];
    assert_eq!(redis.cli(&cli), "4");
    let refused = hit(&format!("redis+unix://{path}"), &[]);
    assert!(refused.starts_with("ERR ") && refused.contains("NOAUTH"), "{refused}");
}
