//! A management server of xDS in Python, which sends what a test says.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use divvy::config::Report;
use divvy::config::ratelimit::model::{Limit, Rate};
use divvy::metrics::Metrics;
use divvy::server::xds::{LoadedDomains, XdsClient, XdsSettings};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;

use super::{Answering, Certificates, PATIENCE};
use crate::clients::python;

/// A running tests/clients/python/ads.py.
pub struct ManagementServer {
    program: Answering,
    pub port: u16,
}

impl ManagementServer {
    /// Starts a server on this port; 0 for a free one.
    pub fn start(port: u16) -> Self {
        Self::start_with(&[&port.to_string()])
    }

    /// Starts a server with the certificate NAME.pem, which accepts only clients with a certificate.
    pub fn with_tls(certificates: &Certificates, name: &str) -> Self {
        let files = [format!("{name}.pem"), format!("{name}.key"), "ca.pem".to_owned()];
        let [certificate, key, ca] = files.map(|file| certificates.path(&file));
        Self::start_with(&["0", &certificate, &key, &ca])
    }

    fn start_with(arguments: &[&str]) -> Self {
        let protos = concat!(env!("CARGO_MANIFEST_DIR"), "/crates/server/proto");
        let mut program = Answering::start(python("ads.py").env("GRPC_VERBOSITY", "NONE").arg(protos).args(arguments));
        let port = program.ask("port").parse().unwrap();
        Self { program, port }
    }

    /// Returns the next request. Panics if the client ended the stream instead.
    pub fn request(&mut self) -> Value {
        let answer = self.program.ask("request");
        serde_json::from_str(&answer).unwrap_or_else(|_| panic!("no request: {answer}"))
    }

    /// Returns version, nonce and problems of the next request.
    pub fn answer(&mut self) -> (String, String, String) {
        let request = self.request();
        let text = |pointer| request.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        (text("/version_info"), text("/response_nonce"), text("/error_detail/message"))
    }

    /// Waits until the client has ended a stream.
    pub fn await_end(&mut self) {
        assert_eq!(self.program.ask("request"), "end");
    }

    pub fn respond(&mut self, version: &str, nonce: &str, resources: &[Value]) {
        let response = json!({ "version_info": version, "nonce": nonce, "resources": resources });
        assert_eq!(self.program.ask(&format!("respond {response}")), "sent");
    }

    /// Ends the stream with this status.
    pub fn end(&mut self, code: u8) {
        assert_eq!(self.program.ask(&format!("end {code}")), "sent");
    }
}

/// Returns a resource whose domain limits the key `k` to this number of requests a minute.
pub fn resource(domain: &str, requests: u32) -> Value {
    let limit = json!({ "unit": "MINUTE", "requests_per_unit": requests });
    json!({ "name": domain, "domain": domain, "descriptors": [{ "key": "k", "rate_limit": limit }] })
}

/// A client whose domains go to the test, and whose pauses last until the test ends them.
pub struct Follower {
    pub client: Arc<XdsClient>,
    applied: Receiver<Vec<(String, u32)>>,
    pauses: Receiver<Duration>,
    permits: Arc<Semaphore>,
    _runtime: Runtime,
}

impl Follower {
    /// Starts a client, which first reads its cache. A configuration with the domain `refused` is refused.
    pub fn start(settings: XdsSettings) -> Self {
        let ((apply, applied), (paused, pauses)) = (channel(), channel());
        let put_in_force = move |loaded: LoadedDomains| {
            let (domains, _) = loaded?;
            if domains.get("refused").is_some() {
                return Err(refusal());
            }
            apply
                .send(
                    domains
                        .iter()
                        .map(|domain| (domain.name.clone(), requests(domain.entries[0].limit.as_ref())))
                        .collect(),
                )
                .unwrap();
            Ok(())
        };
        let client = XdsClient::new(settings, Box::new(put_in_force), &Metrics::new());
        client.start_from_cache();
        let permits = Arc::new(Semaphore::new(0));
        let pause = {
            let permits = Arc::clone(&permits);
            move |pause| {
                let (permits, paused) = (Arc::clone(&permits), paused.clone());
                async move {
                    paused.send(pause).unwrap();
                    permits.acquire().await.unwrap().forget();
                }
            }
        };
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let running = Arc::clone(&client);
        runtime.spawn(async move { running.run(pause).await });
        Self { client, applied, pauses, permits, _runtime: runtime }
    }

    /// Returns the domains that come in force next, with the limits of their first entries.
    pub fn applied(&self) -> Vec<(String, u32)> {
        self.applied.recv_timeout(PATIENCE).unwrap()
    }

    /// Returns the length of the next pause, which lasts until [`Follower::go_on`].
    pub fn pause(&self) -> Duration {
        self.pauses.recv_timeout(PATIENCE).unwrap()
    }

    pub fn go_on(&self) {
        self.permits.add_permits(1);
    }

    pub fn is_configured(&self) -> bool {
        self.client.configured().is_cancelled()
    }
}

fn requests(limit: Option<&Limit>) -> u32 {
    match limit.map(|limit| limit.rate) {
        Some(Rate::PerUnit { requests, .. }) => requests,
        _ => 0,
    }
}

fn refusal() -> Report {
    let mut problems = divvy::config::Problems::new("the holder");
    problems.file_error("it refuses this", "send another");
    problems.into()
}
