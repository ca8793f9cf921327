//! divvy-crowdsec: CrowdSec's bouncers with divvy in place of a CrowdSec server, and divvy as a bouncer of a CrowdSec server.

pub mod programs;

use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::json;

use self::programs::{Fake, Lapi, Sidecar, answer, ban};
use crate::clients::{python, tool};
use crate::support::http::{encode, request};
use crate::support::redis::cli;
use crate::support::{
    Answering, Certificates, HttpClient, Killed, RedisServer, RulesFile, Server, divvy_with, output_for, scrape, until,
};

/// Key of the bouncers.
const KEY: &str = "0123456789abcdef0123456789abcdef";
const PASSWORD: &str = "correct horse";
const RULES: &str = "
[ip=*] creditLimit=1000000 resetSeconds=60 actorField=ip label=by-ip
[user=*] creditLimit=1000000 resetSeconds=60 actorField=user label=by-user
[default] creditLimit=1000000 resetSeconds=60
";

/// Returns the hash of a key, as it is in files.
fn hash(key: &str) -> String {
    output_for(&mut divvy_with("access hash --sha256"), key).1.trim().to_owned()
}

/// Writes a file that others cannot read. Returns its path.
fn secret(directory: &tempfile::TempDir, name: &str, text: &str) -> String {
    let path = directory.path().join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A server with a password, and a divvy-crowdsec whose bouncers need a key.
struct Guarded {
    server: Server,
    sidecar: Sidecar,
    directory: tempfile::TempDir,
}

impl Guarded {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let users = format!("user narrow on {} +@read ~label:by-ip\n", hash("narrow"));
        let users = secret(&directory, "users.acl", &users);
        let server = Server::serving(RULES, &["--requirepass", PASSWORD, "--access-file", &users]);
        let keys = secret(&directory, "keys", &format!("# firewalls\nfirewall {}\n", hash(KEY)));
        let key = secret(&directory, "divvy-key", PASSWORD);
        let sidecar = Sidecar::start(&server, &["--divvy-key-file", &key, "--bouncer-keys", &keys]);
        Self { server, sidecar, directory }
    }

    /// Sends a command, as the operator.
    fn command(&self, words: &[&str]) -> String {
        let login = ["--no-auth-warning", "--pass", PASSWORD];
        cli(self.server.resp.port(), &[&login, words].concat()).trim().to_owned()
    }

    /// Returns the answer to a request with this key. Its body is not in chunks.
    fn get(&self, path: &str, key: &str) -> (u16, String) {
        let answer = request(
            self.sidecar.address,
            format!("GET {path} HTTP/1.0\r\nx-api-key: {key}\r\nuser-agent: test\r\n\r\n"),
        );
        (answer.status, answer.body)
    }

    /// Asks for the changes, as the bouncer, until there are some.
    fn changes(&self) -> (Vec<String>, Vec<String>) {
        let mut found = (Vec::new(), Vec::new());
        until(|| {
            let (status, body) = self.get("/v1/decisions/stream", KEY);
            assert_eq!(status, 200, "{body}");
            let body: serde_json::Value = serde_json::from_str(&body).unwrap();
            let values = |list: &str| {
                let decisions = body[list].as_array().unwrap().iter();
                decisions.map(|decision| decision["value"].as_str().unwrap().to_owned()).collect()
            };
            found = (values("new"), values("deleted"));
            !found.0.is_empty() || !found.1.is_empty()
        });
        found
    }
}

#[test]
fn bouncer_gets_the_blocks_of_addresses_as_decisions() {
    let guarded = Guarded::start();
    assert_eq!(guarded.get("/v1/decisions/stream?startup=true", KEY), (200, "{\"new\":[],\"deleted\":[]}".to_owned()));
    assert_eq!(guarded.get("/v1/decisions", KEY), (200, "null".to_owned()));
    guarded.command(&["DIVVY.BLOCK", "SET", "*", "ip=192.0.2.7", "EX", "3600", "REASON", "scans"]);
    assert_eq!(guarded.changes(), (vec!["192.0.2.7".to_owned()], vec![]));
    guarded.command(&["DIVVY.BLOCK", "SET", "*", "ip=2001:db8::/32"]);
    guarded.command(&["DIVVY.BLOCK", "SET", "by-ip", "198.51.100.9", "EX", "60"]);
    // Neither is about the address of a client.
    guarded.command(&["DIVVY.BLOCK", "SET", "*", "user=203.0.113.1"]);
    guarded.command(&["DIVVY.BLOCK", "SET", "by-user", "203.0.113.2"]);
    until(|| guarded.get("/v1/decisions", KEY).1.matches("\"ban\"").count() == 3);
    let (_, all) = guarded.get("/v1/decisions", KEY);
    for (value, scope, duration, scenario) in [
        ("192.0.2.7", "Ip", "59m", "divvy/*: scans"),
        ("198.51.100.9", "Ip", "59s", "divvy/by-ip"),
        ("2001:db8::/32", "Range", "168h0m0s", "divvy/*"),
    ] {
        let decisions: serde_json::Value = serde_json::from_str(&all).unwrap();
        let found = decisions.as_array().unwrap().iter().find(|decision| decision["value"] == value).unwrap();
        let expected = [("scope", scope), ("scenario", scenario), ("origin", "divvy"), ("type", "ban")];
        assert!(expected.iter().all(|(name, text)| found[*name] == *text), "{found}");
        let rest = found["duration"].as_str().unwrap();
        assert!(rest.starts_with(duration) || rest == "1h0m0s" || rest == "1m0s", "{found}");
        assert!(found["id"].as_u64().unwrap() > 0, "{found}");
    }
    assert!(guarded.get("/v1/decisions?ip=2001:db8:5::1", KEY).1.contains("2001:db8::/32"));
    assert_eq!(guarded.get("/v1/decisions?ip=192.0.2.8", KEY).1, "null");
    assert!(guarded.get("/v1/decisions?ip=x", KEY).1.contains("ip is 'x', but it is neither an address nor a network"));
    guarded.command(&["DIVVY.BLOCK", "DEL", "*", "ip=192.0.2.7"]);
    until(|| guarded.get("/v1/decisions?ip=192.0.2.7", KEY).1 == "null");
    let (mut new, deleted) = guarded.changes();
    new.sort();
    assert_eq!((new, deleted), (vec!["198.51.100.9".into(), "2001:db8::/32".into()], vec!["192.0.2.7".to_owned()]));
}

#[test]
fn bouncers_need_one_of_the_keys() {
    let guarded = Guarded::start();
    for path in ["/v1/decisions", "/v1/decisions/stream", "/v1/decisions/stream?startup=true"] {
        for (key, expected) in [(KEY, 200), (PASSWORD, 403), ("wrong", 403), (&format!("{KEY}0"), 403)] {
            assert_eq!(guarded.get(path, key).0, expected, "{path} {key}");
        }
    }
    let both = format!("GET /v1/decisions HTTP/1.0\r\nx-api-key: {KEY}\r\nauthorization: Bearer {KEY}\r\n\r\n");
    let twice = format!("GET /v1/decisions HTTP/1.0\r\nx-api-key: {KEY}\r\nx-api-key: {KEY}\r\n\r\n");
    let bearer = format!("GET /v1/decisions HTTP/1.0\r\nauthorization: Bearer {KEY}\r\n\r\n");
    let statuses = [both, twice, bearer].map(|text| request(guarded.sidecar.address, text).status);
    assert_eq!(statuses, [403, 403, 200]);
    assert_eq!((guarded.get("/v1/rules", KEY).0, guarded.get("/v1/usage-metrics", KEY).0), (404, 405));
    let mut client = HttpClient::connect(guarded.sidecar.address);
    let json = ("content-type", "application/json");
    let metrics = br#"{"remediation_components":[{"type":"x","metrics":[]}],"log_processors":null}"#;
    client.send(&encode("POST", "/v1/usage-metrics", &[("x-api-key", KEY), json], metrics));
    assert_eq!(client.read_response().status, 201);
    client.send(&encode("POST", "/v1/usage-metrics", &[("x-api-key", KEY), json], b"[]"));
    assert_eq!(client.read_response().status, 400);
    let requests =
        |status| scrape(guarded.sidecar.address).value("divvy_crowdsec_bouncer_requests_total", &[("status", status)]);
    assert_eq!((requests("201"), requests("404")), (1.0, 1.0));
}

#[test]
fn decisions_are_refused_until_divvy_answers() {
    let guarded = Guarded::start();
    let key = secret(&guarded.directory, "narrow", "narrow");
    let narrow = Sidecar::start(&guarded.server, &["--divvy-key-file", &key]);
    let answer = request(narrow.address, "GET /v1/decisions HTTP/1.0\r\n\r\n");
    assert!(answer.status == 503 && answer.body.contains("it refuses the key (status 403"), "{answer:?}");
}

/// Debian's custom bouncer, which calls a script for each change.
struct CustomBouncer {
    _process: Killed,
    directory: tempfile::TempDir,
}

impl CustomBouncer {
    fn start(address: SocketAddr) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (script, calls) = (directory.path().join("script"), directory.path().join("calls"));
        fs::write(&script, format!("#!/bin/sh\necho \"$1 $2 $3 $4\" >>{}\n", calls.display())).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o700)).unwrap();
        let (script, place) = (script.display(), directory.path().display());
        let config = format!(
            "bin_path: {script}\nfeed_via_stdin: false\npiddir: {place}\nupdate_frequency: 1s\n\
             cache_retention_duration: 10s\ndaemonize: false\nlog_mode: stdout\nlog_dir: {place}\nlog_level: info\n\
             api_url: http://{address}/\napi_key: {KEY}\nprometheus: {{enabled: false}}\n"
        );
        fs::write(directory.path().join("config.yaml"), config).unwrap();
        let mut command = tool("crowdsec-custom-bouncer");
        command.arg("-c").arg(directory.path().join("config.yaml"));
        let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        Self { _process: Killed(process), directory }
    }

    fn await_call(&self, call: &str) {
        let calls = self.directory.path().join("calls");
        until(|| fs::read_to_string(&calls).unwrap_or_default().lines().any(|line| line.starts_with(call)));
    }
}

#[test]
fn custom_bouncer_of_debian_adds_and_deletes_blocked_addresses() {
    let guarded = Guarded::start();
    guarded.command(&["DIVVY.BLOCK", "SET", "*", "ip=192.0.2.7", "EX", "3600", "REASON", "scans"]);
    let bouncer = CustomBouncer::start(guarded.sidecar.address);
    bouncer.await_call("add 192.0.2.7 3");
    guarded.command(&["DIVVY.BLOCK", "SET", "*", "ip=2001:db8::/32"]);
    bouncer.await_call("add 2001:db8::/32 604800 divvy/*");
    guarded.command(&["DIVVY.BLOCK", "DEL", "*", "ip=192.0.2.7"]);
    bouncer.await_call("del 192.0.2.7 0 divvy/*: scans");
    guarded.command(&["DIVVY.BLOCK", "SET", "*", "ip=192.0.2.8", "EX", "3"]);
    bouncer.await_call("add 192.0.2.8");
    bouncer.await_call("del 192.0.2.8");
}

#[test]
fn pycrowdsec_knows_the_blocked_addresses() {
    let guarded = Guarded::start();
    guarded.command(&["DIVVY.BLOCK", "SET", "*", "ip=192.0.2.7"]);
    let url = format!("http://{}/", guarded.sidecar.address);
    let mut bouncer = Answering::start(python("crowdsec_bouncer.py").args([&url, KEY]));
    assert_eq!(bouncer.ask(""), r#"{"192.0.2.7/32": "ban"}"#);
    guarded.command(&["DIVVY.BLOCK", "SET", "*", "ip=198.51.100.0/24"]);
    guarded.command(&["DIVVY.BLOCK", "DEL", "*", "ip=192.0.2.7"]);
    until(|| bouncer.ask("") == r#"{"198.51.100.0/24": "ban"}"#);
    assert!(bouncer.ask("198.51.100.7").contains("198.51.100.0/24"));
    assert_eq!(bouncer.ask("192.0.2.7"), "null");
}

/// A divvy, and a divvy-crowdsec that follows a CrowdSec server.
struct Following {
    server: Server,
    sidecar: Sidecar,
    directory: tempfile::TempDir,
}

impl Following {
    fn start(url: &str) -> Self {
        Self::start_with(url, &[], &[])
    }

    /// Starts both with these further arguments.
    fn start_with(url: &str, of_divvy: &[&str], of_sidecar: &[&str]) -> Self {
        let (server, directory) = (Server::serving(RULES, of_divvy), tempfile::tempdir().unwrap());
        let sidecar = follow(&server, url, &directory, of_sidecar);
        Self { server, sidecar, directory }
    }

    fn is_allowed(&self, pair: &str) -> bool {
        let hit = format!(r#"{{"operation":{{"{}"}}}}"#, pair.replace('=', "\":\""));
        let answer = self.server.http().post("/v1/hit", &hit);
        assert!([200, 429].contains(&answer.status), "{answer:?}");
        answer.status == 200
    }

    fn command(&self, words: &[&str]) -> String {
        cli(self.server.resp.port(), words).trim().to_owned()
    }
}

/// Starts a divvy-crowdsec that follows the CrowdSec server at this URL for a divvy.
fn follow(server: &Server, url: &str, directory: &tempfile::TempDir, args: &[&str]) -> Sidecar {
    let key = secret(directory, "key", &format!("{}\n", Lapi::KEY));
    Sidecar::start(server, &[&["--url", url, "--key-file", &key, "--interval", "1"], args].concat())
}

#[test]
fn bans_of_crowdsec_deny_hits_until_it_deletes_them() {
    let mut lapi = Lapi::start();
    lapi.cscli(&["decisions", "add", "--ip", "192.0.2.7", "--duration", "1h", "--reason", "crowdsecurity/ssh-bf"]);
    lapi.cscli(&["decisions", "add", "--range", "2001:db8::/48", "--duration", "1h"]);
    lapi.cscli(&["decisions", "add", "--ip", "192.0.2.9", "--duration", "1h", "--type", "captcha"]);
    let following = Following::start(&lapi.url());
    until(|| !following.is_allowed("ip=192.0.2.7"));
    until(|| !following.is_allowed("ip=2001:db8::7"));
    for allowed in ["ip=192.0.2.8", "ip=192.0.2.9", "user=192.0.2.7", "ip=2001:db9::7"] {
        assert!(following.is_allowed(allowed), "{allowed}");
    }
    let block = following.command(&["DIVVY.BLOCK", "GET", "*", "ip=192.0.2.7"]);
    assert!(block.contains("crowdsec: crowdsecurity/ssh-bf"), "{block}");
    lapi.cscli(&["decisions", "delete", "--ip", "192.0.2.7"]);
    until(|| following.is_allowed("ip=192.0.2.7"));
    lapi.cscli(&["decisions", "add", "--ip", "192.0.2.10", "--duration", "3s"]);
    until(|| !following.is_allowed("ip=192.0.2.10"));
    until(|| following.is_allowed("ip=192.0.2.10"));
    // Its blocks outlive the CrowdSec server, and the changes in the meantime are found afterwards.
    lapi.stop();
    following.sidecar.log.await_line(&["cannot follow the decisions of CrowdSec", "cannot connect"]);
    assert!(!following.is_allowed("ip=2001:db8::7"));
    assert!(following.sidecar.is_failing());
    lapi.restart();
    lapi.cscli(&["decisions", "delete", "--range", "2001:db8::/48"]);
    lapi.cscli(&["decisions", "add", "--ip", "192.0.2.11", "--duration", "1h"]);
    until(|| following.is_allowed("ip=2001:db8::7") && !following.is_allowed("ip=192.0.2.11"));
    assert!(!following.sidecar.is_failing());
    // divvy is listed by its name and version.
    until(|| following.sidecar.log.count("following the decisions of CrowdSec") == 2);
}

#[test]
fn blocks_of_operators_are_never_touched() {
    let (following, body, _fake) = scripted(format!(r#"{{"new":[{}],"deleted":null}}"#, ban("192.0.2.8")));
    until(|| !following.is_allowed("ip=192.0.2.8"));
    following.command(&["DIVVY.BLOCK", "SET", "*", "ip=192.0.2.7", "REASON", "by hand"]);
    following.command(&["DIVVY.BLOCK", "SET", "*", "ip=192.0.2.9"]);
    *body.lock() = format!(r#"{{"new":[{},{}],"deleted":null}}"#, ban("192.0.2.7"), ban("192.0.2.8"));
    until(|| following.sidecar.count("kept") >= 1.0);
    let block = following.command(&["DIVVY.BLOCK", "GET", "*", "ip=192.0.2.7"]);
    assert!(block.contains("by hand"), "{block}");
    let all = [ban("192.0.2.7"), ban("192.0.2.8"), ban("192.0.2.9")].join(",");
    *body.lock() = format!(r#"{{"new":null,"deleted":[{all}]}}"#);
    until(|| following.is_allowed("ip=192.0.2.8"));
    assert!(!following.is_allowed("ip=192.0.2.7") && !following.is_allowed("ip=192.0.2.9"));
    // Twice the same ban is one change.
    assert_eq!((following.sidecar.count("set"), following.sidecar.count("removed")), (1.0, 1.0));
}

#[test]
fn bans_take_no_more_room_than_there_is() {
    let bans: Vec<_> = (0..50).map(|last| ban(&format!("192.0.2.{last}"))).collect();
    let body = format!(r#"{{"new":[{}],"deleted":null}}"#, bans.join(","));
    let fake = Fake::start(move |_, stream| answer(stream, &body));
    let following = Following::start_with(&fake.url(), &["--max-blocks", "20"], &[]);
    following.sidecar.log.await_line(&["no room for blocks of CrowdSec", "full=30"]);
    let denied = (0..50).filter(|last| !following.is_allowed(&format!("ip=192.0.2.{last}"))).count();
    assert_eq!(denied, 20);
}

#[test]
fn answer_that_was_lost_leads_to_a_request_for_all_decisions() {
    let requests = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&requests);
    let fake = Fake::start(move |line, stream| {
        seen.lock().push(line.to_owned());
        let count = seen.lock().len();
        answer(stream, if count == 2 { r#"{"new":[{"dura"# } else { r#"{"new":null,"deleted":null}"# })
    });
    let _following = Following::start(&fake.url());
    until(|| requests.lock().len() >= 4);
    let startups: Vec<_> = requests.lock().iter().map(|line| line.contains("startup=true")).take(4).collect();
    assert_eq!(startups, [true, false, true, false]);
}

#[test]
fn servers_that_share_a_redis_share_the_decisions() {
    let redis = RedisServer::start();
    let [one, other] = [(); 2].map(|()| Server::serving(RULES, &["--redis-url", &redis.url()]));
    let fake = Fake::start(|_, stream| answer(stream, &format!(r#"{{"new":[{}],"deleted":null}}"#, ban("192.0.2.8"))));
    let directory = tempfile::tempdir().unwrap();
    let _following = follow(&other, &fake.url(), &directory, &[]);
    let sidecar = Sidecar::start(&one, &[]);
    let decisions = || {
        let answer = request(sidecar.address, "GET /v1/decisions HTTP/1.0\r\n\r\n").body;
        answer.matches("\"value\":\"192.0.2.").count()
    };
    until(|| decisions() == 1);
    cli(one.resp.port(), &["DIVVY.BLOCK", "SET", "*", "ip=192.0.2.7"]);
    until(|| decisions() == 2);
}

/// Another divvy-crowdsec is the CrowdSec server here.
#[test]
fn certificate_of_the_upstream_is_checked() {
    let (certificates, other) = (Certificates::new(), Server::serving(RULES, &[]));
    let (certificate, key) = (certificates.path("server.pem"), certificates.path("server.key"));
    let upstream = Sidecar::start(&other, &["--tls-cert", &certificate, "--tls-key", &key]);
    let block = ["DIVVY.BLOCK", "SET", "*", "ip=192.0.2.7", "REASON", "scans"];
    assert_eq!(cli(other.resp.port(), &block).trim(), "OK");
    let url = format!("https://{}", upstream.address);
    let following = Following::start_with(&url, &[], &["--ca", &certificates.path("ca.pem")]);
    until(|| !following.is_allowed("ip=192.0.2.7"));
    assert!(following.command(&["DIVVY.BLOCK", "GET", "*", "ip=192.0.2.7"]).contains("crowdsec: divvy/*: scans"));
    let refusing = Following::start_with(&url, &[], &["--ca", &certificates.path("foreign-ca.pem")]);
    refusing.sidecar.log.await_line(&["cannot follow the decisions of CrowdSec", "invalid peer certificate"]);
    assert!(refusing.is_allowed("ip=192.0.2.7"));
}

/// Whatever the CrowdSec server does, hits are answered at once, and the memory is bounded.
#[test]
fn bad_upstream_does_not_delay_hits() {
    type Behavior = fn(&str, &mut std::net::TcpStream) -> std::io::Result<()>;
    const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    let behaviors: [(&str, Behavior, &str); 6] = [
        // It reads until the client leaves.
        ("silent", |_, stream| std::io::Read::read(stream, &mut [0]).map(drop), ""),
        (
            "endless decisions",
            |_, stream| {
                stream.write_all(&[HEAD, b"8\r\n{\"new\":[\r\n"].concat())?;
                let mut last = 0_u32;
                loop {
                    let decision = format!("{},", ban(&std::net::Ipv4Addr::from_bits(last).to_string()));
                    stream.write_all(format!("{:x}\r\n{decision}\r\n", decision.len()).as_bytes())?;
                    last = last.wrapping_add(1);
                }
            },
            "",
        ),
        (
            "an endless text",
            |_, stream| {
                stream.write_all(&[HEAD, b"e\r\n{\"new\":[{\"a\":\"\r\n"].concat())?;
                loop {
                    stream.write_all(&[b"10000\r\n", &[b'x'; 0x10000][..], b"\r\n"].concat())?;
                }
            },
            "the answer is longer than 128 MiB",
        ),
        (
            "a huge answer",
            |_, stream| stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n{"),
            "the answer is longer than 128 MiB",
        ),
        ("no JSON", |_, stream| answer(stream, "<html></html>"), "the answer is not JSON"),
        ("nothing", |_, _| Ok(()), "connection closed before message completed"),
    ];
    for (name, behavior, logged) in behaviors {
        let fake = Fake::start(behavior);
        let mut following = Following::start(&fake.url());
        until(|| fake.requests() > 0);
        let before = following.sidecar.resident();
        let mut client = following.server.http();
        let (begun, mut slowest) = (Instant::now(), Duration::ZERO);
        while begun.elapsed() < Duration::from_secs(2) {
            let sent = Instant::now();
            let status = client.post("/v1/hit", r#"{"operation":{"user":"ann"}}"#).status;
            assert_eq!(status, 200, "{name}");
            slowest = slowest.max(sent.elapsed());
        }
        assert!(slowest < Duration::from_millis(500), "{name}: {slowest:?}");
        let grown = following.sidecar.resident().saturating_sub(before);
        assert!(grown < 256 << 20, "{name}: {grown} bytes");
        if !logged.is_empty() {
            following.sidecar.log.await_line(&["cannot follow the decisions of CrowdSec", logged]);
        }
        assert!(following.sidecar.terminate(), "{name}");
    }
}

/// Returns an answer with these bans, each as address, id and duration, and these ended ones.
fn decisions(new: &[(&str, u64, &str)], deleted: &[(&str, u64, &str)]) -> String {
    let list = |bans: &[(&str, u64, &str)]| {
        let ban = |(value, id, duration): &(&str, u64, &str)| json!({"duration": duration, "id": id, "origin": "CAPI", "scenario": "s", "scope": "Ip", "type": "ban", "value": value});
        bans.iter().map(ban).collect::<Vec<_>>()
    };
    json!({ "new": list(new), "deleted": list(deleted) }).to_string()
}

/// A follower of a server whose answer a test replaces. Returns also the number of requests for all decisions.
fn scripted(first: String) -> (Following, Arc<Mutex<String>>, Fake) {
    let body = Arc::new(Mutex::new(first));
    let sent = Arc::clone(&body);
    let fake = Fake::start(move |_, stream| answer(stream, &sent.lock()));
    let following = Following::start(&fake.url());
    (following, body, fake)
}

/// Neither an answer without a list nor one with a damaged decision ends a ban, until a whole answer does.
#[test]
fn wrong_answer_lifts_no_block() {
    let bans = [("192.0.2.1", 1, "4h"), ("192.0.2.2", 2, "4h")];
    let ended = decisions(&[("192.0.2.2", 3, "1s"), ("192.0.2.3", 4, "4h")], &[("192.0.2.1", 1, "-1m")]);
    let wrong = r#"{"id":9,"value":5}"#;
    for damaged in [
        "{}".to_owned(),
        r#"{"message":"database is locked"}"#.to_owned(),
        r#"{"new":[{"error":"x"}],"deleted":null}"#.to_owned(),
        ended.replace("[{", &format!("[{wrong},{{")),
        ended.replace("}]", &format!("}},{wrong}]")),
    ] {
        let (following, body, _fake) = scripted(decisions(&bans, &[]));
        until(|| !following.is_allowed("ip=192.0.2.1"));
        *body.lock() = damaged.clone();
        // The second of these answers is to a request for all decisions.
        following.sidecar.log.await_count(2, "cannot follow the decisions of CrowdSec");
        if damaged.contains(wrong) {
            until(|| !following.is_allowed("ip=192.0.2.3"));
            std::thread::sleep(Duration::from_secs(2));
        }
        for (address, _, _) in bans {
            assert!(!following.is_allowed(&format!("ip={address}")), "{damaged}");
        }
        *body.lock() = ended.clone();
        until(|| following.is_allowed("ip=192.0.2.1"));
    }
}

/// CrowdSec ends its JSON properly after an error of its database.
#[test]
fn list_that_lacks_most_bans_is_confirmed_by_the_next_one() {
    let addresses: Vec<_> = (0..40).map(|n| format!("192.0.2.{n}")).collect();
    let all: Vec<_> = addresses.iter().zip(1..).map(|(address, id)| (address.as_str(), id, "4h")).collect();
    let requests = Arc::new(Mutex::new(0_usize));
    let (seen, whole, part) = (Arc::clone(&requests), decisions(&all, &[]), decisions(&all[..3], &[]));
    let fake = Fake::start(move |_, stream| {
        *seen.lock() += 1;
        // A broken answer makes divvy ask for all decisions again.
        let text = match *seen.lock() {
            1 | 4 => &whole,
            2 | 5 => "{",
            _ => &*part,
        };
        answer(stream, text)
    });
    let following = Following::start(&fake.url());
    let denied = || (0..40).filter(|n| !following.is_allowed(&format!("ip=192.0.2.{n}"))).count();
    following.sidecar.log.await_line(&["lacks 37 of 40 bans", "they stay until the next list lacks them, too"]);
    until(|| *requests.lock() >= 4);
    assert_eq!(denied(), 40, "the next list has them again");
    until(|| denied() == 3);
    assert!(*requests.lock() >= 7, "two lists in a row lacked them");
}

#[test]
fn program_that_is_down_or_restarts_lifts_nothing() {
    let bans = [("192.0.2.1", 1, "4h"), ("192.0.2.2", 2, "4h")];
    let (mut following, body, fake) = scripted(decisions(&bans, &[]));
    until(|| !following.is_allowed("ip=192.0.2.1") && !following.is_allowed("ip=192.0.2.2"));
    let listed = following.command(&["DIVVY.BLOCK", "LIST", "OWNER", "crowdsec"]);
    assert!(listed.contains("ip=192.0.2.1") && listed.contains("ip=192.0.2.2"), "{listed}");
    assert!(following.sidecar.terminate());
    for (address, _, _) in bans {
        assert!(!following.is_allowed(&format!("ip={address}")));
    }
    following.command(&["DIVVY.BLOCK", "SET", "*", "ip=192.0.2.3", "REASON", "by hand"]);
    // CrowdSec's changes in the meantime are differences to divvy's list.
    *body.lock() = decisions(&[("192.0.2.2", 2, "4h"), ("192.0.2.4", 4, "4h")], &[("192.0.2.1", 1, "-1m")]);
    let again = follow(&following.server, &fake.url(), &following.directory, &[]);
    until(|| !following.is_allowed("ip=192.0.2.4"));
    until(|| following.is_allowed("ip=192.0.2.1") || again.log.count("lacks") > 0);
    assert!(!following.is_allowed("ip=192.0.2.2") && !following.is_allowed("ip=192.0.2.3"));
    until(|| following.is_allowed("ip=192.0.2.1"));
    assert_eq!(again.count("removed"), 1.0, "the others are as they were");
}

#[test]
fn blocks_that_divvy_has_lost_are_set_again() {
    let (following, _body, _fake) = scripted(decisions(&[("192.0.2.1", 1, "4h")], &[]));
    until(|| !following.is_allowed("ip=192.0.2.1"));
    let Following { server, sidecar, .. } = following;
    let http = server.http;
    assert!(server.terminate().success());
    sidecar.log.await_line(&["cannot follow the decisions of CrowdSec", "cannot connect"]);
    let rules = RulesFile::ini(RULES);
    let fronts = format!("--listen none --grpc-listen none --resp-listen 127.0.0.1:0 --http-listen {http}");
    let mut command = divvy_with(&format!("serve {} --store memory {fronts}", rules.path()));
    let _restarted = Killed(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let is_denied = || {
        let hit = r#"{"operation":{"ip":"192.0.2.1"}}"#;
        std::net::TcpStream::connect(http).is_ok() && HttpClient::connect(http).post("/v1/hit", hit).status == 429
    };
    until(is_denied);
}

/// CrowdSec's community list has tens of thousands.
#[test]
#[cfg_attr(not(feature = "rocksdb"), ignore = "needs the embedded store")]
fn hundred_thousand_bans_are_in_force_within_seconds() {
    const COUNT: u32 = 100_000;
    let address = |number: u32| std::net::Ipv4Addr::from_bits(0x0a00_0000 + number).to_string();
    let all = |count| {
        (1..=count).map(|number| format!(r#"{{"duration":"4h","id":{number},"origin":"CAPI","scenario":"http:scan","scope":"Ip","type":"ban","value":"{}"}}"#, address(number))).collect::<Vec<_>>().join(",")
    };
    let body = format!(r#"{{"new":[{}],"deleted":null}}"#, all(COUNT));
    let fake = Fake::start(move |line, stream| {
        answer(stream, if line.contains("startup=true") { &body } else { r#"{"new":null,"deleted":null}"# })
    });
    let data = tempfile::tempdir().unwrap();
    let server = Server::serving(RULES, &["--data-dir", data.path().to_str().unwrap(), "--durability", "sync"]);
    let begun = Instant::now();
    let sidecar = follow(&server, &fake.url(), &data, &[]);
    until(|| sidecar.count("set") == f64::from(COUNT));
    let seconds = begun.elapsed().as_secs();
    // A debug build takes ten times as long.
    assert!(seconds < if cfg!(debug_assertions) { 100 } else { 20 }, "{seconds} s");
    let bouncer = || request(sidecar.address, "GET /v1/decisions/stream?startup=true HTTP/1.0\r\n\r\n").body;
    assert_eq!(bouncer().matches("\"ban\"").count(), COUNT as usize);
}
