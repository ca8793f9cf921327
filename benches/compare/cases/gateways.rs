//! What a hit costs through HTTP and gRPC, beside RESP: one counter, one request in flight on each connection.

use prost::Message;

use divvy::protocol::envoy::messages::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use divvy::protocol::envoy::messages::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use divvy::protocol::envoy::messages::envoy::service::ratelimit::v3::RateLimitRequest;

use super::{FEW_RULES, Setting, compare, load, serve};
use crate::divvy::PLENTY;
use crate::h2load::{Ask, Version};
use crate::load::{Generator, Load, Target};
use crate::rounds::Subject;
use crate::table::Table;

/// As long as an actor of the other cases.
const ACTOR: &str = "000000000007";

pub fn run(setting: &Setting, table: &mut Table) -> anyhow::Result<()> {
    let (_home, divvy) = serve(setting, "wal", FEW_RULES, PLENTY)?;
    let subjects = [
        Subject::new("divvy RESP", Load { actors: 1, ..load(divvy.resp(), super::RESP_HIT, 1) }),
        Subject::new("HTTP/1.1 /v1/hit", ask(divvy.http(), json(Version::Http1))),
        Subject::new("HTTP/2 /v1/hit", ask(divvy.http(), json(Version::Http2))),
        Subject::new("gRPC ShouldRateLimit", ask(divvy.grpc(), grpc())),
    ];
    compare("gateways", setting, &subjects, table)?;
    Ok(())
}

fn ask(target: Target, ask: Ask) -> Load {
    Load { generator: Generator::H2load(ask), ..load(target, "", 1) }
}

fn json(version: Version) -> Ask {
    let body = format!(r#"{{"operation":{{"ip":"{ACTOR}"}}}}"#).into_bytes();
    Ask { version, path: "/v1/hit", content_type: "application/json", body }
}

fn grpc() -> Ask {
    let entry = Entry { key: "ip".into(), value: ACTOR.into() };
    let descriptor = RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() };
    let request = RateLimitRequest { domain: "bench".into(), descriptors: vec![descriptor], hits_addend: 0 };
    let message = request.encode_to_vec();
    // gRPC's frame: not compressed, and the message's length.
    let mut body = vec![0];
    body.extend((message.len() as u32).to_be_bytes());
    body.extend(message);
    let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    Ask { version: Version::Http2, path, content_type: "application/grpc", body }
}
