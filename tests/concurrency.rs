//! Concurrency limits: leases over RESP and HTTP on every store, and of the requests of an Envoy.

mod envoy;

use serde_json::json;

use crate::support::{RespClient, on_each_store};

const RULES: &str = "
[api=export user=*] creditLimit=2 resetSeconds=600 algorithm=concurrency actorField=user label=exports
[default] creditLimit=0 resetSeconds=0
";

/// Returns the words of a reply to `DIVVY.RESERVE`.
fn reserve(client: &mut RespClient, words: &str) -> Vec<String> {
    let reply = client.command(&format!("DIVVY.RESERVE {words}"));
    reply.trim_matches(['[', ']']).split(' ').map(str::to_owned).collect()
}

#[test]
fn leases_are_taken_kept_and_freed_over_resp() {
    on_each_store(RULES, |server| {
        let mut client = server.resp();
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
fn leases_over_http_have_their_unit_in_the_policy() {
    on_each_store(RULES, |server| {
        let mut http = server.http();
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
