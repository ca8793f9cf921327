//! The metrics in /metrics.

use std::net::SocketAddr;

use super::{Server, http};

/// The text of a scrape.
#[derive(Debug)]
pub struct Samples(pub String);

/// Returns the number of the sample with this name and these labels, as they are written.
pub fn number(server: &Server, sample: &str) -> u64 {
    let body = http::get(server.http, "/metrics").body;
    number_in(&body, sample).unwrap_or_else(|| panic!("no {sample} in:\n{body}"))
}

pub fn number_in(metrics: &str, sample: &str) -> Option<u64> {
    let number = metrics.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '))?;
    number.parse::<f64>().ok().map(|number| number as u64)
}

pub fn scrape(address: SocketAddr) -> Samples {
    Samples(http::get(address, "/metrics").body)
}

impl Samples {
    /// Returns the values of the samples with this name whose labels include these.
    pub fn values(&self, name: &str, labels: &[(&str, &str)]) -> Vec<f64> {
        let value = |line: &str| {
            let (own_labels, value) = line.strip_prefix(name)?.rsplit_once(' ')?;
            let has = |(key, value): &(&str, &str)| {
                let label = format!("{key}=\"{value}\"");
                own_labels.split(['{', ',', '}']).any(|own| own == label)
            };
            let is_one = own_labels.is_empty() || own_labels.starts_with('{');
            (is_one && labels.iter().all(has)).then(|| value.parse().unwrap())
        };
        self.0.lines().filter_map(value).collect()
    }

    /// Returns the value of the only such sample.
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let values = self.values(name, labels);
        assert_eq!(values.len(), 1, "{name} {labels:?}");
        values[0]
    }

    pub fn sum(&self, name: &str) -> f64 {
        self.values(name, &[]).iter().sum()
    }
}
