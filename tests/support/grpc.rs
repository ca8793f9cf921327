//! gRPC clients in Python: one that relies on reflection alone, and one with code generated from a definition.

use serde_json::{Value, json};

use super::{Answering, Server};
use crate::clients::python;

const SHOULD_RATE_LIMIT: &str = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// A running tests/clients/python/grpc_call.py or generated_call.py.
pub struct Caller(Answering);

impl Caller {
    pub fn new(server: &Server) -> Self {
        Self(Answering::start(python("grpc_call.py").arg(server.grpc.to_string())))
    }

    /// Starts a client that is generated from a definition in crates/server/proto/, and does not use reflection.
    pub fn generated(server: &Server, definition: &str) -> Self {
        let protos = concat!(env!("CARGO_MANIFEST_DIR"), "/crates/server/proto");
        Self(Answering::start(python("generated_call.py").args([&server.grpc.to_string(), protos, definition])))
    }

    pub fn line(&mut self, line: &str) -> String {
        self.0.ask(line)
    }

    pub fn should_rate_limit(&mut self, request: &Value) -> Value {
        self.call(SHOULD_RATE_LIMIT, request)
    }

    /// Returns the error's code and message.
    pub fn refused(&mut self, request: &Value) -> String {
        self.refused_call(SHOULD_RATE_LIMIT, request)
    }

    pub fn call(&mut self, method: &str, request: &Value) -> Value {
        let reply = self.line(&format!("{method} {request}"));
        serde_json::from_str(&reply).unwrap_or_else(|_| panic!("{request}: {reply}"))
    }

    pub fn refused_call(&mut self, method: &str, request: &Value) -> String {
        let reply = self.line(&format!("{method} {request}"));
        reply.strip_prefix("ERROR ").unwrap_or_else(|| panic!("{request}: {reply}")).to_owned()
    }

    pub fn health(&mut self, service: &str) -> String {
        self.line(&format!("grpc.health.v1.Health/Check {}", json!({ "service": service })))
    }
}

/// Returns `a=b c=d` as a descriptor.
pub fn descriptor(pairs: &str) -> Value {
    let entries = pairs.split(' ').map(|pair| pair.split_once('=').unwrap());
    json!({ "entries": entries.map(|(key, value)| json!({ "key": key, "value": value })).collect::<Vec<_>>() })
}

pub fn descriptors_request(descriptors: &[&str]) -> Value {
    json!({ "domain": "edge", "descriptors": descriptors.iter().map(|pairs| descriptor(pairs)).collect::<Vec<_>>() })
}
