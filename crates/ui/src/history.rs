//! The hits of each rule in the last minute, second by second. They are sampled once a second, for all pages together.

use std::collections::HashMap;
use std::mem;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

use divvy_core::rules::Rule;
use divvy_core::rules::diff::find_origins;
use divvy_limiter::{ActiveRules, Limiter, RuleCount};

/// Time between two samples.
const INTERVAL: Duration = Duration::from_secs(1);
/// Number of seconds that a history covers.
const SECONDS: usize = 60;
/// Maximum number of rules with a history. Each takes 480 bytes, and an entry of 17 bytes in a table. Rules without hits in
/// the last minutes need none.
const MAX_HISTORIES: usize = 32_768;

/// The last minute of all rules, and the last sample.
pub struct Sampler {
    limiter: Arc<Limiter>,
    history: Mutex<History>,
    pub latest: watch::Sender<Arc<Sample>>,
}

/// Hits and denials of a rule in one second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Second {
    /// All hits, including those that were denied.
    pub hits: u32,
    pub denied: u32,
}

/// The counts of all rules in one second.
#[derive(Debug, Default)]
pub struct Sample {
    /// The rules in force.
    pub policy: Option<Arc<ActiveRules>>,
    /// Number of the sample, from 1.
    pub number: u64,
    /// The counts in the order of the rules.
    seconds: Vec<Second>,
    /// Indexes of the rules that denied a hit in the last minute, in order. Canaries are among them.
    pub denying: Vec<usize>,
}

/// The last minute of all rules.
#[derive(Debug, Default)]
pub struct History {
    policy: Option<Arc<ActiveRules>>,
    /// The counts at the last sample, in the order of the rules.
    counted: Vec<RuleCount>,
    /// A new second replaces the oldest one.
    by_rule: HashMap<usize, Box<[Second; SECONDS]>>,
    /// Position of the last second in each minute.
    position: usize,
    /// Number of samples.
    samples: u64,
}

impl Sampler {
    /// Creates a sampler without samples.
    pub fn new(limiter: Arc<Limiter>) -> Arc<Self> {
        Arc::new(Self { limiter, history: Mutex::default(), latest: watch::Sender::default() })
    }

    /// Samples once a second.
    pub async fn sample_forever(self: &Arc<Self>) {
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let sampler = Arc::clone(self);
            // Reads a counter for each rule, and compares all rules after a reload.
            if let Err(error) = spawn_blocking(move || sampler.sample()).await
                && error.is_panic()
            {
                resume_unwind(error.into_panic());
            }
        }
    }

    fn sample(&self) {
        let policy = self.limiter.active_rules();
        // Only this task changes the history, so the rules are compared without the lock.
        let before = self.history.lock().policy.clone();
        let origins = origins(before.as_ref(), policy.as_ref());
        let mut history = self.history.lock();
        let sample = history.add(policy, origins.as_deref());
        self.latest.send_replace(Arc::new(sample));
    }

    /// Returns the histories, and the sample that they end with.
    pub fn history(&self) -> (MutexGuard<'_, History>, Arc<Sample>) {
        let history = self.history.lock();
        (history, Arc::clone(&self.latest.borrow()))
    }
}

impl Sample {
    /// Returns the number of the set of rules; `None` without rules. See [`RuleSet::number`](divvy_core::rules::RuleSet::number).
    pub fn ruleset(&self) -> Option<u64> {
        self.policy.as_ref().map(|policy| policy.rules().number())
    }

    /// Returns the rules.
    pub fn rules(&self) -> &[Rule] {
        rules(self.policy.as_ref())
    }

    /// Returns the counts of the rule with this index.
    pub fn second(&self, index: usize) -> Second {
        self.seconds.get(index).copied().unwrap_or_default()
    }
}

impl History {
    /// Adds a second under the rules in force. `origins` has, for each of the rules, the index that it had in the last sample;
    /// `None` if the rules are the same. See [`origins`].
    fn add(&mut self, policy: Option<Arc<ActiveRules>>, origins: Option<&[Option<usize>]>) -> Sample {
        if let Some(origins) = origins {
            // A rule that stays keeps its history. Its hits since the last sample, under the rules before, are left out.
            let mut histories = mem::take(&mut self.by_rule);
            let kept = |(index, origin): (usize, &Option<usize>)| Some((index, histories.remove(&(*origin)?)?));
            self.by_rule = origins.iter().enumerate().filter_map(kept).collect();
            self.counted.clear();
            self.policy = policy;
        }
        let seconds = self.count();
        self.record(&seconds);
        self.samples += 1;
        let has_denied = |minute: &[Second]| minute.iter().any(|second| second.denied > 0);
        let denying = self.by_rule.iter().filter(|(_, minute)| has_denied(&minute[..]));
        let mut denying: Vec<_> = denying.map(|(index, _)| *index).collect();
        denying.sort_unstable();
        Sample { policy: self.policy.clone(), number: self.samples, seconds, denying }
    }

    /// Returns the last minute of the rule with this index in the last sample, the oldest second first.
    pub fn of_rule(&self, index: usize) -> Vec<Second> {
        let Some(minute) = self.by_rule.get(&index) else { return vec![Second::default(); SECONDS] };
        let (newer, older) = minute.split_at((self.position + 1) % SECONDS);
        [older, newer].concat()
    }

    /// Returns the counts since the last sample.
    fn count(&mut self) -> Vec<Second> {
        let Some(policy) = &self.policy else { return Vec::new() };
        self.counted.resize_with(policy.rules().rules().len(), RuleCount::default);
        let since = |(last, now): (&mut RuleCount, RuleCount)| {
            let before = mem::replace(last, now);
            let difference = |now: u64, before| u32::try_from(now.saturating_sub(before)).unwrap_or(u32::MAX);
            let denied = difference(now.denied, before.denied);
            Second { hits: difference(now.allowed, before.allowed).saturating_add(denied), denied }
        };
        self.counted.iter_mut().zip(policy.rule_counts()).map(since).collect()
    }

    fn record(&mut self, seconds: &[Second]) {
        self.position = (self.position + 1) % SECONDS;
        for (index, _) in seconds.iter().enumerate().filter(|(_, second)| second.hits > 0) {
            if self.by_rule.len() < MAX_HISTORIES {
                self.by_rule.entry(index).or_insert_with(|| Box::new([Second::default(); SECONDS]));
            }
        }
        for (index, minute) in &mut self.by_rule {
            if let Some(oldest) = minute.get_mut(self.position) {
                *oldest = seconds.get(*index).copied().unwrap_or_default();
            }
        }
        // Once a minute is often enough to forget rules without hits. Each denial is a hit, too.
        if self.position == 0 {
            self.by_rule.retain(|_, minute| minute.iter().any(|second| second.hits > 0));
        }
    }
}

/// Returns, for each rule after a change, the index that it had before; `None` if both are the same rules. Takes
/// milliseconds for thousands of rules.
fn origins(before: Option<&Arc<ActiveRules>>, after: Option<&Arc<ActiveRules>>) -> Option<Vec<Option<usize>>> {
    let number = |policy: &Arc<ActiveRules>| policy.rules().number();
    let is_same = before.map(number) == after.map(number);
    (!is_same).then(|| find_origins(rules(before), rules(after)))
}

fn rules(policy: Option<&Arc<ActiveRules>>) -> &[Rule] {
    policy.map_or(&[], |policy| policy.rules().rules())
}

#[cfg(test)]
mod tests {
    use super::*;
    use divvy_core::config::{self, Format};
    use divvy_limiter::CounterNames;
    use divvy_telemetry::metrics::Metrics;

    fn policy(metrics: &Metrics, headers: &[&str]) -> Arc<ActiveRules> {
        let rule = |header: &&str| format!("[{header}]\ncreditLimit = 9\nresetSeconds = 60\n");
        let text = headers.iter().map(rule).collect::<String>() + "[default]\ncreditLimit = 0\nresetSeconds = 0\n";
        let rules = config::parse(&text, Format::Ini, "rules.ini").unwrap().rules;
        metrics.hits.count_each_rule();
        Arc::new(ActiveRules::new(rules, metrics, CounterNames::Usual))
    }

    fn add(history: &mut History, policy: &Arc<ActiveRules>) -> Sample {
        let origins = origins(history.policy.as_ref(), Some(policy));
        history.add(Some(Arc::clone(policy)), origins.as_deref())
    }

    fn hits(history: &History, rule: usize) -> Vec<u32> {
        history.of_rule(rule).iter().map(|second| second.hits).collect()
    }

    #[test]
    fn seconds_are_in_order_and_old_ones_are_forgotten() {
        let policy = policy(&Metrics::new(), &["a=1", "b=1"]);
        let mut history = History::default();
        add(&mut history, &policy);
        for time in 1..=70 {
            policy.count_for_test(0, true, time);
            policy.count_for_test(0, false, 1);
            let second = add(&mut history, &policy).second(0);
            assert_eq!((u64::from(second.hits), second.denied), (time + 1, 1));
        }
        assert_eq!(hits(&history, 0), (12..=71).collect::<Vec<u32>>());
        assert!(history.of_rule(0).iter().all(|second| second.denied == 1));
        assert_eq!(hits(&history, 1), [0; SECONDS]);
        assert_eq!(history.by_rule.len(), 1, "no history without hits");
        for time in 71..=129 {
            assert_eq!(add(&mut history, &policy).denying, [0], "{time}");
        }
        assert!(add(&mut history, &policy).denying.is_empty());
        for _ in 131..=200 {
            add(&mut history, &policy);
        }
        assert!(history.by_rule.is_empty());
    }

    #[test]
    fn rule_that_stays_keeps_its_history() {
        let metrics = Metrics::new();
        let before = policy(&metrics, &["a=1", "b=1", "c=1"]);
        let mut history = History::default();
        add(&mut history, &before);
        for (rule, hits) in [(0, 10), (1, 20), (2, 30)] {
            before.count_for_test(rule, true, hits);
        }
        add(&mut history, &before);
        let after = policy(&metrics, &["c=1", "new=1", "a=1"]);
        after.count_for_test(0, false, 4);
        let sample = add(&mut history, &after);
        assert_eq!(sample.second(0), Second { hits: 4, denied: 4 });
        assert_eq!((sample.number, sample.denying), (3, vec![0]));
        let last = [0, 1, 2].map(|rule| hits(&history, rule)[SECONDS - 2..].to_vec());
        assert_eq!(last, [[30, 4], [0, 0], [10, 0]]);
    }
}
