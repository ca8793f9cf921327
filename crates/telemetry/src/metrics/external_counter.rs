//! A counter that another module keeps. It is read at each scrape.

use prometheus::core::{Collector, Desc};
use prometheus::proto;

use super::metric::Metric;

/// The counter's name, its help text, and the function that reads it.
pub struct ExternalCounter {
    desc: Desc,
    name: &'static str,
    help: &'static str,
    read: fn() -> u64,
}

impl ExternalCounter {
    #[expect(clippy::expect_used, reason = "names are constants, and every test that starts a server makes them all")]
    pub fn new(name: &'static str, help: &'static str, read: fn() -> u64) -> Self {
        let desc = Desc::new(name.into(), help.into(), Vec::new(), Default::default());
        Self { desc: desc.expect("a valid name and help"), name, help, read }
    }
}

impl Collector for ExternalCounter {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.desc]
    }

    fn collect(&self) -> Vec<proto::MetricFamily> {
        vec![Metric::counter(self.name, self.help, (self.read)()).into_family()]
    }
}
