//! What is said now and then at most, however often there is reason to.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Lets one of many through in each interval, and counts the others.
#[derive(Debug)]
pub struct Occasionally {
    interval: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    last: Option<Instant>,
    kept_back: u64,
}

impl Occasionally {
    pub fn every(interval: Duration) -> Self {
        Self { interval, state: Mutex::default() }
    }

    /// Whether it is time again; then, how many were kept back since the last time.
    pub fn due(&self) -> Option<u64> {
        self.due_at(Instant::now())
    }

    fn due_at(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock();
        if state.last.is_some_and(|last| now.saturating_duration_since(last) < self.interval) {
            state.kept_back += 1;
            return None;
        }
        state.last = Some(now);
        Some(std::mem::take(&mut state.kept_back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_an_interval_and_the_others_are_counted() {
        let occasionally = Occasionally::every(Duration::from_secs(10));
        let start = Instant::now();
        let due = |seconds| occasionally.due_at(start + Duration::from_secs(seconds));
        assert_eq!(due(0), Some(0));
        assert_eq!(due(1), None);
        assert_eq!(due(9), None);
        assert_eq!(due(10), Some(2));
        assert_eq!(due(30), Some(0));
    }
}
