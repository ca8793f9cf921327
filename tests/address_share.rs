//! Clients of one address get a share of all reservations and idempotency keys.

use std::net::Ipv4Addr;
use std::path::Path;

use serde_json::json;

use crate::support::grpc::{Caller, descriptor};
use crate::support::http::{HttpClient, encode};
use crate::support::{RespClient, RulesFile, Server, connect_from, metrics};

const RULES: &str = "
[domain=llm user=*]
creditLimit = 100
resetSeconds = 2592000
actorField = user

[job=*]
creditLimit = 100
resetSeconds = 600
algorithm = concurrency

[default]
creditLimit = 0
";
const ONE: Ipv4Addr = Ipv4Addr::LOCALHOST;
const OTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Starts a server on each store. One address may have two records of each kind.
fn servers(rules: &RulesFile, data: &Path) -> Vec<Server> {
    let bounds = ["--max-reservations", "4", "--max-idempotency-keys", "4"];
    let data = data.to_str().unwrap();
    let stores: [&[&str]; 2] = [&["--store", "memory"], &["--data-dir", data]];
    let stores = stores.into_iter().filter(|store| cfg!(feature = "rocksdb") || store[0] == "--store");
    stores.map(|store| Server::start(&[&[rules.path()], store, &bounds].concat())).collect()
}

fn resp(server: &Server, source: Ipv4Addr) -> RespClient {
    RespClient::on(connect_from(source, server.resp))
}

fn http(server: &Server, source: Ipv4Addr) -> HttpClient {
    HttpClient::on(connect_from(source, server.http))
}

fn value(server: &Server, name: &str) -> f64 {
    metrics::scrape(server.http).value(name, &[])
}

fn is_bound(answer: &str) -> bool {
    answer.contains("--max-address-share")
}

fn id_of(reply: &str) -> String {
    reply.trim_matches(['[', ']']).split(' ').nth(3).unwrap_or_else(|| panic!("{reply}")).to_owned()
}

#[test]
fn one_address_leaves_reservations_to_others_over_every_front() {
    let (rules, data) = (RulesFile::ini(RULES), tempfile::tempdir().unwrap());
    for server in servers(&rules, data.path()) {
        let (mut one, mut other) = (resp(&server, ONE), resp(&server, OTHER));
        let reserve = "DIVVY.RESERVE domain=llm user=a AMOUNT 1 TTL 60";
        let first = id_of(&one.command(reserve));
        let second = id_of(&resp(&server, ONE).command("DIVVY.RESERVE job=x AMOUNT 1 ID lease"));
        let refused = one.command(reserve);
        assert!(is_bound(&refused), "{refused}");
        assert!(is_bound(&http(&server, ONE).post("/v1/reservations", &reservation("a")).body));
        let mut gateway = Caller::generated(&server, "kuadrantrls.proto");
        let asked = json!({"domain": "llm", "descriptors": [descriptor("user=a")], "amount": "1"});
        let answer = gateway.refused_call("kuadrant.service.ratelimit.v1.RateLimitService/Reserve", &asked);
        assert!(is_bound(&answer), "{answer}");
        assert_eq!(value(&server, "divvy_reservations_refused_total"), 3.0);
        assert_eq!(value(&server, "divvy_reservations"), 2.0, "a refused request leaves nothing behind");

        let others = id_of(&other.command(reserve));
        assert_eq!(http(&server, OTHER).post("/v1/reservations", &reservation("a")).status, 201);
        assert!(is_bound(&other.command(reserve)));
        // Renewing a lease keeps its share. A share that becomes free returns to the address that had it.
        assert_eq!(id_of(&one.command("DIVVY.RESERVE job=x AMOUNT 1 ID lease")), second);
        assert_eq!(one.command(&format!("DIVVY.RELEASE {others}")), "1");
        assert!(is_bound(&one.command(reserve)));
        id_of(&other.command(reserve));
        assert_eq!(other.command(&format!("DIVVY.RELEASE {first}")), "1");
        id_of(&one.command(reserve));
    }
}

fn reservation(user: &str) -> String {
    json!({"operation": {"domain": "llm", "user": user}, "amount": 1, "ttl": 60}).to_string()
}

#[test]
fn one_address_leaves_idempotency_keys_to_others() {
    let (rules, data) = (RulesFile::ini(RULES), tempfile::tempdir().unwrap());
    for server in servers(&rules, data.path()) {
        let (mut one, mut other) = (resp(&server, ONE), resp(&server, OTHER));
        let hit = |client: &mut RespClient, key: &str| client.command(&format!("DIVVY.HIT domain=llm user=a ID {key}"));
        let first = hit(&mut one, "a");
        assert!(first.starts_with("[1 99 "), "{first}");
        assert!(hit(&mut one, "b").starts_with("[1 98 "));
        assert!(is_bound(&hit(&mut one, "c")));
        let body = json!({"operation": {"domain": "llm", "user": "a"}}).to_string();
        let post = |source, key: &str| {
            let mut client = http(&server, source);
            let headers = [("content-type", "application/json"), ("idempotency-key", key)];
            client.send(&encode("POST", "/v1/hit", &headers, body.as_bytes()));
            client.read_response().body
        };
        assert!(is_bound(&post(ONE, "d")));
        assert_eq!(hit(&mut one, "a"), first, "a remembered request is answered");
        assert_eq!(hit(&mut other, "a"), first, "for every client");
        assert!(one.command("DIVVY.HIT domain=llm user=a").starts_with("[1 97 "), "without a key");
        assert!(post(OTHER, "d").contains("\"remaining\":96"));
        assert!(hit(&mut other, "e").starts_with("[1 95 "));
        assert!(is_bound(&hit(&mut other, "f")));
        assert_eq!(value(&server, "divvy_idempotency_keys"), 4.0);
        assert_eq!(value(&server, "divvy_idempotency_keys_refused_total"), 3.0);
    }
}

/// Records do not contain addresses.
#[test]
#[cfg_attr(not(feature = "rocksdb"), ignore = "needs the embedded store")]
fn after_a_restart_records_count_for_no_address() {
    let (rules, data) = (RulesFile::ini(RULES), tempfile::tempdir().unwrap());
    let serve = |max: &str| {
        Server::start(&[rules.path(), "--data-dir", data.path().to_str().unwrap(), "--max-reservations", max])
    };
    let reserve = |client: &mut RespClient| client.command("DIVVY.RESERVE domain=llm user=a AMOUNT 1 TTL 60");
    let server = serve("4");
    let mut one = resp(&server, ONE);
    let ids = [0, 1].map(|_| id_of(&reserve(&mut one)));
    assert!(is_bound(&reserve(&mut one)));
    server.kill();

    let server = serve("4");
    let mut one = resp(&server, ONE);
    assert_eq!(value(&server, "divvy_reservations"), 2.0);
    let more = [0, 1].map(|_| id_of(&reserve(&mut one)));
    assert!(is_bound(&reserve(&mut one)));
    assert_eq!(one.command(&format!("DIVVY.RELEASE {}", ids[0])), "1");
    assert!(
        is_bound(&reserve(&mut one)),
        "the freed reservation was made before the restart, and counted for no address"
    );
    assert_eq!(one.command(&format!("DIVVY.RELEASE {}", more[0])), "1");
    id_of(&reserve(&mut one));
    assert_eq!(value(&server, "divvy_reservations"), 3.0);
}
