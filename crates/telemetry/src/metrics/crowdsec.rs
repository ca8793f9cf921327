//! The decisions of a CrowdSec server that divvy follows.

use prometheus::{IntCounter, IntGauge};

use super::registry::Registry;

/// Requests to a CrowdSec server, and their effects.
pub struct Crowdsec {
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

impl Crowdsec {
    pub(super) fn new(registry: &Registry) -> Self {
        let polls = registry.counters("divvy_crowdsec_polls_total", "Requests to CrowdSec, by result.", &["result"]);
        let help = "Decisions of CrowdSec, by their effect.";
        let effects = registry.counters("divvy_crowdsec_decisions_total", help, &["effect"]);
        let help = "1 if the last request to CrowdSec failed. Its blocks stay in force until they end.";
        Self {
            polls: polls.with_label_values(&["ok"]),
            failures: polls.with_label_values(&["failed"]),
            failing: registry.gauge("divvy_crowdsec_failing", help),
            effects: Effect::ALL.map(|effect| effects.with_label_values(&[effect.label()])),
        }
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
        let crowdsec = Crowdsec::new(&Registry::new());
        for (place, effect) in Effect::ALL.into_iter().enumerate() {
            assert_eq!(effect as usize, place);
            crowdsec.count(effect, place as u64);
        }
        assert!(crowdsec.effects.iter().enumerate().all(|(place, counter)| counter.get() == place as u64));
    }
}
