//! Scopes of calls over gRPC.

use bytes::Bytes;
use divvy::protocol::envoy::messages::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use divvy::protocol::envoy::messages::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use divvy::protocol::envoy::messages::envoy::service::ratelimit::v3::RateLimitRequest;
use divvy::protocol::envoy::messages::envoy::r#type::v3::RateLimitUnit;
use divvy::protocol::envoy::messages::kuadrant::service::ratelimit::v1::{CommitRequest, ReserveRequest};
use divvy::protocol::rpc::Rpc;

use super::{KNOWN, REFUSED, UNKNOWN, basic, line};
use crate::support::{RespClient, RulesFile};
use crate::users::Guarded;
use crate::users::http2::{Http2Client, Http2Response, call};

const RULES: &str = "
[domain=shop api=a user=*]
creditLimit = 1000
resetSeconds = 86400
actorField = user
label = a-shop

[domain=shop api=b user=*]
creditLimit = 1000
resetSeconds = 86400
actorField = user
label = b-shop

[default]
creditLimit = 1000
resetSeconds = 86400
";

/// Status of a call that the user may not make.
const PERMISSION_DENIED: &str = "7";

fn descriptor(api: &str, user: &str) -> RateLimitDescriptor {
    let entry = |key: &str, value: &str| Entry {
        key: Bytes::copy_from_slice(key.as_bytes()),
        value: Bytes::copy_from_slice(value.as_bytes()),
    };
    RateLimitDescriptor { entries: vec![entry("api", api), entry("user", user)], ..RateLimitDescriptor::default() }
}

fn limits(descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest { domain: Bytes::from_static(b"shop"), descriptors, ..RateLimitRequest::default() }
}

/// Sends a call of this kind with these descriptors, as this user.
fn ask(client: &Http2Client, rpc: Rpc, user: &str, descriptors: Vec<RateLimitDescriptor>, id: &str) -> Http2Response {
    let (domain, authorization) = (Bytes::from_static(b"shop"), basic(user));
    let request = match rpc {
        Rpc::EnvoyShouldRateLimit | Rpc::KuadrantCheckRateLimit | Rpc::KuadrantReport => {
            call(rpc.path(), &authorization, &limits(descriptors))
        }
        Rpc::KuadrantReserve => {
            let message = ReserveRequest { domain, descriptors, amount: 3, ttl: None };
            call(rpc.path(), &authorization, &message)
        }
        Rpc::KuadrantCommit => {
            let reservation_id = Bytes::copy_from_slice(id.as_bytes());
            let message = CommitRequest { domain, descriptors, reservation_id, actual_amount: 2 };
            call(rpc.path(), &authorization, &message)
        }
    };
    client.send(request)
}

fn guarded(args: &[&str]) -> (RulesFile, Guarded) {
    let users = [("all", "~*"), ("labels", "~label:*"), ("a", "~label:a-*"), ("ann", "~actor:user=ann")];
    let file = users.map(|(name, scope)| line(name, &format!("+@all {scope}"))).concat();
    let rules = RulesFile::ini(RULES);
    let guarded = Guarded::with_rules(rules.path(), &file, &[&["--open", "none"], args].concat());
    (rules, guarded)
}

fn state(client: &mut RespClient) -> String {
    ["DIVVY.COUNTERS a-shop", "DIVVY.COUNTERS b-shop", "DIVVY.COUNTERS default", "DBSIZE"]
        .map(|ask| client.command(ask))
        .join("\n")
        // Without the seconds at the end of each row, which pass.
        .split(']')
        .map(|row| row.trim_end_matches(|byte: char| byte.is_ascii_digit()))
        .collect::<Vec<_>>()
        .join("]")
}

#[test]
fn calls_out_of_scope_are_refused_and_take_nothing() {
    for args in [&[][..], &["--grpc-atomic"]] {
        let (_rules, guarded) = guarded(args);
        let mut all = guarded.resp("all");
        assert!(all.command("DIVVY.HIT domain=shop api=b user=bob").starts_with("[1 "));
        let reserved = all.command("DIVVY.RESERVE domain=shop api=b user=bob AMOUNT 5 TTL 60");
        let id = reserved.trim_end_matches(']').rsplit(' ').next().unwrap();
        let before = state(&mut all);
        let client = Http2Client::connect(guarded.server.grpc);
        for user in ["a", "ann"] {
            for rpc in Rpc::ALL {
                let mut answers = Vec::new();
                for actor in [KNOWN, UNKNOWN] {
                    // The first descriptor is in scope of each of the users.
                    for descriptors in [
                        vec![descriptor("b", actor)],
                        vec![descriptor("a", "ann"), descriptor("b", actor)],
                        vec![descriptor("other", actor)],
                    ] {
                        answers.push(ask(&client, rpc, user, descriptors, ""));
                    }
                }
                if rpc == Rpc::KuadrantCommit {
                    answers.push(ask(&client, rpc, user, vec![descriptor("a", "ann")], id));
                }
                for answer in &answers {
                    assert_eq!(answer.grpc_status.as_deref(), Some(PERMISSION_DENIED), "{user}: {rpc:?}: {answer:?}");
                    assert_eq!(answer, &answers[0], "{user}: {rpc:?}");
                }
                let message = answers[0].grpc_message.as_deref().unwrap().replace("%20", " ");
                assert_eq!(message, REFUSED);
            }
        }
        assert_eq!(state(&mut all), before);
        let answer = ask(&client, Rpc::EnvoyShouldRateLimit, "a", vec![descriptor("a", "bob")], "");
        assert_eq!((answer.status, answer.grpc_status.as_deref()), (200, Some("0")), "{answer:?}");
    }
}

#[test]
fn limits_of_descriptors_need_everything_in_scope() {
    let (_rules, guarded) = guarded(&[]);
    let client = Http2Client::connect(guarded.server.grpc);
    let own = |requests_per_unit| RateLimitDescriptor {
        limit: Some(RateLimitOverride { requests_per_unit, unit: RateLimitUnit::Hour.into() }),
        ..descriptor("a", "ann")
    };
    for limit in [0, 5] {
        for (user, expected) in
            [("all", "0"), ("labels", PERMISSION_DENIED), ("a", PERMISSION_DENIED), ("ann", PERMISSION_DENIED)]
        {
            for descriptors in [vec![own(limit)], vec![descriptor("a", "ann"), own(limit)]] {
                let answer = ask(&client, Rpc::EnvoyShouldRateLimit, user, descriptors, "");
                assert_eq!(answer.grpc_status.as_deref(), Some(expected), "{user} {limit}: {answer:?}");
            }
        }
    }
}
