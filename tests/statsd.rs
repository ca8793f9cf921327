//! Statsd: the metrics received over UDP and TCP add up to the requests that were sent.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, ErrorKind};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use serde_json::json;

use crate::support::grpc::descriptors_request;
use crate::support::{Caller, LineClient, PATIENCE, RespClient, RulesFile, Server, divvy, until};

const RULES: &str = "
[kind=trial] creditLimit=2 resetSeconds=3600 matchPolicy=canary
[path=/status] creditLimit=3 resetSeconds=3600 label=status
[default] creditLimit=0 resetSeconds=0
";

/// The figures in statsd: sums of counters, numbers of timer samples, and the last value of each gauge.
#[derive(Debug, Default)]
struct StatsdFigures(BTreeMap<String, f64>);

impl StatsdFigures {
    fn take(&mut self, line: &str) {
        let (name, rest) = line.split_once(':').unwrap_or_else(|| panic!("no metric: {line:?}"));
        let fields: Vec<_> = rest.split('|').collect();
        let value: f64 = fields[0].parse().unwrap();
        let shown = self.0.entry(name.to_owned()).or_default();
        match fields[1..] {
            ["c"] => *shown += value,
            ["g"] => *shown = value,
            ["ms"] => *shown += 1.0,
            ["ms", rate] => *shown += 1.0 / rate.strip_prefix('@').unwrap().parse::<f64>().unwrap(),
            _ => panic!("no metric: {line:?}"),
        }
    }

    fn get(&self, name: &str) -> f64 {
        self.0.get(name).copied().unwrap_or_default()
    }

    /// Returns whether everything that `send_hits` causes has arrived, and nothing else.
    fn is_complete(&self, prefix: &str) -> bool {
        let expected = [
            ("hit.accepted", 3.0),
            ("hit.accepted.status", 3.0),
            ("hit.rejected", 11.0),
            ("hit.rejected.status", 7.0),
            ("hit.rejected.default", 4.0),
            ("hit.canary-accepted.rule-1", 2.0),
            ("hit.canary-rejected.rule-1", 2.0),
            ("hit.canary-accepted", 2.0),
            ("hit.canary-rejected", 2.0),
            ("error.unknown-command", 3.0),
            ("error.unknown", 1.0),
            ("hit", 14.0),
            ("connections", 2.0),
        ];
        let expected: BTreeMap<_, _> = expected.map(|(name, value)| (format!("{prefix}{name}"), value)).into();
        let rounded: BTreeMap<_, _> = self.0.iter().map(|(name, value)| (name.clone(), value.round())).collect();
        rounded == expected
    }
}

/// Sends hits. The connections stay open as long as the returned clients live.
fn send_hits(server: &Server) -> (LineClient, RespClient) {
    let (mut line, mut resp) = (server.line(), server.resp());
    let text = ["HIT path=/status\n".repeat(10), "HIT kind=trial\n".repeat(3), "NOPE\n".repeat(3)].concat();
    line.send(text.as_bytes());
    text.lines().for_each(|_| assert_ne!(line.read_line(), ""));
    resp.command("DIVVY.HIT kind=trial");
    resp.command("DIVVY.HIT kind");
    (line, resp)
}

fn start(port: u16, flags: &[&str]) -> Server {
    Server::serving(RULES, &[&["--statsd-host", "127.0.0.1", "--statsd-port", &port.to_string()], flags].concat())
}

/// Reads lines until the figures are complete.
fn receive(stream: TcpStream, received: &mut StatsdFigures, prefix: &str) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut lines = BufReader::new(stream).lines();
    until(|| {
        received.take(&lines.next().expect("the connection stays").unwrap());
        received.is_complete(prefix)
    });
}

#[test]
fn counts_add_up_over_udp() {
    let statsd = UdpSocket::bind("127.0.0.1:0").unwrap();
    statsd.set_read_timeout(Some(PATIENCE)).unwrap();
    let server = start(statsd.local_addr().unwrap().port(), &["--statsd-prefix", "api."]);
    let clients = send_hits(&server);
    let (mut received, mut datagram) = (StatsdFigures::default(), [0; 65536]);
    let mut take = |received: &mut StatsdFigures| {
        let length = statsd.recv(&mut datagram)?;
        std::str::from_utf8(&datagram[..length]).unwrap().lines().for_each(|line| received.take(line));
        Ok::<_, std::io::Error>(())
    };
    until(|| {
        take(&mut received).unwrap();
        received.is_complete("api.")
    });
    // The last report is sent when the server ends, regardless of the interval.
    let (mut line, _resp) = clients;
    assert!(!line.hit("path=/status").0);
    assert!(server.terminate().success());
    statsd.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let end = loop {
        if let Err(error) = take(&mut received) {
            break error;
        }
    };
    assert_eq!(end.kind(), ErrorKind::WouldBlock);
    assert_eq!((received.get("api.hit.rejected"), received.get("api.hit.accepted")), (12.0, 3.0));
}

#[test]
fn counts_add_up_over_tcp_with_variables_of_buttons_divvy() {
    let statsd = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = statsd.local_addr().unwrap().port().to_string();
    let rules = RulesFile::ini(RULES);
    let variables = [("STATSD_HOST", "127.0.0.1"), ("STATSD_PORT", port.as_str()), ("STATSD_USE_TCP", "1")];
    let server = Server::start_as(divvy().envs(variables), &[rules.path(), "--store", "memory"]);
    let _clients = send_hits(&server);
    receive(statsd.accept().unwrap().0, &mut StatsdFigures::default(), "");
}

#[test]
fn late_statsd_gets_everything() {
    // The port is bound and released, so nothing listens there.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let server = start(port, &["--statsd-tcp"]);
    let _clients = send_hits(&server);
    let statsd = TcpListener::bind(("127.0.0.1", port)).unwrap();
    receive(statsd.accept().unwrap().0, &mut StatsdFigures::default(), "");
}

const RATELIMIT: &str = "
domain: edge
descriptors:
- {key: user, value_to_metric: true, rate_limit: {unit: day, requests_per_unit: 2}}
- {key: path, rate_limit: {unit: day, requests_per_unit: 10}, descriptors: [
    {key: ip, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 5}}]}
";

/// Starts a server with ratelimit's configuration, and sends it calls.
pub fn ratelimit_calls(flags: &[&str]) -> Server {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("edge.yaml");
    std::fs::write(&path, RATELIMIT).unwrap();
    let server = Server::start(&[&["--ratelimit-config", path.to_str().unwrap(), "--store", "memory"], flags].concat());
    let mut caller = Caller::new(&server);
    for _ in 0..3 {
        caller.should_rate_limit(&descriptors_request(&["user=ann", "path=/a ip=10.0.0.1", "user=bob x=y"]));
    }
    let mut request = descriptors_request(&["path=/b"]);
    request["descriptors"][0]["limit"] = json!({ "requests_per_unit": 1, "unit": "DAY" });
    request["hits_addend"] = json!(4);
    caller.should_rate_limit(&request);
    caller.refused(&descriptors_request(&[]));
    request["domain"] = json!("unknown");
    caller.should_rate_limit(&request);
    server
}

#[test]
fn ratelimits_statistics_have_ratelimits_names() {
    let statsd = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = statsd.local_addr().unwrap().port().to_string();
    let _server = ratelimit_calls(&["--statsd-host", "127.0.0.1", "--statsd-port", &port, "--statsd-tcp"]);
    let expected = [
        ("rate_limit.edge.path_/a.ip_10_0_0_1.total_hits", 3.0),
        ("rate_limit.edge.path_/a.ip_10_0_0_1.within_limit", 3.0),
        ("rate_limit.edge.path_/b.near_limit", 1.0),
        ("rate_limit.edge.path_/b.over_limit", 3.0),
        ("rate_limit.edge.path_/b.total_hits", 4.0),
        ("rate_limit.edge.user_ann.near_limit", 1.0),
        ("rate_limit.edge.user_ann.over_limit", 1.0),
        ("rate_limit.edge.user_ann.total_hits", 3.0),
        ("rate_limit.edge.user_ann.within_limit", 2.0),
        ("rate_limit.unknown.domain_not_found", 1.0),
        ("call.should_rate_limit.service_error", 1.0),
    ];
    let mut expected: BTreeMap<_, _> =
        expected.iter().map(|(name, value)| (format!("ratelimit.service.{name}"), *value)).collect();
    for (name, value) in [("total_requests", 6.0), ("response_time", 6.0)] {
        expected.insert(format!("ratelimit_server.ShouldRateLimit.{name}"), value);
    }
    let stream = statsd.accept().unwrap().0;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let (mut received, mut lines) = (StatsdFigures::default(), BufReader::new(stream).lines());
    until(|| {
        received.take(&lines.next().expect("the connection stays").unwrap());
        let shown =
            received.0.iter().filter(|(name, _)| name.starts_with("ratelimit") && !name.contains("config_load"));
        shown.map(|(name, value)| (name.clone(), value.round())).collect::<BTreeMap<_, _>>() == expected
    });
}
