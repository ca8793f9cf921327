//! Networks and lists: addresses compared with Python's `ipaddress`, real gateways, and lists that change under load.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use divvy::rules::{Address, Network};
use serde_json::json;

use crate::gateways::nginx;
use crate::support::{Gateway, Server, application, free_address, http, seed, setting, until};

#[test]
fn addresses_and_networks_are_read_as_by_python() {
    let count: u64 = setting("DIVVY_TEST_ADDRESSES", 20_000);
    let mut python = Command::new("python3")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/python/addresses.py"))
        .args([count.to_string(), seed().to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut lines, mut valid, mut inside) = (0, 0, 0);
    for line in BufReader::new(python.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        let [text, expected, network, is_inside, own] = line.split('\t').collect::<Vec<_>>()[..] else {
            panic!("{line:?}")
        };
        let (address, network) = (Address::parse(text), Network::parse(network).unwrap());
        assert_eq!(address.map_or("-".to_owned(), |address| address.to_string()), expected, "{line}");
        assert_eq!(address.is_some_and(|address| network.contains(address)), is_inside == "1", "{line}");
        if let Some(address) = address {
            let own = Network::parse(own).unwrap();
            assert_eq!(Network::of(address, own.prefix()), own, "{line}");
            valid += 1;
        }
        inside += u64::from(is_inside == "1");
        lines += 1;
    }
    assert!(python.wait().unwrap().success());
    println!("{lines} lines, {valid} addresses, {inside} of them in the network next to them");
    assert_eq!(lines, count);
    assert!(valid > count / 2 && valid < count && inside > count / 20);
}

/// Returns rules that allow two requests from this machine, whose address is in this field, and block it after three denials.
/// They compare no text.
fn rules(operation: &str, field: &str) -> String {
    format!(
        "[{operation}]\nnetworks = {field}: 127.0.0.0/8\ncreditLimit = 2\nper = 1h\nactorField = {field}\n\
         actorPrefix = {field}: 32, 56\nlabel = local\nblockAfter = 3\nblockSeconds = 15m\n\n[default]\ncreditLimit = 0\n"
    )
}

fn divvy_for_checks() -> Server {
    Server::serving(&rules("ip=*", "ip"), &["--deny-status", "403"])
}

/// Sends requests through a gateway. All count for the same actor, and divvy denies the third. Blocks and allows of the
/// address in this field decide, and the rule blocks it at last.
fn check(gateway: &Gateway, server: &Server, denied: u16, operation: &str, field: &str) {
    let mut client = server.resp();
    let mut command = |command: &str, reply: &str| assert_eq!(client.command(command), reply, "{command}");
    let post = || gateway.post("/").status;
    command(&format!("DIVVY.BLOCK SET * {field}=127.0.0.0/8 EX 900"), "OK");
    assert_eq!(post(), denied, "blocked");
    command(&format!("DIVVY.BLOCK DEL * {field}=127.0.0.0/8"), "1");
    assert_eq!([(); 3].map(|()| post()), [200, 200, denied]);
    assert_eq!(server.line().hit(operation), (false, 0, 3600));
    command(&format!("DIVVY.ALLOW SET * {field}=127.0.0.1"), "OK");
    assert_eq!(post(), 200, "allowed");
    command(&format!("DIVVY.ALLOW DEL * {field}=127.0.0.1"), "1");
    assert_eq!(post(), denied);
    until(|| http::get(server.http, "/v1/blocks?rule=local&actor=127.0.0.1").status == 200);
    let (is_allowed, _, reset) = server.line().hit(operation);
    assert!(!is_allowed && (700..=900).contains(&reset), "{reset}");
    assert_eq!(post(), denied, "by the block of the rule");
}

#[test]
fn address_that_nginx_passes_is_matched() {
    for notation in ["$remote_addr", "::ffff:$remote_addr", "$remote_addr:$remote_port", "[64:ff9b::$remote_addr]:1"] {
        let server = divvy_for_checks();
        let header = ("X-Forwarded-For $remote_addr", format!("X-Forwarded-For {notation}"));
        check(&nginx(application(), server.http, &[header]), &server, 429, "ip=127.0.0.1", "ip");
    }
}

#[test]
fn address_that_haproxy_passes_is_matched() {
    for notation in ["%[src]", "%[src]:%[src_port]", "[::ffff:%[src]]:%[src_port]"] {
        let (server, address) = (divvy_for_checks(), free_address());
        let config = format!(
            "defaults\n  mode http\n  timeout connect 60s\n  timeout client 60s\n  timeout server 60s\n\
             frontend edge\n  bind {address}\n  http-request set-header X-Forwarded-For \"{notation}\"\n  \
             http-request set-header X-Original-Method %[method]\n  http-request set-header X-Original-URI %[url]\n  \
             http-request set-path /v1/check\n  default_backend checks\nbackend checks\n  server divvy {}\n",
            server.http
        );
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("haproxy.cfg");
        fs::write(&path, config).unwrap();
        // Debian installs it where only root's PATH leads.
        let program =
            ["/usr/sbin/haproxy", "/usr/local/sbin/haproxy"].into_iter().find(|path| Path::new(path).exists());
        let child = Command::new(program.unwrap_or("haproxy"))
            .args(["-db", "-q", "-f"])
            .arg(&path)
            .spawn()
            .unwrap_or_else(|error| panic!("haproxy: {error}; run `make test-setup` first"));
        check(&Gateway::new(child, address, directory), &server, 403, "ip=127.0.0.1", "ip");
    }
}

#[test]
fn address_that_envoy_passes_is_matched() {
    let server = Server::serving(&rules("domain=edge remote_address=*", "remote_address"), &[]);
    let gateway = crate::full::envoy::start("envoy.yaml", ("8323", server.grpc), application(), &[]);
    check(&gateway, &server, 429, "domain=edge remote_address=[::ffff:127.0.0.1]:80", "remote_address");
}

/// Writes a list as a slow program does: in pieces, with pauses. Its first and last line are the two addresses, if it
/// `has_ends`.
fn write_slowly(path: &Path, has_ends: bool) {
    let mut file = File::create(path).unwrap();
    let ends = if has_ends { ["192.0.2.1\n", "192.0.2.2\n"] } else { ["# first\n", "# last\n"] };
    file.write_all(ends[0].as_bytes()).unwrap();
    for piece in 0..8 {
        let mut text = String::new();
        (0..2_000).for_each(|n| writeln!(text, "10.{piece}.{}.{}", n >> 8, n & 255).unwrap());
        file.write_all(text.as_bytes()).unwrap();
        thread::sleep(Duration::from_millis(100));
    }
    file.write_all(ends[1].as_bytes()).unwrap();
}

#[test]
fn no_request_is_answered_by_half_a_list() {
    let dir = tempfile::tempdir().unwrap();
    let (rules, list) = (dir.path().join("rules.ini"), dir.path().join("blocked.txt"));
    let text = "[ip=*]\nlist = ip: blocked.txt\ncreditLimit = 0\nlabel = blocked\n\n\
        [default]\ncreditLimit = 1\nresetSeconds = 0\n";
    fs::write(&rules, text).unwrap();
    fs::write(&list, "192.0.2.1\n192.0.2.2\n").unwrap();
    let (server, log) = Server::logged(&[rules.to_str().unwrap(), "--store", "memory"]);
    let (is_done, counts) = (AtomicBool::new(false), [const { AtomicUsize::new(0) }; 2]);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut client = server.http();
                let hits = json!({ "hits": [
                    { "operation": { "ip": "192.0.2.1" } },
                    { "operation": { "ip": "[::ffff:192.0.2.2]:80" } },
                ] });
                while !is_done.load(Relaxed) {
                    let answers = client.post("/v1/hits", hits.to_string()).json();
                    let allowed = [0, 1].map(|at| answers["results"][at]["allowed"].as_bool().unwrap());
                    assert_eq!(allowed[0], allowed[1], "{answers}");
                    counts[usize::from(allowed[0])].fetch_add(1, Relaxed);
                }
            });
        }
        for round in 1..=4 {
            write_slowly(&list, round % 2 == 0);
            log.await_count(round, "reloaded; the new rules are in force");
        }
        is_done.store(true, Relaxed);
    });
    assert!(counts.iter().all(|count| count.load(Relaxed) > 10), "{counts:?}");
    assert!(log.text().contains("list from ip: blocked.txt to ip: blocked.txt ("), "{}", log.text());
}
