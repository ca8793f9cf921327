//! Kuadrant's rate limit service, as limitador provides it, called by a Python client with code generated from
//! limitador's definition.

use serde_json::{Value, json};

use crate::support::grpc::descriptor;
use crate::support::{Caller, RedisCluster, RedisServer, RespClient, Server, on_local_stores};

const SERVICE: &str = "kuadrant.service.ratelimit.v1.RateLimitService";

const RULES: &str = "
[domain=llm user=*] creditLimit=10 resetSeconds=2592000 actorField=user label=user
[domain=llm tenant=*] creditLimit=30 resetSeconds=2592000 actorField=tenant label=tenant
[domain=llm key=*] creditLimit=2 resetSeconds=2592000 actorField=key costField=none matchPolicy=and label=requests
[domain=llm key=*] creditLimit=100 resetSeconds=2592000 actorField=key label=tokens
[domain=llm call=*] creditLimit=2 resetSeconds=2592000 costField=none actorField=call
[domain=llm blocked=*] creditLimit=0 resetSeconds=0
[default] creditLimit=1 resetSeconds=0
";

/// A client of limitador's service.
struct Client {
    caller: Caller,
    resp: RespClient,
}

impl Client {
    fn of(server: &Server) -> Self {
        Self { caller: Caller::generated(server, "kuadrantrls.proto"), resp: server.resp() }
    }

    fn call(&mut self, method: &str, request: &Value) -> Value {
        self.caller.call(&format!("{SERVICE}/{method}"), request)
    }

    fn refused(&mut self, method: &str, request: &Value) -> String {
        self.caller.refused_call(&format!("{SERVICE}/{method}"), request)
    }

    fn check(&mut self, descriptors: &[&str]) -> Value {
        self.call("CheckRateLimit", &about(descriptors))["overall_code"].clone()
    }

    fn report(&mut self, descriptors: &[&str], hits_addend: u32) {
        let reply = self.call("Report", &with(about(descriptors), "hits_addend", json!(hits_addend)));
        assert_eq!((&reply["overall_code"], &reply["statuses"]), (&json!("OK"), &json!([])));
    }

    /// Returns the code, and the id, which is empty unless the code is OK.
    fn reserve(&mut self, descriptors: &[&str], amount: u64, ttl: Option<&str>) -> (String, String) {
        let mut request = with(about(descriptors), "amount", json!(amount.to_string()));
        if let Some(ttl) = ttl {
            request["ttl"] = json!(ttl);
        }
        let reply = self.call("Reserve", &request);
        let text = |field: &str| reply[field].as_str().unwrap().to_owned();
        (text("code"), text("reservation_id"))
    }

    /// Returns the id of a reservation that must be admitted.
    fn id(&mut self, descriptors: &[&str], amount: u64) -> String {
        let (code, id) = self.reserve(descriptors, amount, None);
        assert!(code == "OK" && !id.is_empty(), "{descriptors:?}: {code} {id}");
        id
    }

    /// Returns whether a reservation was released.
    fn commit(&mut self, descriptors: &[&str], id: &str, actual_amount: u64) -> bool {
        let request = with(about(descriptors), "reservation_id", json!(id));
        let reply = self.call("Commit", &with(request, "actual_amount", json!(actual_amount.to_string())));
        reply["reservation_released"].as_bool().unwrap()
    }

    /// Returns the credits left in the counter that answers.
    fn left(&mut self, pairs: &str) -> u64 {
        self.resp.left(&format!("domain=llm {pairs}"))
    }

    /// Returns the balance, which is negative if more than the limit was used.
    fn balance(&mut self, pairs: &str) -> i64 {
        self.resp.balance(&format!("domain=llm {pairs}"))
    }
}

fn about(descriptors: &[&str]) -> Value {
    json!({ "domain": "llm", "descriptors": descriptors.iter().map(|pairs| descriptor(pairs)).collect::<Vec<_>>() })
}

fn with(mut request: Value, field: &str, value: Value) -> Value {
    request[field] = value;
    request
}

/// Repeats limitador's own test of the two calls, `reserve_admits_and_commit_releases`, over the network.
#[test]
fn reservation_is_admitted_and_a_commit_releases_it() {
    on_local_stores(RULES, |server| {
        let mut client = Client::of(server);
        let id = client.id(&["user=a"], 6);
        assert_eq!(client.reserve(&["user=a"], 6, None), ("OVER_LIMIT".to_owned(), String::new()), "still held");
        assert!(client.commit(&["user=a"], &id, 2));
        assert_eq!(client.left("user=a"), 8);
        let more = client.id(&["user=a"], 6);
        assert!(client.commit(&["user=a"], &more, 26));
        assert_eq!(client.balance("user=a"), -18, "more than was reserved");
        // A commit under an unknown or an empty id is a report, and a report charges at least 1.
        for (user, id) in [("b", ""), ("c", "never-reserved"), ("d", "%%%"), ("e", &more[1..])] {
            let pairs = format!("user={user}");
            assert!(!client.commit(&[&pairs], id, 3), "{id}");
            client.report(&[&pairs], 0);
            assert_eq!(client.left(&pairs), 6, "{id}");
        }
        // All descriptors or none, and one counter reserves once. An amount of 0 checks, and holds nothing.
        let all: &[&str] = &["user=s", "user=s other=x", "tenant=t", "key=k"];
        let id = client.id(all, 8);
        assert_eq!([client.left("user=s"), client.left("tenant=t")], [2, 22]);
        assert_eq!(client.reserve(all, 3, None).0, "OVER_LIMIT");
        assert_eq!(client.reserve(&["tenant=t", "blocked=x"], 1, None).0, "OVER_LIMIT");
        assert_eq!([client.left("user=s"), client.left("tenant=t")], [2, 22]);
        assert!(client.commit(all, &id, 5) && !client.commit(all, &id, 5));
        assert_eq!([client.left("user=s"), client.left("tenant=t")], [5, 25]);
        assert_eq!(client.reserve(&["user=s", "tenant=t"], 0, None), ("OK".to_owned(), String::new()));
        client.report(&["user=s", "tenant=t", "call=a", "blocked=a", "nobody=knows"], 20);
        assert_eq!(client.reserve(&["user=s", "tenant=t"], 0, None).0, "OVER_LIMIT");
    });
}

#[test]
fn requests_over_a_bound_are_refused() {
    let server = Server::serving(RULES, &[]);
    let mut client = Client::of(&server);
    let error = client.refused("Report", &about(&["user=a"; 17]));
    assert!(error.contains("descriptors has 17 elements, but this service takes at most 16"), "{error}");
    let error = client.refused("Report", &about(&[&format!("user={}", "x".repeat(70_000))]));
    assert!(error.starts_with("OUT_OF_RANGE"), "--max-body: {error}");
    let long: Vec<String> = (0..8).map(|number| format!("user={number}{}", "x".repeat(900))).collect();
    let long: Vec<&str> = long.iter().map(String::as_str).collect();
    let error = client.refused("Reserve", &with(about(&long), "amount", json!("1")));
    assert!(error.starts_with("INVALID_ARGUMENT") && error.contains("characters"), "{error}");
    assert_eq!([client.left(long[0]), client.left("user=a")], [10, 10]);
}

#[test]
fn every_call_is_unavailable_while_the_store_fails_under_any_policy() {
    let mut redis = RedisServer::start();
    let server = Server::serving(RULES, &["--redis-url", &redis.url(), "--on-store-error", "error"]);
    let mut client = Client::of(&server);
    let all: &[&str] = &["user=a"];
    let id = client.id(all, 6);
    redis.kill();
    let reserve = with(about(all), "amount", json!("1"));
    let commit = with(with(about(all), "reservation_id", json!(id)), "actual_amount", json!("1"));
    let unknown = with(about(all), "actual_amount", json!("1"));
    let calls = [
        ("CheckRateLimit", about(all)),
        ("Report", about(all)),
        ("Reserve", reserve),
        ("Commit", commit),
        ("Commit", unknown),
    ];
    for (method, request) in &calls {
        let error = client.refused(method, request);
        assert!(error.starts_with("UNAVAILABLE"), "{method}: {error}");
    }
    let open = Server::serving(RULES, &["--redis-url", &redis.url(), "--on-store-error", "allow"]);
    let mut client = Client::of(&open);
    assert_eq!(client.check(all), "OK");
    for (method, request) in &calls[1..] {
        let error = client.refused(method, request);
        assert!(error.starts_with("UNAVAILABLE"), "{method}: {error}");
    }
}

#[test]
fn joint_reservations_in_a_redis_cluster_need_one_slot() {
    let cluster = RedisCluster::start();
    let rules = RULES.replace("actorField=key", "actorField=domain,key");
    let server = Server::serving(&rules, &["--redis-url", &cluster.urls().join(",")]);
    let mut client = Client::of(&server);
    let id = client.id(&["key=k"], 40);
    let apart = with(about(&["user=a", "tenant=t"]), "amount", json!("4"));
    let error = client.refused("Reserve", &apart);
    assert!(error.starts_with("INVALID_ARGUMENT") && error.contains("slot"), "{error}");
    client.report(&["user=a", "tenant=t"], 4);
    assert_eq!([client.left("user=a"), client.left("tenant=t")], [6, 26], "only the report has taken any");
    assert!(client.commit(&["key=k"], &id, 10));
    assert!(!client.commit(&["user=a", "tenant=t"], "", 1));
    assert_eq!([client.left("user=a"), client.left("tenant=t")], [5, 25]);
}
