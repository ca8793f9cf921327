//! Connections to Redis: TLS with a private authority, certificates for both sides, a Unix socket, and users.

use crate::support::{Certificates, RedisServer, Server, free_port, http, until};

/// Starts a Redis with TLS on the returned port. Its plain port is for redis-cli.
fn redis(certificates: &Certificates, demands_certificates: &str) -> (RedisServer, u16) {
    redis_with(certificates, &["--tls-auth-clients", demands_certificates])
}

fn redis_with(certificates: &Certificates, more: &[&str]) -> (RedisServer, u16) {
    let (plain, port) = (free_port(), free_port());
    let [certificate, key, ca] = ["server.pem", "server.key", "ca.pem"].map(|name| certificates.path(name));
    let files = ["--tls-cert-file", &certificate, "--tls-key-file", &key, "--tls-ca-cert-file", &ca];
    let flags = ["--tls-port", &port.to_string()];
    (RedisServer::start_with(plain, &[&flags[..], &files, more].concat()), port)
}

/// Starts a server on that Redis, and returns the reply to one hit.
fn hit(url: &str, flags: &[&str]) -> String {
    // A handshake takes some time on a busy machine.
    let flags = [&["--redis-timeout", "20000", "--redis-url", url], flags].concat();
    let server = Server::serving("[default] creditLimit=5 resetSeconds=600", &flags);
    let mut client = server.line();
    client.send(b"HIT a=b\n");
    client.read_line()
}

#[test]
fn only_a_given_private_authority_is_trusted() {
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
fn divvy_presents_its_certificate_to_a_redis_that_demands_one() {
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
fn unix_socket_works_with_user_and_password() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("redis.sock").to_str().unwrap().to_owned();
    let redis = RedisServer::start_with(free_port(), &["--unixsocket", &path, "--requirepass", "secret"]);
    assert_eq!(hit(&format!("redis+unix://{path}?user=default&pass=secret&db=3"), &[]), "OK true 4 600\n");
    let cli = ["-a", "secret", "--no-auth-warning", "-n", "3", "GET", "divvy:::5:600"];
    assert_eq!(redis.cli(&cli), "4");
    let refused = hit(&format!("redis+unix://{path}"), &[]);
    assert!(refused.starts_with("ERR ") && refused.contains("NOAUTH"), "{refused}");
}

/// The user has exactly the rights listed in docs/redis.md.
#[test]
fn cluster_over_tls_works_for_a_user_with_minimal_rights() {
    let certificates = Certificates::new();
    let ca = certificates.path("ca.pem");
    let cluster = ["--tls-cluster", "yes", "--tls-auth-clients", "no", "--cluster-enabled", "yes"];
    let (redis, port) = redis_with(&certificates, &cluster);
    assert_eq!(redis.cli(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]), "OK");
    until(|| redis.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok"));
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/redis.md")).unwrap();
    let user =
        page.lines().find_map(|line| line.strip_prefix("ACL SETUSER divvy ")).expect("the page names the rights");
    let words: Vec<_> = user.replace("PASSWORD", "secret").split(' ').map(str::to_owned).collect();
    let words: Vec<_> = ["ACL", "SETUSER", "divvy"].into_iter().chain(words.iter().map(String::as_str)).collect();
    assert_eq!(redis.cli(&words), "OK");

    let rules = "[ip=*] creditLimit=5 resetSeconds=600 actorField=ip label=ips
[default] creditLimit=5 resetSeconds=600 algorithm=sliding-log";
    let node = format!("rediss://divvy:secret@127.0.0.1:{port}");
    let urls = format!("{node},{node}");
    let flags = ["--redis-url", &urls, "--redis-ca", &ca, "--redis-timeout", "20000", "--denial-cache", "0"];
    let server = Server::serving(rules, &flags);
    let mut client = server.resp();
    for (command, reply) in [
        ("DIVVY.HIT ip=a", "[1 4 600]"),
        ("DIVVY.HIT x=y", "[1 4 600]"),
        ("CL.THROTTLE k 4 1 3600", "[0 5 4 -1 3600]"),
        ("DIVVY.RESET x=y", "1"),
    ] {
        assert_eq!(client.command(command), reply, "{command}");
    }
    // The number includes the key for reservation ids, and sometimes the probe's key, which lives for a millisecond.
    until(|| client.command("DBSIZE") == "3");
    // A window that lost its expiry gets it back.
    redis.cli(&["PERSIST", "divvy:ip=*:a:5:600"]);
    assert_eq!(client.command("DIVVY.HIT ip=a"), "[1 3 600]");
    assert!(client.command("DIVVY.COUNTERS ips").contains("[a 3 600 3]"));
    assert_eq!(http::get(server.http, "/readyz").status, 200);
    // From Redis 7.2 on, a connection sends its library's name, and works without the right to do so.
    let log = redis.cli(&["ACL", "LOG"]);
    let refused = log.lines().zip(log.lines().skip(1)).filter(|(name, _)| *name == "object");
    assert!(refused.into_iter().all(|(_, command)| command == "client|setinfo"), "{log}");
}
