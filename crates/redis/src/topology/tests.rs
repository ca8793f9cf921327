use std::path::PathBuf;

use super::*;
use crate::options::RedisTls;

fn options(urls: &[&str]) -> RedisOptions {
    RedisOptions { urls: urls.iter().map(|url| url.to_string()).collect(), ..RedisOptions::default() }
}

fn target(urls: &[&str]) -> Result<Target, InvalidRedisTarget> {
    Target::new(&options(urls))
}

#[test]
fn names_and_errors_contain_no_password() {
    let name = target(&["redis://user:secret@example.org:6380"]).unwrap().name;
    assert_eq!(name, "example.org:6380");
    for urls in [&["redis://user:secret@example.org:port"][..], &["secret"], &["http://secret@x"]] {
        let error = target(urls).err().unwrap().to_string();
        assert!(error.contains("Redis URL 1") && !error.contains("secret"), "{error}");
    }
}

#[test]
fn conflicting_urls_are_refused() {
    assert!(matches!(target(&[]), Err(InvalidRedisTarget::NoUrl)));
    for (one, other) in [
        ("redis://a/1", "redis://b/1"),
        ("redis://a", "rediss://b"),
        ("redis://:x@a", "redis://:y@b"),
        ("redis+unix:///a", "redis+unix:///b"),
    ] {
        assert!(matches!(target(&[one, other]), Err(InvalidRedisTarget::Mixed)), "{one} {other}");
    }
}

#[test]
fn certificates_are_checked_before_connecting() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    };
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (good, empty) = (file("ca.pem", &certified.cert.pem()), file("empty.pem", ""));
    let broken = file("broken.pem", "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n");
    let error = |url: &str, tls| {
        let refused = Target::new(&RedisOptions { tls, ..options(&[url]) }).err();
        refused.map(|error| error.to_string()).unwrap_or_default()
    };
    let ca = |path: &PathBuf| RedisTls { ca: Some(path.clone()), client: None };
    assert_eq!(error("rediss://localhost", ca(&good)), "");
    assert!(error("redis://localhost", ca(&good)).contains("Redis URL 1 does not use TLS"));
    assert!(error("rediss://localhost", ca(&dir.path().join("none"))).contains("none: No such file"));
    assert!(error("rediss://localhost", ca(&empty)).contains("empty.pem contains no CERTIFICATE"));
    assert!(error("rediss://localhost", ca(&broken)).contains("cannot use the certificates"));
    let no_key = RedisTls { ca: None, client: Some((good.clone(), good)) };
    assert!(error("rediss://localhost", no_key).contains("ca.pem contains no PRIVATE KEY"));
}
