//! The metrics of this program.

use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts, Registry, TextEncoder};

/// Requests to a CrowdSec server and their effects, and requests of bouncers.
pub struct Metrics {
    registry: Registry,
    requests: IntCounterVec,
    polls: IntCounter,
    failures: IntCounter,
    failing: IntGauge,
    effects: [IntCounter; Effect::ALL.len()],
}

/// The effect of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// A block was set, or its end was changed.
    Set,
    /// A block was removed.
    Removed,
    /// An operator's block of the same actor was kept.
    Kept,
    /// There was no room for the block.
    Full,
    /// The decision is no ban, or not about an address or a network.
    Ignored,
    /// The decision is malformed.
    Malformed,
}

impl Effect {
    /// All effects, in the order of declaration.
    const ALL: [Self; 6] = [Self::Set, Self::Removed, Self::Kept, Self::Full, Self::Ignored, Self::Malformed];

    fn label(self) -> &'static str {
        match self {
            Self::Set => "set",
            Self::Removed => "removed",
            Self::Kept => "kept",
            Self::Full => "full",
            Self::Ignored => "ignored",
            Self::Malformed => "malformed",
        }
    }
}

impl Metrics {
    /// Registers all metrics.
    ///
    /// # Errors
    /// A name is used twice.
    pub fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let counters = |name, help, label| {
            let counters = IntCounterVec::new(Opts::new(name, help), &[label])?;
            registry.register(Box::new(counters.clone()))?;
            prometheus::Result::Ok(counters)
        };
        let polls = counters("divvy_crowdsec_polls_total", "Requests to CrowdSec and divvy, by result.", "result")?;
        let effects = counters("divvy_crowdsec_decisions_total", "Decisions of CrowdSec, by their effect.", "effect")?;
        let requests = counters("divvy_crowdsec_bouncer_requests_total", "Requests of bouncers, by status.", "status")?;
        let help = "1 if the last request to CrowdSec or divvy failed. Blocks stay in force until they end.";
        let failing = IntGauge::new("divvy_crowdsec_failing", help)?;
        registry.register(Box::new(failing.clone()))?;
        Ok(Self {
            requests,
            polls: polls.with_label_values(&["ok"]),
            failures: polls.with_label_values(&["failed"]),
            failing,
            effects: Effect::ALL.map(|effect| effects.with_label_values(&[effect.label()])),
            registry,
        })
    }

    /// Returns the metrics in Prometheus's text format.
    ///
    /// # Errors
    /// The library's.
    pub fn text(&self) -> prometheus::Result<String> {
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }

    /// Counts a request of a bouncer with this status.
    pub fn answered_bouncer(&self, status: &str) {
        self.requests.with_label_values(&[status]).inc();
    }

    /// Records a request that was answered.
    pub fn answered(&self) {
        self.polls.inc();
        self.failing.set(0);
    }

    /// Records a request that failed.
    pub fn failed(&self) {
        self.failures.inc();
        self.failing.set(1);
    }

    /// Counts decisions with this effect.
    pub fn count(&self, effect: Effect, count: u64) {
        // The counters are in the order of declaration.
        if let Some(counter) = self.effects.get(effect as usize) {
            counter.inc_by(count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_effect_has_its_own_counter() {
        let crowdsec = Metrics::new().unwrap();
        for (place, effect) in Effect::ALL.into_iter().enumerate() {
            assert_eq!(effect as usize, place);
            crowdsec.count(effect, place as u64);
        }
        assert!(crowdsec.effects.iter().enumerate().all(|(place, counter)| counter.get() == place as u64));
    }
}
