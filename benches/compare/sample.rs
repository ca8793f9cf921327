//! Targets and results of load generators, independent of the generator.

use serde::Deserialize;

/// Connections of every load.
pub const CONNECTIONS: u32 = 50;

#[derive(Debug, Clone)]
pub struct Target {
    pub addr: String,
    pub pid: u32,
    pub protocol: Protocol,
}

#[derive(Debug, Clone, Copy)]
pub enum Protocol {
    Line,
    Resp,
    Http,
    /// Envoy's rate limit service.
    Grpc,
}

/// The figures that a generator reports and that are used here. Times are in microseconds.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct Sample {
    pub requests: u64,
    pub requests_per_second: f64,
    pub denied: u64,
    pub latency_us: Latency,
    pub server: Server,
}

#[derive(Debug, Clone, Copy, Deserialize)]
pub struct Latency {
    pub p50: f64,
    pub p99: f64,
    pub p99_9: f64,
}

#[derive(Debug, Clone, Copy, Deserialize)]
pub struct Server {
    pub cpu_us_per_request: f64,
    pub resident_bytes: u64,
}
