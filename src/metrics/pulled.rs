//! A counter that another room keeps. It is read when the metrics are.

use prometheus::core::{Collector, Desc};
use prometheus::proto;

use super::metric::Metric;

/// A name, what it means, and where to read it.
pub struct Pulled {
    desc: Desc,
    name: &'static str,
    help: &'static str,
    read: fn() -> u64,
}

impl Pulled {
    #[expect(clippy::expect_used, reason = "names are constants, and every test that starts a server makes them all")]
    pub fn new(name: &'static str, help: &'static str, read: fn() -> u64) -> Self {
        let desc = Desc::new(name.into(), help.into(), Vec::new(), Default::default());
        Self { desc: desc.expect("a valid name and help"), name, help, read }
    }
}

impl Collector for Pulled {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.desc]
    }

    fn collect(&self) -> Vec<proto::MetricFamily> {
        vec![Metric::counter(self.name, self.help, (self.read)()).into_family()]
    }
}
