//! The client of a management server, against a gRPC server in Python: what it accepts, refuses and keeps, and how it comes back.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use divvy::server::xds::{DEFAULT_MAX_MESSAGE, Pings, XdsSettings, XdsTls};
use hyper::HeaderMap;
use rcgen::SanType;
use serde_json::{Value, json};

use crate::support::ads::{Follower, ManagementServer, resource};
use crate::support::{Certificates, Server, http, lasting_port, number, refused, until};

fn settings(url: &str) -> XdsSettings {
    XdsSettings {
        server: url.parse().unwrap(),
        tls: XdsTls::default(),
        node: "default".to_owned(),
        node_metadata: BTreeMap::new(),
        headers: HeaderMap::new(),
        max_message: DEFAULT_MAX_MESSAGE,
        cache: None,
        merges_domains: false,
        pings: Pings::default(),
    }
}

/// Starts a server and a client, which has sent its first request.
fn connected() -> (ManagementServer, Follower) {
    let mut server = ManagementServer::start(0);
    let follower = Follower::start(settings(&format!("127.0.0.1:{}", server.port)));
    assert_eq!(server.answer(), answer("", "", ""));
    (server, follower)
}

fn answer(version: &str, nonce: &str, problems: &str) -> (String, String, String) {
    (version.to_owned(), nonce.to_owned(), problems.to_owned())
}

fn only(domain: &str, requests: u32) -> Vec<(String, u32)> {
    vec![(domain.to_owned(), requests)]
}

fn is_about(pause: Duration, seconds: f64) -> bool {
    (0.79..=1.21).contains(&(pause.as_secs_f64() / seconds))
}

#[test]
fn hundred_versions_are_each_in_force_before_their_ack() {
    let (mut server, follower) = connected();
    assert!(!follower.is_configured());
    for version in 1..=100 {
        let (text, nonce) = (version.to_string(), format!("n{version}"));
        server.respond(&text, &nonce, &[resource("edge", version)]);
        assert_eq!(server.answer(), answer(&text, &nonce, ""));
        assert_eq!(follower.applied(), only("edge", version));
        assert!(follower.is_configured());
    }
    server.respond("101", "n101", &[]);
    assert_eq!((server.answer(), follower.applied()), (answer("101", "n101", ""), vec![]));
}

#[test]
fn request_has_the_node_and_the_headers() {
    let mut server = ManagementServer::start(0);
    let mut headers = HeaderMap::new();
    headers.insert("x-team", "edge".parse().unwrap());
    let node_metadata = BTreeMap::from([("zone".to_owned(), "a".to_owned())]);
    let settings = settings(&format!("http://127.0.0.1:{}", server.port));
    let _follower = Follower::start(XdsSettings { node: "n1".to_owned(), node_metadata, headers, ..settings });
    let type_url = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";
    let node = json!({ "id": "n1", "metadata": { "zone": "a" } });
    let mut first = server.request();
    let sent = first.as_object_mut().unwrap().remove("headers").unwrap();
    assert_eq!(first, json!({ "node": node, "type_url": type_url }));
    assert_eq!(
        (&sent["x-team"], sent["user-agent"].as_str().unwrap().split('/').next()),
        (&json!("edge"), Some("divvy"))
    );
    server.respond("1", "n", &[]);
    let ack = json!({ "node": node, "type_url": type_url, "version_info": "1", "response_nonce": "n" });
    assert_eq!(server.request(), ack);
}

#[test]
fn bad_configuration_is_refused_with_all_problems_and_the_last_one_stays() {
    let (mut server, follower) = connected();
    server.respond("1", "n1", &[resource("edge", 5)]);
    assert_eq!((server.answer(), follower.applied()), (answer("1", "n1", ""), only("edge", 5)));

    let mut unit = resource("x", 1);
    unit["name"] = "bad-unit".into();
    unit["descriptors"][0]["rate_limit"]["unit"] = "UNKNOWN".into();
    let key = json!({ "name": "bad-key", "domain": "y", "descriptors": [{}] });
    let not_utf_8 = json!({ "bytes": "0a01ff" });
    server.respond("2", "n2", &[unit, key, not_utf_8, resource("good", 1)]);
    let (version, nonce, problems) = server.answer();
    assert_eq!((version.as_str(), nonce.as_str()), ("1", "n2"));
    let lines: Vec<_> = problems.lines().collect();
    let expected =
        ["bad-unit: [domain=x k=*] unknown unit", "bad-key: [domain=y] an entry has no `key`", "resource 3: it cannot"];
    assert_eq!(lines.len(), expected.len(), "{problems}");
    assert!(lines.iter().zip(expected).all(|(line, expected)| line.starts_with(expected)), "{problems}");

    // The rest of the server may refuse a configuration, too.
    server.respond("3", "n3", &[resource("refused", 1)]);
    assert_eq!(server.answer(), answer("1", "n3", "the holder: it refuses this; send another"));
    server.respond("4", "n4", &[resource("edge", 6)]);
    assert_eq!((server.answer(), follower.applied()), (answer("4", "n4", ""), only("edge", 6)));
}

#[test]
fn long_list_of_problems_is_cut() {
    let (mut server, _follower) = connected();
    let bad: Vec<_> = (0..1_000).map(|number| json!({ "name": format!("r{number}") })).collect();
    server.respond("1", "n1", &bad);
    let (_, _, problems) = server.answer();
    assert!(problems.len() < 8_200 && problems.ends_with('…'), "{problems}");
}

/// Some servers send what was refused again at once.
#[test]
fn nack_that_repeats_the_one_before_waits_unless_another_response_comes() {
    let (mut server, follower) = connected();
    let refused = |nonce: &str| answer("", nonce, "the holder: it refuses this; send another");
    server.respond("1", "n1", &[resource("refused", 1)]);
    assert_eq!(server.answer(), refused("n1"));
    server.respond("1", "n2", &[resource("refused", 1)]);
    assert_eq!(follower.pause(), Duration::from_secs(5));
    follower.go_on();
    assert_eq!(server.answer(), refused("n2"));
    server.respond("1", "n3", &[resource("refused", 1)]);
    server.respond("2", "n4", &[resource("edge", 1)]);
    assert_eq!((server.answer(), follower.applied()), (answer("2", "n4", ""), only("edge", 1)));
}

#[test]
fn lost_stream_is_followed_by_a_new_one_without_version_and_nonce() {
    let (mut server, follower) = connected();
    server.respond("7", "n7", &[resource("edge", 1)]);
    assert_eq!((server.answer(), follower.applied()), (answer("7", "n7", ""), only("edge", 1)));
    for expected in [1.0, 1.6, 2.56] {
        server.end(14);
        server.await_end();
        let pause = follower.pause();
        assert!(is_about(pause, expected), "{pause:?}");
        follower.go_on();
        assert_eq!(server.answer(), answer("", "", ""));
    }
    server.respond("8", "n8", &[resource("edge", 2)]);
    assert_eq!((server.answer(), follower.applied()), (answer("8", "n8", ""), only("edge", 2)));
}

/// A gateway that restarts counts versions from 1 again.
#[test]
fn version_of_a_restarted_server_may_have_other_content() {
    let port = lasting_port();
    let mut server = ManagementServer::start(port);
    let follower = Follower::start(settings(&format!("localhost:{port}")));
    server.answer();
    server.respond("1", "n1", &[resource("edge", 1)]);
    assert_eq!((server.answer(), follower.applied()), (answer("1", "n1", ""), only("edge", 1)));
    drop(server);
    follower.pause();
    follower.go_on();
    assert!(is_about(follower.pause(), 1.6), "there is no server");
    let mut server = ManagementServer::start(port);
    follower.go_on();
    assert_eq!(server.answer(), answer("", "", ""));
    server.respond("1", "n1", &[resource("edge", 2)]);
    assert_eq!((server.answer(), follower.applied()), (answer("1", "n1", ""), only("edge", 2)));
}

#[test]
fn client_starts_from_its_cache_without_a_server() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cache");
    let mut server = ManagementServer::start(0);
    let settings = XdsSettings { cache: Some(path.clone()), ..settings(&format!("127.0.0.1:{}", server.port)) };
    let follower = Follower::start(settings.clone());
    server.answer();
    for (version, resources) in [("1", vec![resource("edge", 1)]), ("2", vec![resource("edge", 2)])] {
        server.respond(version, version, &resources);
        server.answer();
        follower.applied();
    }
    server.respond("3", "3", &[resource("refused", 3)]);
    server.answer();
    drop(server);
    // The file is written after the ACK.
    let is_kept = || {
        let follower = Follower::start(settings.clone());
        follower.is_configured() && follower.applied() == only("edge", 2)
    };
    until(is_kept);

    let mut damaged = fs::read(&path).unwrap();
    *damaged.last_mut().unwrap() ^= 1;
    fs::write(&path, damaged).unwrap();
    let follower = Follower::start(settings);
    assert!(!follower.is_configured());
    assert!(is_about(follower.pause(), 1.0), "it still asks the server");
}

#[test]
fn cache_that_cannot_be_written_decides_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = ManagementServer::start(0);
    let cache = Some(dir.path().join("none/cache"));
    let follower = Follower::start(XdsSettings { cache, ..settings(&format!("127.0.0.1:{}", server.port)) });
    server.answer();
    for version in ["1", "2"] {
        server.respond(version, version, &[resource("edge", 1)]);
        assert_eq!((server.answer(), follower.applied()), (answer(version, version, ""), only("edge", 1)));
    }
}

#[test]
fn tls_needs_the_authority_the_name_and_the_client_certificate() {
    let certificates = Certificates::new();
    certificates.issue_named("gateway", None, vec![SanType::DnsName("gateway.local".try_into().unwrap())]);
    let mut server = ManagementServer::with_tls(&certificates, "gateway");
    let url = format!("https://127.0.0.1:{}", server.port);
    let path = |name: &str| certificates.path(name).into();
    let client = Some((path("client.pem"), path("client.key")));
    let server_name = Some("gateway.local".to_owned());
    let complete = XdsTls { ca: Some(path("ca.pem")), client, server_name };
    for tls in [
        XdsTls { ca: None, ..complete.clone() },
        XdsTls { ca: Some(path("foreign-ca.pem")), ..complete.clone() },
        XdsTls { server_name: None, ..complete.clone() },
        XdsTls { client: None, ..complete.clone() },
        XdsTls { client: Some((path("foreign.pem"), path("foreign.key"))), ..complete.clone() },
        XdsTls { client: Some((path("client.pem"), path("foreign.key"))), ..complete.clone() },
    ] {
        let follower = Follower::start(XdsSettings { tls, ..settings(&url) });
        assert!(is_about(follower.pause(), 1.0));
    }
    // The files are read for each connection.
    let late = path("late.pem");
    let follower = Follower::start(XdsSettings { tls: XdsTls { ca: Some(late), ..complete }, ..settings(&url) });
    follower.pause();
    certificates.write("late.pem", &fs::read_to_string(certificates.path("ca.pem")).unwrap());
    follower.go_on();
    assert_eq!(server.answer(), answer("", "", ""));
    server.respond("1", "n1", &[resource("edge", 1)]);
    assert_eq!((server.answer(), follower.applied()), (answer("1", "n1", ""), only("edge", 1)));
}

#[test]
fn response_of_5_mib_needs_a_larger_bound() {
    let mut large = resource("edge", 1);
    large["descriptors"][0]["metadata"] = json!({ "text": "x".repeat(5 << 20) });
    for (max_message, is_accepted) in [(DEFAULT_MAX_MESSAGE, false), (6 << 20, true)] {
        let mut server = ManagementServer::start(0);
        let settings = settings(&format!("127.0.0.1:{}", server.port));
        let follower = Follower::start(XdsSettings { max_message, ..settings });
        server.answer();
        server.respond("1", "n1", std::slice::from_ref(&large));
        if is_accepted {
            assert_eq!((server.answer(), follower.applied()), (answer("1", "n1", ""), only("edge", 1)));
        } else {
            assert!(is_about(follower.pause(), 1.0));
            server.await_end();
        }
    }
}

const RULES: &str =
    "[other=*] creditLimit=5 resetSeconds=600 actorField=other\n[default] creditLimit=5 resetSeconds=600";

/// Returns a resource whose domain allows this number of requests a year.
fn yearly(requests: u64) -> Value {
    let mut resource = resource("edge", 0);
    resource["descriptors"][0]["rate_limit"] = json!({ "unit": "YEAR", "requests_per_unit": requests });
    resource
}

/// Each answer must fit a version that was in force between the hit and the answer. The count goes on from version to version.
#[test]
fn hundred_versions_under_load_never_cause_a_wrong_answer() {
    const FIRST: u64 = 1_000_000;
    const STEP: u64 = 1_000_000;
    let limit = |version: u64| FIRST + STEP * version;
    let mut management = ManagementServer::start(0);
    let (audit, url) = (tempfile::NamedTempFile::new().unwrap(), format!("127.0.0.1:{}", management.port));
    let flags = ["--ratelimit-xds", &url, "--audit-log", audit.path().to_str().unwrap()];
    let server = Server::serving(RULES, &flags);
    management.answer();
    // The newest version that was acknowledged, and the newest one that was sent.
    let (acknowledged, sent, is_over) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let mut update = |version: u64| {
        sent.store(version, SeqCst);
        let text = version.to_string();
        management.respond(&text, &text, &[yearly(limit(version))]);
        assert_eq!(management.answer(), answer(&text, &text, ""));
        acknowledged.store(version, SeqCst);
    };
    update(0);
    let load = |actor: usize| {
        let mut client = server.line();
        for hits in 1.. {
            if is_over.load(SeqCst) {
                return hits;
            }
            let oldest = acknowledged.load(SeqCst);
            let (is_allowed, credit, _) = client.hit(&format!("domain=edge k={actor}"));
            let newest = sent.load(SeqCst);
            let possible = (oldest..=newest).any(|version| credit == limit(version) - hits);
            assert!(is_allowed && possible, "hit {hits} in versions {oldest} to {newest}: {credit} are left");
        }
        0
    };
    thread::scope(|scope| {
        let load = &load;
        let loads: Vec<_> = (0..4).map(|actor| scope.spawn(move || load(actor))).collect();
        (1..=100).for_each(&mut update);
        is_over.store(true, SeqCst);
        let hits: u64 = loads.into_iter().map(|load| load.join().unwrap()).sum();
        assert!(hits > 100, "only {hits} hits");
    });
    let lines = fs::read_to_string(audit.path()).unwrap();
    assert_eq!(lines.matches("\"front\":\"xds\"").count(), 101);
    assert_eq!(number(&server, "divvy_xds_connected"), 1);
    assert_eq!(number(&server, "divvy_xds_answers_total{answer=\"ack\"}"), 101);
}

#[test]
fn server_is_ready_once_it_has_a_configuration_which_it_keeps_in_its_data_directory() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let mut management = ManagementServer::start(0);
    let url = format!("127.0.0.1:{}", management.port);
    let flags = ["--data-dir", data.to_str().unwrap(), "--ratelimit-xds", &url];
    let server = Server::serving(RULES, &flags);
    management.answer();
    until(|| {
        let readiness = http::get(server.http, "/readyz");
        (readiness.status, readiness.body.as_str()) == (503, "the management server has not sent a configuration yet\n")
    });
    management.respond("1", "1", &[yearly(10)]);
    assert_eq!(management.answer(), answer("1", "1", ""));
    assert_eq!(http::get(server.http, "/readyz").status, 200);
    let mut client = server.line();
    assert_eq!(client.hit("domain=edge k=a").1, 9);
    assert_eq!(client.hit("other=a").1, 4, "the rules file goes on");

    // A refused configuration touches no counter, and an accepted one none whose unit stays.
    management.respond("2", "2", &[yearly(10), json!({ "name": "bad" })]);
    assert_eq!(management.answer().2.lines().count(), 1);
    assert_eq!(client.hit("domain=edge k=a").1, 8);
    management.respond("3", "3", &[yearly(20)]);
    assert_eq!(management.answer(), answer("3", "3", ""));
    assert_eq!(client.hit("domain=edge k=a").1, 17);
    assert_eq!(number(&server, "divvy_xds_answers_total{answer=\"nack\"}"), 1);

    drop(management);
    until(|| number(&server, "divvy_xds_connected") == 0);
    let file = data.join("ratelimit-xds");
    // The message begins with its version.
    until(|| fs::read(&file).is_ok_and(|kept| kept.windows(3).any(|bytes| bytes == b"\x0a\x013")));
    server.kill();
    let server = Server::serving(RULES, &flags);
    assert_eq!(server.line().hit("domain=edge k=a").1, 16);
    until(|| http::get(server.http, "/readyz").status == 200);
}

#[test]
fn flags_that_contradict_each_other_are_refused() {
    for (flags, expected) in [
        ("--ratelimit-xds a:1 --ratelimit-xds-server-name b", "does not use TLS"),
        ("--ratelimit-xds a:1 --ratelimit-config .", "cannot be used with"),
        ("--ratelimit-xds a:1 --grpc-atomic", "cannot be used with"),
        ("--ratelimit-xds https://a:1 --ratelimit-xds-cert a", "--ratelimit-xds-key"),
        ("--ratelimit-xds a", "expected HOST:PORT"),
        ("--ratelimit-xds a:1 --ratelimit-xds-header a", "expected NAME:VALUE"),
        ("--ratelimit-cache a", "--ratelimit-xds <URL>"),
    ] {
        let error = refused(&format!("serve --store memory {flags}"));
        assert!(error.contains(expected), "{flags}: {error}");
    }
}
