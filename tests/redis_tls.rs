//! How divvy gets to Redis: TLS with an authority of one's own, certificates for both sides, and a unix socket.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;

use crate::support::redis::{RedisServer, free_port};
use crate::support::{LineClient, RulesFile, Server};

/// An authority, and the certificates that it has signed, as files.
struct Authority {
    dir: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        // Were it called as what it signs, OpenSSL would take that for signed by itself.
        params.distinguished_name.push(DnType::CommonName, "an authority of one's own");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let authority = Self { dir: tempfile::tempdir().unwrap(), issuer };
        authority.write("ca.pem", &authority.issuer.pem());
        authority
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, content: &str) {
        std::fs::write(self.path(name), content).unwrap();
    }

    /// Signs a certificate for 127.0.0.1: `name.pem`, with its key in `name.key`.
    fn sign(&self, name: &str) -> [String; 2] {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let names = [format!("{name}.pem"), format!("{name}.key")];
        self.write(&names[0], &certificate.pem());
        self.write(&names[1], &key.serialize_pem());
        names.map(|name| text(&self.path(&name)))
    }

    fn ca(&self) -> String {
        text(&self.path("ca.pem"))
    }

    /// A Redis with TLS on the returned port; its plain port is for redis-cli.
    fn redis(&self, demands_certificates: &str) -> (RedisServer, u16) {
        let [certificate, key] = self.sign("redis");
        let (port, ca) = (free_port(), self.ca());
        let listens = ["--tls-port", &port.to_string(), "--tls-auth-clients", demands_certificates].map(str::to_owned);
        let files = ["--tls-cert-file", &certificate, "--tls-key-file", &key, "--tls-ca-cert-file", &ca];
        let args: Vec<&str> = listens.iter().map(String::as_str).chain(files).collect();
        (RedisServer::start_with(free_port(), &args), port)
    }
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
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
    let (authority, other) = (Authority::new(), Authority::new());
    let (redis, port) = authority.redis("no");
    let url = format!("rediss://127.0.0.1:{port}");
    assert_eq!(hit(&url, &["--redis-ca", &authority.ca()]), "OK true 4 600\n");
    assert_eq!(redis.cli(&["GET", "divvy:::5:600"]), "4");
    for flags in [&["--redis-ca", &other.ca()][..], &[]] {
        let refused = hit(&url, flags);
        assert!(refused.starts_with("ERR ") && refused.contains("invalid peer certificate"), "{flags:?}: {refused}");
    }
}

#[test]
fn a_redis_that_demands_a_certificate_gets_divvy_s_own() {
    let authority = Authority::new();
    let (_redis, port) = authority.redis("yes");
    let [certificate, key] = authority.sign("divvy");
    let (url, ca) = (format!("rediss://127.0.0.1:{port}"), authority.ca());
    let own = ["--redis-ca", &ca, "--redis-cert", &certificate, "--redis-key", &key];
    assert_eq!(hit(&url, &own), "OK true 4 600\n");
    let refused = hit(&url, &["--redis-ca", &ca]);
    assert!(refused.starts_with("ERR ") && refused.contains("cannot connect to Redis"), "{refused}");
}

#[test]
fn a_unix_socket_with_user_and_password() {
    let dir = tempfile::tempdir().unwrap();
    let path = text(&dir.path().join("redis.sock"));
    let redis = RedisServer::start_with(free_port(), &["--unixsocket", &path, "--requirepass", "secret"]);
    assert_eq!(hit(&format!("redis+unix://{path}?user=default&pass=secret&db=3"), &[]), "OK true 4 600\n");
    let cli = ["-a", "secret", "--no-auth-warning", "-n", "3", "GET", "divvy:::5:600"];
    assert_eq!(redis.cli(&cli), "4");
    let refused = hit(&format!("redis+unix://{path}"), &[]);
    assert!(refused.starts_with("ERR ") && refused.contains("NOAUTH"), "{refused}");
}
