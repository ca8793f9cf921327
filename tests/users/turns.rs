//! Users whose requests arrive in one turn of the event loop: each has its own rights, although they share a plan.

use std::fs;

use divvy::server::grpc::Rpc;

use super::scopes::{REFUSED, RULES, users};
use super::{Guarded, basic};
use crate::support::http::{HttpClient, encode};
use crate::support::http2::{Http2Client, Http2Response, descriptor, request};
use crate::support::metrics::number_in;
use crate::support::{LineClient, RespClient, until};

/// Operations, and whether they are in the scope of `ann`, which is its actor, and of `default`, which are labels.
const OPERATIONS: [(&str, bool, bool); 3] =
    [("api=a user=ann", true, true), ("api=a user=bob", false, true), ("api=b user=ann", true, false)];
const USERS: [&str; 2] = ["all", "ann"];

struct Clients {
    line: LineClient,
    resp: [RespClient; 2],
    /// One for each operation of each user.
    http: Vec<HttpClient>,
    /// One for all users.
    grpc: Http2Client,
}

impl Clients {
    fn connect(guarded: &Guarded) -> Self {
        let connect = |_| HttpClient::connect(guarded.server.http);
        let http = (0..USERS.len() * OPERATIONS.len()).map(connect).collect();
        let grpc = Http2Client::connect(guarded.server.grpc);
        Self { line: guarded.line(), resp: USERS.map(|user| guarded.resp(user)), http, grpc }
    }

    /// Sends every operation of every user while the server is stopped, and checks who is refused.
    fn ask(&mut self, guarded: &Guarded) {
        guarded.server.signal("-STOP");
        until(|| are_stopped(guarded.server.pid()));
        for (pairs, ..) in OPERATIONS {
            self.line.send(format!("HIT {pairs}\n").as_bytes());
            self.resp.iter_mut().for_each(|client| client.send(format!("DIVVY.HIT {pairs}\r\n").as_bytes()));
        }
        let each = || OPERATIONS.into_iter().flat_map(|operation| USERS.map(|user| (user, operation)));
        for (client, (user, (pairs, ..))) in self.http.iter_mut().zip(each()) {
            let operation: serde_json::Map<_, _> = pairs
                .split(' ')
                .filter_map(|pair| pair.split_once('='))
                .map(|(key, value)| (key.into(), value.into()))
                .collect();
            let body = serde_json::json!({ "operation": operation }).to_string();
            let headers = [("authorization", &*basic(user)), ("content-type", "application/json")];
            client.send(&encode("POST", "/v1/hit", &headers, body.as_bytes()));
        }
        let calls = each()
            .map(|(user, (pairs, ..))| request(Rpc::EnvoyShouldRateLimit, &basic(user), vec![descriptor(pairs)], ""));
        let calls = self.grpc.send_unread(calls.collect());
        guarded.server.signal("-CONT");

        for (pairs, in_actor, in_label) in OPERATIONS {
            let line = self.line.read_line();
            assert_eq!((line.starts_with("OK "), line.contains(REFUSED)), (in_label, !in_label), "{pairs}: {line}");
            for (client, is_served) in self.resp.iter_mut().zip([true, in_actor]) {
                let reply = client.read_reply();
                assert_eq!((reply.starts_with("[1 "), reply.contains(REFUSED)), (is_served, !is_served), "{reply}");
            }
        }
        let is_served = |(user, (_, in_actor, _)): (&str, (&str, bool, bool))| user == "all" || in_actor;
        for (client, asked) in self.http.iter_mut().zip(each()) {
            let status = client.read_response().status;
            assert_eq!(status, if is_served(asked) { 200 } else { 403 }, "{asked:?}");
        }
        for (Http2Response { grpc_status, .. }, asked) in self.grpc.receive(calls).into_iter().zip(each()) {
            assert_eq!(grpc_status.as_deref(), Some(if is_served(asked) { "0" } else { "7" }), "{asked:?}");
        }
    }
}

/// Returns whether all threads of the process have stopped. Until then, one may take what arrives.
fn are_stopped(pid: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    threads
        .flatten()
        .all(|thread| fs::read_to_string(thread.path().join("stat")).is_ok_and(|stat| stat.contains(") T ")))
}

#[test]
fn users_of_one_turn_keep_their_own_rights() {
    let guarded = Guarded::with_rules(RULES, &users(), &["--open", "none", "--threads", "1"]);
    let mut clients = Clients::connect(&guarded);
    let plans = || number_in(&guarded.http("GET", "/metrics", Some("all")).body, "divvy_batch_requests_count").unwrap();
    let mut hits = 0;
    // Other tasks of the server may run in between.
    let has_shared_turn = (0..20).any(|_| {
        let before = plans();
        clients.ask(&guarded);
        hits += 1;
        plans() - before == 1
    });
    assert!(has_shared_turn);
    // Of each operation, three hits of `all`, three of `ann` and one of `default`, if they were allowed to.
    let mut all = guarded.resp("all");
    for (pairs, in_actor, in_label) in OPERATIONS {
        let taken = hits * (3 + 3 * u64::from(in_actor) + u64::from(in_label));
        assert_eq!(all.left(pairs), 1_000 - taken, "{pairs}");
    }
}
