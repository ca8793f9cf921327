//! Concurrency limits: leases over RESP, HTTP, the line protocol and gRPC, on every store.

mod envoy;
mod kills;

use serde_json::{Value, json};

use crate::support::grpc::{Caller, descriptors_request};
use crate::support::http::HttpClient;
use crate::support::redis::{RedisServer, until};
use crate::support::{LineClient, RespClient, RulesFile, Server, stores};

const RULES: &str = "
[api=reports user=* request_id=*]
creditLimit = 2
resetSeconds = 600
algorithm = concurrency
actorField = user
holdField = request_id
label = reports

[api=export user=*]
creditLimit = 2
resetSeconds = 600
algorithm = concurrency
actorField = user
label = exports

[default]
creditLimit = 0
resetSeconds = 0
";

/// Runs the test on a server for each store.
fn on_each_store(test: impl Fn(&Server)) {
    stores::on_each_store(&RulesFile::ini(RULES), test);
}

/// Returns the words of a reply to `DIVVY.RESERVE`.
fn reserve(client: &mut RespClient, words: &str) -> Vec<String> {
    let reply = client.command(&format!("DIVVY.RESERVE {words}"));
    reply.trim_matches(['[', ']']).split(' ').map(str::to_owned).collect()
}

#[test]
fn leases_are_taken_kept_and_freed_over_resp() {
    on_each_store(|server| {
        let mut client = RespClient::connect(server.resp);
        let one = reserve(&mut client, "api=export user=a AMOUNT 1");
        assert_eq!(one[..2], ["1", "1"]);
        let reset: u64 = one[2].parse().unwrap();
        assert!((1..=620).contains(&reset), "until the first one ends by itself: {reset}");
        let other = reserve(&mut client, "api=export user=a AMOUNT 1 TTL 5 ID other");
        assert_eq!(other[..2], ["1", "0"], "its TTL is the rule's");
        assert_eq!(reserve(&mut client, "api=export user=a AMOUNT 1 ID other"), other, "the same lease");
        let denied = reserve(&mut client, "api=export user=a AMOUNT 1");
        assert_eq!((&*denied[0], &*denied[1], &*denied[3]), ("0", "0", "nil"));
        assert_eq!(reserve(&mut client, "api=export user=b AMOUNT 1")[..2], ["1", "1"], "another user's");
        let lasts: u64 = client.command(&format!("DIVVY.RENEW {}", other[3])).parse().unwrap();
        assert!((600..=620).contains(&lasts), "{lasts}");
        assert!(client.command("DIVVY.PEEK api=export user=a").starts_with("[0 0 "));
        assert_eq!(client.command(&format!("DIVVY.RELEASE {}", one[3])), "1");
        assert_eq!(client.command(&format!("DIVVY.RELEASE {}", one[3])), "0");
        assert!(client.command("DIVVY.PEEK api=export user=a").starts_with("[1 1 "));
        assert_eq!(client.command(&format!("DIVVY.COMMIT {} COST 7", other[3])), "[2 0 settled]");
        assert_eq!(client.command("DIVVY.RESET api=export user=b"), "1");
        assert!(client.command("DIVVY.PEEK api=export user=b").starts_with("[1 2 "));
    });
}

#[test]
fn id_of_a_predecessor_frees_nothing() {
    on_each_store(|server| {
        let (mut resp, mut http) = (RespClient::connect(server.resp), HttpClient::connect(server.http));
        let take = |resp: &mut RespClient| reserve(resp, "api=export user=job AMOUNT 1 ID job-17")[3].clone();
        let first = take(&mut resp);
        assert_eq!(take(&mut resp), first, "a retry");
        assert_eq!(resp.command(&format!("DIVVY.RELEASE {first}")), "1");
        let second = take(&mut resp);
        assert_ne!(first, second);
        assert_eq!(resp.command(&format!("DIVVY.RELEASE {first}")), "0");
        assert_eq!(resp.command(&format!("DIVVY.RENEW {first}")), "0");
        assert_eq!(http.delete(&format!("/v1/reservations/{first}")).json()["released"], false);
        assert!(resp.command(&format!("DIVVY.COMMIT {first} COST 1")).ends_with(" late]"));
        assert!(resp.command("DIVVY.PEEK api=export user=job").starts_with("[1 1 "), "the successor's lease is taken");
        assert_eq!(resp.command(&format!("DIVVY.RELEASE {second}")), "1");
        assert!(resp.command("DIVVY.PEEK api=export user=job").starts_with("[1 2 "));
    });
}

#[test]
fn hit_is_an_error_that_names_the_right_command() {
    on_each_store(|server| {
        let mut line = LineClient::connect(server.line);
        line.send(b"HIT api=export user=a\n");
        let answer = line.read_line();
        assert!(answer.starts_with("ERR ") && answer.contains("DIVVY.RESERVE"), "{answer}");
        let mut client = RespClient::connect(server.resp);
        assert!(client.command("DIVVY.HIT api=export user=a COST 0").starts_with("[1 2 0"), "a look");
        for command in ["DIVVY.HIT api=export user=a", "DIVVY.HIT api=export user=a COST 2"] {
            let answer = client.command(command);
            assert!(answer.starts_with("-ERR the rule [api=export user=*] limits concurrency"), "{answer}");
        }
        assert!(client.command("DIVVY.CHARGE api=export user=a COST 1").contains("counts no costs"));
        let mut http = HttpClient::connect(server.http);
        let hit = http.post("/v1/hit", r#"{"operation": {"api": "export", "user": "a"}}"#);
        assert_eq!(hit.status, 409, "{}", hit.body);
        assert!(hit.json()["detail"].as_str().unwrap().contains("POST /v1/reservations"), "{}", hit.body);
        assert!(client.command("DIVVY.PEEK api=export user=a").starts_with("[1 2 0"), "nothing was taken");
    });
}

#[test]
fn leases_over_http_have_their_unit_in_the_policy() {
    on_each_store(|server| {
        let mut http = HttpClient::connect(server.http);
        let body = json!({ "operation": { "api": "export", "user": "a" }, "amount": 1 });
        let made = http.post("/v1/reservations", &body.to_string());
        assert_eq!(made.status, 201, "{}", made.body);
        assert_eq!(made.header("ratelimit-policy"), Some("\"exports\";q=2;qu=\"concurrent-requests\""));
        assert!(made.header("ratelimit").unwrap().starts_with("\"exports\";r=1;t="));
        let made = made.json();
        assert!((600..=620).contains(&made["expiresIn"].as_u64().unwrap()), "{made}");
        let path = format!("/v1/reservations/{}", made["id"].as_str().unwrap());
        assert_eq!(http.post("/v1/reservations", &body.to_string()).status, 201);
        let denied = http.post("/v1/reservations", &body.to_string());
        assert_eq!((denied.status, denied.header("retry-after").is_some()), (429, true), "{}", denied.head);
        let renewed = http.post(&format!("{path}/renew"), "{}");
        assert!((600..=620).contains(&renewed.json()["expiresIn"].as_u64().unwrap()), "{}", renewed.body);
        assert_eq!(http.delete(&path).json(), json!({ "released": true }));
        assert_eq!(http.post("/v1/reservations", &body.to_string()).status, 201);
        let listed = http.get("/v1/counters?rule=exports", &[]).json();
        assert_eq!(listed["counters"][0]["remaining"], 0, "{listed}");
    });
}

/// Returns a gateway's message that this request of the user begins or ends.
fn request(user: &str, id: &str, is_over: bool) -> Value {
    let mut request = descriptors_request(&[&format!("api=reports user={user} request_id={id}")]);
    request["descriptors"][0]["is_negative_hits"] = json!(is_over);
    request
}

#[test]
fn gateway_holds_a_lease_for_each_of_its_requests() {
    on_each_store(|server| {
        let mut gateway = Caller::new(server);
        let mut ask = |id: &str, is_over| {
            let answer = gateway.should_rate_limit(&request("a", id, is_over));
            let status = &answer["statuses"][0];
            (status["code"].as_str().unwrap().to_owned(), status["limit_remaining"].as_u64().unwrap_or(0))
        };
        let [ok, over] = ["OK", "OVER_LIMIT"].map(str::to_owned);
        assert_eq!([ask("1", false), ask("2", false)], [(ok.clone(), 1), (ok.clone(), 0)]);
        assert_eq!(
            [ask("3", false), ask("3", true)],
            [(over.clone(), 0), (ok.clone(), 0)],
            "a denied request holds no lease"
        );
        assert_eq!([ask("1", false), ask("1", true)], [(ok.clone(), 0), (ok.clone(), 1)], "it was asked for twice");
        assert_eq!([ask("1", true), ask("4", false), ask("5", false)], [(ok.clone(), 1), (ok, 0), (over, 0)]);
        let answer = gateway.refused(&descriptors_request(&["api=export user=a"]));
        assert!(answer.starts_with("INVALID_ARGUMENT") && answer.contains("holdField"), "{answer}");
        let answer = gateway.refused(&request("a", "", false));
        assert!(answer.starts_with("INVALID_ARGUMENT") && answer.contains("request_id"), "{answer}");
    });
}

#[test]
fn no_policy_grants_leases_while_the_store_fails() {
    let rules = RulesFile::ini(RULES);
    let redis = RedisServer::start();
    let server =
        Server::start(&[rules.path(), "--store", "redis", "--redis-url", &redis.url(), "--on-store-error", "allow"]);
    let mut client = RespClient::connect(server.resp);
    assert_eq!(reserve(&mut client, "api=export user=a AMOUNT 1")[0], "1");
    drop(redis);
    let answer = client.command("DIVVY.RESERVE api=export user=a AMOUNT 1");
    assert!(answer.starts_with('-'), "{answer}");
    let mut gateway = Caller::new(&server);
    for is_over in [false, true] {
        let answer = gateway.refused(&request("a", "1", is_over));
        assert!(answer.starts_with("UNAVAILABLE"), "{answer}");
    }
}

/// A call has one status for all of its descriptors.
#[test]
fn gateway_request_with_an_error_holds_nothing() {
    on_each_store(|server| {
        let mut gateway = Caller::new(server);
        gateway.should_rate_limit(&request("a", "x", false));
        let mut both = descriptors_request(&["api=reports user=b request_id=y", "api=reports user=a request_id=x"]);
        both["descriptors"][1]["hits_addend"] = json!("2");
        let answer = gateway.refused(&both);
        assert!(answer.starts_with("INVALID_ARGUMENT") && answer.contains("with another amount"), "{answer}");
        let mut client = RespClient::connect(server.resp);
        let mut peek =
            |user: &str| client.command(&format!("DIVVY.PEEK domain=edge api=reports user={user} request_id=p"));
        until(|| peek("b").starts_with("[1 2 "));
        assert!(peek("a").starts_with("[1 1 "), "the one that was held before");
    });
}

#[test]
fn kuadrants_service_grants_leases() {
    on_each_store(|server| {
        const SERVICE: &str = "kuadrant.service.ratelimit.v1.RateLimitService";
        let mut caller = Caller::generated(server, "kuadrantrls.proto");
        let mut reserve = |amount: u64| {
            let mut request = descriptors_request(&["api=export user=k"]);
            request["amount"] = json!(amount.to_string());
            let answer = caller.call(&format!("{SERVICE}/Reserve"), &request);
            (
                answer["code"].as_str().unwrap().to_owned(),
                answer["reservation_id"].as_str().unwrap_or_default().to_owned(),
            )
        };
        let ok = |id: &str| ("OK".to_owned(), id.to_owned());
        assert_eq!(reserve(0), ok(""), "a look");
        let (_, id) = reserve(2);
        assert_eq!(reserve(0).0, "OVER_LIMIT");
        assert_eq!(reserve(1).0, "OVER_LIMIT");
        let mut request = descriptors_request(&["api=export user=k"]);
        (request["reservation_id"], request["actual_amount"]) = (json!(id), json!("700"));
        assert_eq!(caller.call(&format!("{SERVICE}/Commit"), &request)["reservation_released"], true);
        let mut client = RespClient::connect(server.resp);
        assert!(client.command("DIVVY.PEEK domain=edge api=export user=k").starts_with("[1 2 "));
    });
}
