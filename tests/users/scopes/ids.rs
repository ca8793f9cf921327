//! Reservation ids that clients made up, and ids of another server, under every scope and on every front.

use base64_simd::URL_SAFE_NO_PAD;
use bytes::Bytes;
use divvy::protocol::envoy::messages::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use divvy::protocol::envoy::messages::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use divvy::protocol::envoy::messages::kuadrant::service::ratelimit::v1::CommitRequest;
use divvy::protocol::rpc::Rpc;

use super::{basic, fill, guarded, state, users};
use crate::support::encode;
use crate::support::http::{HttpClient, encode as encode_http};
use crate::users::http2::{Http2Client, call};

/// Users with all categories. The last one has nothing in scope.
const USERS: [&str; 4] = ["all", "a", "ann", "nothing"];
const UNKNOWN: &str = "unknown reservation id";

/// Returns the id with one bit flipped, in each byte.
fn flipped(id: &str) -> Vec<String> {
    let bytes = URL_SAFE_NO_PAD.decode_to_vec(id).unwrap();
    let flip = |index: usize| {
        let mut bytes = bytes.clone();
        bytes[index] ^= 1 << (index % 8);
        URL_SAFE_NO_PAD.encode_to_string(bytes)
    };
    (0..bytes.len()).map(flip).collect()
}

/// Returns a commit without credits of these descriptors, which are in scope of the users `all` and `a`.
fn commit(user: &str, id: &str) -> axum::http::Request<Bytes> {
    let entry = |key: &'static str, value: &'static str| Entry { key: key.into(), value: value.into() };
    let entries = vec![entry("api", "a"), entry("user", "bob")];
    let message = CommitRequest {
        domain: "x".into(),
        descriptors: vec![RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }],
        reservation_id: Bytes::copy_from_slice(id.as_bytes()),
        actual_amount: 0,
    };
    call(Rpc::KuadrantCommit.path(), &basic(user), &message)
}

#[test]
fn forged_and_foreign_ids_are_unknown_under_every_scope() {
    let (_rules, guarded) = guarded(&users());
    let (_other_rules, other) = super::guarded(&users());
    let ids = fill(&guarded);
    let mut all = guarded.resp("all");
    let reserved = all.command("DIVVY.RESERVE api=a user=bob AMOUNT 5 TTL 60");
    let of_a = reserved.trim_end_matches(']').rsplit(' ').next().unwrap().to_owned();
    let foreign = fill(&other);
    let unknown = [flipped(&ids.open), flipped(&of_a), vec![foreign.open, foreign.released]].concat();
    assert!(unknown.len() > 60, "{unknown:?}");
    let before = state(&guarded);
    let mut http = HttpClient::connect(guarded.server.http);
    let grpc = Http2Client::connect(guarded.server.grpc);
    for user in USERS {
        let mut resp = guarded.resp(user);
        let authorization = basic(user);
        let headers = [("authorization", authorization.as_str()), ("content-type", "application/json")];
        for id in &unknown {
            for words in [
                &[&b"DIVVY.COMMIT"[..], id.as_bytes(), b"COST", b"1"][..],
                &[b"DIVVY.RENEW", id.as_bytes(), b"TTL", b"9"],
                &[b"DIVVY.RELEASE", id.as_bytes()],
            ] {
                resp.send(&encode(words));
                let reply = resp.read_reply();
                assert!(reply.starts_with("-ERR") && reply.contains(UNKNOWN), "{user}: {id}: {reply}");
            }
            let target = format!("/v1/reservations/{id}");
            for (method, target, body) in [
                ("POST", format!("{target}/commit"), r#"{"cost":1}"#),
                ("POST", format!("{target}/renew"), r#"{"ttl":9}"#),
                ("DELETE", target, ""),
            ] {
                http.send(&encode_http(method, &target, &headers, body.as_bytes()));
                let response = http.read_response();
                assert!(response.status == 404 && response.body.contains(UNKNOWN), "{user}: {target}: {response:?}");
            }
        }
        // Over gRPC, a commit of an unknown reservation charges the descriptors, which must be in scope.
        let expected = if ["all", "a"].contains(&user) { "0" } else { "7" };
        for answer in grpc.send_all(unknown.iter().map(|id| commit(user, id)).collect()) {
            assert_eq!(answer.grpc_status.as_deref(), Some(expected), "{user}: {answer:?}");
        }
    }
    assert_eq!(state(&guarded), before);
    for id in [&ids.open, &of_a] {
        assert!(all.command(&format!("DIVVY.COMMIT {id} COST 1")).ends_with(" settled]"), "the real ones are open");
    }
}
