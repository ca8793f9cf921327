//! The metrics in /metrics, parsed by Prometheus's own parser.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::{Server, http};

const CLIENTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/python");

/// A sample of a metric.
#[derive(Debug)]
pub struct Sample {
    /// The kind of the family: `counter`, `gauge`, `histogram`.
    pub kind: String,
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

/// All samples of a scrape.
#[derive(Debug)]
pub struct Samples(pub Vec<Sample>);

/// Returns the number of the sample with this name and these labels, as they are written.
pub fn number(server: &Server, sample: &str) -> u64 {
    let body = http::get(server.http, "/metrics").body;
    number_in(&body, sample).unwrap_or_else(|| panic!("no {sample} in:\n{body}"))
}

pub fn number_in(metrics: &str, sample: &str) -> Option<u64> {
    let number = metrics.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '))?;
    number.parse::<f64>().ok().map(|number| number as u64)
}

/// Scrapes and parses the metrics.
pub fn scrape(address: SocketAddr) -> Samples {
    parse(&http::get(address, "/metrics").body)
}

pub fn parse(text: &str) -> Samples {
    let python = Path::new(CLIENTS).join(".venv/bin/python");
    let mut child = Command::new(&python)
        .arg(Path::new(CLIENTS).join("read_metrics.py"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{}: {error}; run `make test-setup` first", python.display()));
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "the parser refused:\n{text}");
    Samples(String::from_utf8(output.stdout).unwrap().lines().map(sample).collect())
}

fn sample(line: &str) -> Sample {
    let (kind, name, labels, value): (String, String, BTreeMap<String, String>, Value) =
        serde_json::from_str(line).unwrap();
    Sample { kind, name, labels, value: value.as_f64().unwrap() }
}

impl Samples {
    /// Returns the values of the samples with this name whose labels include these.
    pub fn values(&self, name: &str, labels: &[(&str, &str)]) -> Vec<f64> {
        let has = |sample: &Sample, (key, value): &(&str, &str)| sample.labels.get(*key).is_some_and(|it| it == value);
        let matching = |sample: &&Sample| sample.name == name && labels.iter().all(|label| has(sample, label));
        self.0.iter().filter(matching).map(|sample| sample.value).collect()
    }

    /// Returns the value of the only such sample.
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let values = self.values(name, labels);
        assert_eq!(values.len(), 1, "{name} {labels:?}");
        values[0]
    }

    /// Returns the kind of the family with this name.
    pub fn kind(&self, name: &str) -> &str {
        let sample = self.0.iter().find(|sample| sample.name == name);
        &sample.unwrap_or_else(|| panic!("there is no {name}")).kind
    }

    pub fn sum(&self, name: &str) -> f64 {
        self.values(name, &[]).iter().sum()
    }
}
