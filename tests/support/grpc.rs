//! gRPC clients in Python: one that relies on reflection alone, and one with code generated from a definition.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

use super::Server;

const SHOULD_RATE_LIMIT: &str = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// A running tests/clients/python/grpc_call.py or generated_call.py.
pub struct Caller {
    child: Child,
    calls: ChildStdin,
    replies: BufReader<ChildStdout>,
}

impl Caller {
    pub fn new(server: &Server) -> Self {
        Self::start("grpc_call.py", &[&server.grpc.to_string()])
    }

    /// Starts a client that is generated from a definition in crates/server/proto/, and does not use reflection.
    pub fn generated(server: &Server, definition: &str) -> Self {
        let protos = concat!(env!("CARGO_MANIFEST_DIR"), "/crates/server/proto");
        Self::start("generated_call.py", &[&server.grpc.to_string(), protos, definition])
    }

    fn start(program: &str, args: &[&str]) -> Self {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/python");
        let python = directory.join(".venv/bin/python");
        assert!(python.exists(), "{} is missing; run `make test-setup` first", python.display());
        let mut child = Command::new(python)
            .arg(directory.join(program))
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (calls, replies) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, calls, replies }
    }

    pub fn line(&mut self, line: &str) -> String {
        writeln!(self.calls, "{line}").unwrap();
        let mut reply = String::new();
        self.replies.read_line(&mut reply).unwrap();
        assert!(!reply.is_empty(), "the Python client failed at {line}");
        reply.trim_end().to_owned()
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

impl Drop for Caller {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
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
