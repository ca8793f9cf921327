//! The hits of each rule in the last minute, second by second. They are sampled once a second, for all pages together.

use std::collections::HashMap;
use std::mem;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::health::keep_running;
use divvy_core::clock::NANOS_PER_SECOND;
use divvy_core::rules::Rule;
use divvy_core::rules::diff::find_origins;
use divvy_limiter::{Limiter, Policy, RuleCount};
use divvy_telemetry::metrics::Task;

/// Time between two samples.
const INTERVAL: Duration = Duration::from_secs(1);

/// The last minute of all rules, and the last sample.
pub struct Sampler {
    limiter: Arc<Limiter>,
    history: Mutex<History>,
    latest: watch::Sender<Arc<Sample>>,
}

impl Sampler {
    /// Creates a sampler without samples.
    pub fn new(limiter: Arc<Limiter>) -> Arc<Self> {
        Arc::new(Self { limiter, history: Mutex::default(), latest: watch::Sender::default() })
    }

    /// Samples until `stopping` is cancelled.
    pub async fn run(self: Arc<Self>, stopping: CancellationToken) {
        let metrics = Arc::clone(self.limiter.metrics());
        tokio::select! {
            () = keep_running(Task::Page, &metrics, || self.sample_forever()) => {}
            () = stopping.cancelled() => {}
        }
    }

    async fn sample_forever(self: &Arc<Self>) {
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
        let (policy, time) = (self.limiter.policy(), self.limiter.now().as_nanos() / NANOS_PER_SECOND);
        // Only this task changes the history, so the rules are compared without the lock.
        let before = self.history.lock().policy().cloned();
        let origins = origins(before.as_ref(), policy.as_ref());
        let mut history = self.history.lock();
        let sample = history.add(policy, origins.as_deref(), time);
        self.latest.send_replace(Arc::new(sample));
    }

    /// Returns the samples, beginning with the last one.
    pub fn samples(&self) -> watch::Receiver<Arc<Sample>> {
        let mut samples = self.latest.subscribe();
        samples.mark_changed();
        samples
    }

    /// Returns the last sample with the histories that end with it, of the rules with the indexes that `choose` returns.
    pub fn with_histories<I: IntoIterator<Item = usize>>(
        &self,
        choose: impl FnOnce(&Sample) -> I,
    ) -> (Arc<Sample>, Vec<RuleHistory>) {
        let history = self.history.lock();
        let sample = Arc::clone(&self.latest.borrow());
        let histories = choose(&sample).into_iter().map(|index| history.of_rule(index)).collect();
        (sample, histories)
    }
}

/// Number of seconds that a history covers.
pub const SECONDS: usize = 60;
/// Maximum number of rules with a history. Each takes 488 bytes, and an entry of 17 bytes in a table. Rules without hits in
/// the last minutes need none.
const MAX_HISTORIES: usize = 32_768;

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
    pub policy: Option<Arc<Policy>>,
    /// Number of the sample, from 1.
    pub number: u64,
    /// Unix time in seconds.
    pub time: u64,
    /// The counts in the order of the rules.
    pub seconds: Vec<Second>,
    /// Indexes of the rules that denied a hit in the last minute, in order. Canaries are among them.
    pub denying: Vec<usize>,
}

/// The last minute of all rules.
#[derive(Debug, Default)]
pub struct History {
    policy: Option<Arc<Policy>>,
    /// The counts at the last sample, in the order of the rules.
    counted: Vec<RuleCount>,
    by_rule: HashMap<usize, Box<Minute>>,
    /// Position of the last second in each minute.
    position: usize,
    /// Number of samples.
    samples: u64,
}

/// A rule's last minute. A new second replaces the oldest one.
#[derive(Debug, Clone)]
struct Minute {
    hits: [u32; SECONDS],
    denied: [u32; SECONDS],
    /// Sum of `denied`.
    all_denied: u64,
}

/// A rule's last minute, the oldest second first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleHistory {
    pub hits: Vec<u32>,
    pub denied: Vec<u32>,
}

impl Sample {
    /// Returns the number of the set of rules; `None` without rules. See [`RuleSet::number`](divvy_core::rules::RuleSet::number).
    pub fn ruleset(&self) -> Option<u64> {
        self.policy.as_ref().map(|policy| policy.rules().number())
    }

    /// Returns the counts of the rule with this index.
    pub fn second(&self, index: usize) -> Second {
        self.seconds.get(index).copied().unwrap_or_default()
    }
}

impl History {
    /// Returns the rules of the last sample.
    pub fn policy(&self) -> Option<&Arc<Policy>> {
        self.policy.as_ref()
    }

    /// Adds a second that ends at `time`, under the rules in force. `origins` has, for each of the rules, the index that it
    /// had in the last sample; `None` if the rules are the same. See [`origins`].
    pub fn add(&mut self, policy: Option<Arc<Policy>>, origins: Option<&[Option<usize>]>, time: u64) -> Sample {
        let mut seconds = self.count();
        if let Some(origins) = origins {
            seconds = self.replace_policy(policy, origins, &seconds);
            for (second, since) in seconds.iter_mut().zip(self.count()) {
                second.hits = second.hits.saturating_add(since.hits);
                second.denied = second.denied.saturating_add(since.denied);
            }
        }
        self.record(&seconds);
        self.samples += 1;
        let denying = self.by_rule.iter().filter(|(_, minute)| minute.all_denied > 0);
        let mut denying: Vec<_> = denying.map(|(index, _)| *index).collect();
        denying.sort_unstable();
        Sample { policy: self.policy.clone(), number: self.samples, time, seconds, denying }
    }

    /// Returns the last minute of the rule with this index in the last sample.
    pub fn of_rule(&self, index: usize) -> RuleHistory {
        let minute = self.by_rule.get(&index);
        let in_order = |seconds: &[u32; SECONDS]| {
            let (newer, older) = seconds.split_at((self.position + 1) % SECONDS);
            [older, newer].concat()
        };
        RuleHistory {
            hits: minute.map_or_else(|| vec![0; SECONDS], |minute| in_order(&minute.hits)),
            denied: minute.map_or_else(|| vec![0; SECONDS], |minute| in_order(&minute.denied)),
        }
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

    /// Puts other rules in force. A rule that stays keeps its history, and its counts of this second, which are returned in
    /// the new order.
    fn replace_policy(
        &mut self,
        policy: Option<Arc<Policy>>,
        origins: &[Option<usize>],
        seconds: &[Second],
    ) -> Vec<Second> {
        let mut histories = mem::take(&mut self.by_rule);
        let kept = |(index, origin): (usize, &Option<usize>)| Some((index, histories.remove(&(*origin)?)?));
        self.by_rule = origins.iter().enumerate().filter_map(kept).collect();
        self.counted.clear();
        self.policy = policy;
        let second = |origin: &Option<usize>| origin.and_then(|origin| seconds.get(origin)).copied();
        origins.iter().map(|origin| second(origin).unwrap_or_default()).collect()
    }

    fn record(&mut self, seconds: &[Second]) {
        self.position = (self.position + 1) % SECONDS;
        let position = self.position;
        for minute in self.by_rule.values_mut() {
            minute.set(position, Second::default());
        }
        for (index, second) in seconds.iter().enumerate().filter(|(_, second)| **second != Second::default()) {
            if let Some(minute) = self.by_rule.get_mut(&index) {
                minute.set(position, *second);
            } else if self.by_rule.len() < MAX_HISTORIES {
                let mut minute = Box::new(Minute::EMPTY);
                minute.set(position, *second);
                self.by_rule.insert(index, minute);
            }
        }
        // Once a minute is often enough to forget rules without hits.
        if position == 0 {
            self.by_rule.retain(|_, minute| !minute.is_empty());
        }
    }
}

impl Minute {
    const EMPTY: Self = Self { hits: [0; SECONDS], denied: [0; SECONDS], all_denied: 0 };

    fn set(&mut self, position: usize, Second { hits, denied }: Second) {
        if let (Some(old_hits), Some(old_denied)) = (self.hits.get_mut(position), self.denied.get_mut(position)) {
            *old_hits = hits;
            let before = mem::replace(old_denied, denied);
            self.all_denied = self.all_denied + u64::from(denied) - u64::from(before);
        }
    }

    /// Returns whether there were no hits. Each denial is a hit, too.
    fn is_empty(&self) -> bool {
        self.hits.iter().all(|hits| *hits == 0)
    }
}

/// Returns, for each rule after a change, the index that it had before; `None` if both are the same rules. Takes
/// milliseconds for thousands of rules.
pub fn origins(before: Option<&Arc<Policy>>, after: Option<&Arc<Policy>>) -> Option<Vec<Option<usize>>> {
    let number = |policy: &Arc<Policy>| policy.rules().number();
    let is_same = before.map(number) == after.map(number);
    (!is_same).then(|| find_origins(rules(before), rules(after)))
}

fn rules(policy: Option<&Arc<Policy>>) -> &[Rule] {
    policy.map_or(&[], |policy| policy.rules().rules())
}

#[cfg(test)]
mod tests {
    use super::*;
    use divvy_core::config::{self, Format};
    use divvy_limiter::CounterNames;
    use divvy_telemetry::metrics::Metrics;

    fn policy(metrics: &Metrics, headers: &[&str]) -> Arc<Policy> {
        let rule = |header: &&str| format!("[{header}]\ncreditLimit = 9\nresetSeconds = 60\n");
        let text = headers.iter().map(rule).collect::<String>() + "[default]\ncreditLimit = 0\nresetSeconds = 0\n";
        let rules = config::parse(&text, Format::Ini, "rules.ini").unwrap().rules;
        Arc::new(Policy::new(rules, metrics, CounterNames::Usual))
    }

    fn add(history: &mut History, policy: &Arc<Policy>, time: u64) -> Sample {
        let origins = origins(history.policy(), Some(policy));
        history.add(Some(Arc::clone(policy)), origins.as_deref(), time)
    }

    fn counting() -> Arc<Metrics> {
        let metrics = Metrics::new();
        metrics.hits.count_each_rule();
        metrics
    }

    #[test]
    fn seconds_are_in_order_and_old_ones_are_forgotten() {
        let metrics = counting();
        let policy = policy(&metrics, &["a=1", "b=1"]);
        let mut history = History::default();
        add(&mut history, &policy, 0);
        for time in 1..=70 {
            policy.count_for_test(0, true, time);
            policy.count_for_test(0, false, 1);
            let sample = add(&mut history, &policy, time);
            assert_eq!(sample.second(0).denied, 1);
            assert_eq!(u64::from(sample.second(0).hits), time + 1);
        }
        let of = history.of_rule(0);
        assert_eq!(of.hits, (12..=71).collect::<Vec<u32>>());
        assert_eq!(of.denied, vec![1; SECONDS]);
        assert_eq!(history.of_rule(1).hits, vec![0; SECONDS]);
        assert_eq!(history.by_rule.len(), 1, "no history without hits");
        for time in 71..=129 {
            assert_eq!(add(&mut history, &policy, time).denying, [0], "{time}");
        }
        assert!(add(&mut history, &policy, 130).denying.is_empty());
        for time in 131..=200 {
            add(&mut history, &policy, time);
        }
        assert!(history.by_rule.is_empty());
    }

    #[test]
    fn clock_that_jumps_changes_no_history() {
        let metrics = counting();
        let policy = policy(&metrics, &["a=1"]);
        let mut history = History::default();
        for (number, time) in [(1, 5_000), (2, 5_001), (3, 9), (4, 9), (5, 90_000_000)] {
            let sample = add(&mut history, &policy, time);
            assert_eq!((sample.number, sample.time), (number, time));
            policy.count_for_test(0, true, number);
        }
        assert_eq!(history.of_rule(0).hits[SECONDS - 4..], [1, 2, 3, 4]);
    }

    #[test]
    fn rule_that_stays_keeps_its_history() {
        let metrics = counting();
        let before = policy(&metrics, &["a=1", "b=1", "c=1"]);
        let mut history = History::default();
        add(&mut history, &before, 1);
        for (rule, hits) in [(0, 10), (1, 20), (2, 30)] {
            before.count_for_test(rule, true, hits);
        }
        add(&mut history, &before, 2);
        before.count_for_test(2, false, 3);
        let after = policy(&metrics, &["c=1", "new=1", "a=1"]);
        after.count_for_test(0, false, 4);
        let sample = add(&mut history, &after, 3);
        assert_eq!(sample.second(0), Second { hits: 7, denied: 7 }, "hits before and after the reload");
        assert_eq!((sample.number, sample.denying), (3, vec![0]));
        let last = |rule| history.of_rule(rule).hits[SECONDS - 2..].to_vec();
        assert_eq!([last(0), last(1), last(2)], [vec![30, 7], vec![0, 0], vec![10, 0]]);
    }
}
