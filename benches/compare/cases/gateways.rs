//! Cost of a hit over HTTP and gRPC compared with RESP: one counter, one request in flight on each connection.

use prost::Message;

use divvy::server::grpc::messages::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use divvy::server::grpc::messages::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use divvy::server::grpc::messages::envoy::service::ratelimit::v3::RateLimitRequest;

use super::{FEW_RULES, Setting, compare, load, serve};
use crate::divvy::PLENTY;
use crate::h2load::{Ask, Version};
use crate::load::{Generator, Load};
use crate::peers::Limitador;
use crate::rounds::Subject;
use crate::sample::Target;
use crate::table::Table;

/// An actor of the same length as in the other cases.
const ACTOR: &str = "000000000007";

pub fn run(setting: &Setting, table: &mut Table) -> anyhow::Result<()> {
    let (_home, divvy) = serve(setting, "wal", FEW_RULES, PLENTY)?;
    let limitador = Limitador::start(&setting.peers, &setting.directory)?;
    let resp = |command| Load { actors: 1, ..load(divvy.resp(), command, 1) };
    let three = [("method", "POST"), ("path", "/v1/search/items"), ("ip", ACTOR)];
    let one = [("ip", ACTOR)];
    let mut subjects = vec![
        Subject::new("divvy RESP", resp(super::RESP_HIT)),
        Subject::new("HTTP/1.1 /v1/hit", ask(divvy.http(), json(Version::Http1, &three))),
        Subject::new("HTTP/2 /v1/hit", ask(divvy.http(), json(Version::Http2, &three))),
        Subject::new("gRPC ShouldRateLimit", ask(divvy.grpc(), grpc(&[&three]))),
        Subject::new("gRPC, five descriptors", ask(divvy.grpc(), grpc(&five_actors().each_ref().map(|of| &of[..])))),
        Subject::new("divvy RESP, one field", resp(super::RESP_HIT_1)),
        Subject::new("HTTP/1.1 /v1/hit, one field", ask(divvy.http(), json(Version::Http1, &one))),
        Subject::new("gRPC ShouldRateLimit, one field", ask(divvy.grpc(), grpc(&[&one]))),
    ];
    if let Some(limitador) = &limitador {
        let check = Ask { path: "/check_and_report", body: limitador_check(), ..json(Version::Http1, &three) };
        subjects.push(Subject::new("limitador, gRPC ShouldRateLimit", ask(limitador.grpc(), grpc(&[&three]))));
        subjects.push(Subject::new("limitador, HTTP/1.1", ask(limitador.http(), check)));
    }
    compare("gateways", setting, &subjects, table)?;
    Ok(())
}

fn ask(target: Target, ask: Ask) -> Load {
    Load { generator: Generator::H2load(ask), ..load(target, "", 1) }
}

fn json(version: Version, pairs: &[(&str, &str)]) -> Ask {
    let operation: serde_json::Map<_, _> =
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).into())).collect();
    let body = serde_json::json!({ "operation": operation }).to_string().into_bytes();
    Ask { version, path: "/v1/hit", content_type: "application/json", body }
}

fn limitador_check() -> Vec<u8> {
    let values = serde_json::json!({ "method": "POST", "path": "/v1/search/items", "ip": ACTOR });
    serde_json::json!({ "namespace": "bench", "values": values, "delta": 1 }).to_string().into_bytes()
}

/// Returns the descriptors of five counters of the same rule.
fn five_actors() -> [[(&'static str, &'static str); 3]; 5] {
    ["000000000001", "000000000002", "000000000003", "000000000004", "000000000005"]
        .map(|actor| [("method", "POST"), ("path", "/v1/search/items"), ("ip", actor)])
}

/// Returns a request with these descriptors.
fn grpc(descriptors: &[&[(&str, &str)]]) -> Ask {
    let entry =
        |(key, value): &(&str, &str)| Entry { key: (*key).to_owned().into(), value: (*value).to_owned().into() };
    let descriptor = |pairs: &&[(&str, &str)]| RateLimitDescriptor {
        entries: pairs.iter().map(entry).collect(),
        ..RateLimitDescriptor::default()
    };
    let descriptors = descriptors.iter().map(descriptor).collect();
    let request = RateLimitRequest { domain: "bench".into(), descriptors, hits_addend: 0 };
    let message = request.encode_to_vec();
    // gRPC's frame: a flag for no compression, and the message's length.
    let mut body = vec![0];
    body.extend((message.len() as u32).to_be_bytes());
    body.extend(message);
    let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    Ask { version: Version::Http2, path, content_type: "application/grpc", body }
}
