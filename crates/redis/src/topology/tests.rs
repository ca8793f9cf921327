use std::path::PathBuf;

use super::*;
use crate::options::{RedisSentinel, RedisTls};

fn options(urls: &[&str], master: Option<&str>) -> RedisOptions {
    let sentinel = master.map(|master| RedisSentinel { master: master.to_owned(), auth: None });
    RedisOptions { urls: urls.iter().map(|url| url.to_string()).collect(), sentinel, ..RedisOptions::default() }
}

fn target(urls: &[&str], master: Option<&str>) -> Result<Target, InvalidRedisTarget> {
    Target::new(&options(urls, master))
}

#[test]
fn urls_and_sentinels_decide_between_one_server_and_a_cluster() {
    let is_cluster = |urls: &[&str], master| matches!(target(urls, master).unwrap().servers, Servers::Cluster(_));
    assert!(!is_cluster(&["redis://127.0.0.1"], None));
    assert!(!is_cluster(&["rediss://user:secret@example.org:6380/2"], None));
    assert!(!is_cluster(&["redis+unix:///run/redis.sock"], None));
    assert!(!is_cluster(&["redis://a:26379"], Some("main")));
    assert!(!is_cluster(&["redis://:pw@a:26379/3", "redis://b:26379"], Some("main")));
    assert!(is_cluster(&["redis://a", "redis://b"], None));
}

#[test]
fn names_and_errors_contain_no_password() {
    let name = target(&["redis://user:secret@example.org:6380"], None).unwrap().name;
    assert_eq!(name, "example.org:6380");
    for urls in [&["redis://user:secret@example.org:port"][..], &["secret"], &["http://secret@x"]] {
        let error = target(urls, None).err().unwrap().to_string();
        assert!(error.contains("Redis URL 1") && !error.contains("secret"), "{error}");
    }
}

#[test]
fn conflicting_urls_are_refused() {
    let refused = [
        (&[][..], "no Redis URL is given"),
        (&["redis://a/1", "redis://b/1"], "only database 0"),
        (&["redis://a", "rediss://b"], "either redis:// or rediss://"),
        (&["redis://:x@a", "redis://:y@b"], "the same user and password"),
        (&["redis+unix:///a", "redis+unix:///b"], "cannot use unix sockets"),
    ];
    for (urls, expected) in refused {
        let error = target(urls, None).err().unwrap().to_string();
        assert!(error.contains(expected), "{urls:?}: {error}");
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
        let refused = Target::new(&RedisOptions { tls, ..options(&[url], None) }).err();
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
