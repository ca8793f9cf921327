//! Reservations that are made for a gateway, until it has its answer. One that hangs up before never tells that what it asked
//! for is over, as nothing has begun: what was set aside for it is freed again.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::limiter::{Limiter, Requests};

/// Applies the requests, in a task of its own if they make reservations: whoever asked may be gone at any time, and what became
/// of them is known only when they are applied.
pub async fn apply(limiter: &Arc<Limiter>, requests: &mut Requests) {
    if !requests.make_reservations() {
        limiter.apply(requests).await;
        return;
    }
    let mut held = Held { limiter: Arc::clone(limiter), requests: std::mem::take(requests) };
    let (answer, answered) = oneshot::channel();
    tokio::spawn(async move {
        held.limiter.apply(&mut held.requests).await;
        // When nobody waits any more, it is dropped.
        let _ = answer.send(held);
    });
    if let Ok(mut held) = answered.await {
        *requests = std::mem::take(&mut held.requests);
    }
}

/// Requests whose reservations are freed when it is dropped.
struct Held {
    limiter: Arc<Limiter>,
    requests: Requests,
}

impl Drop for Held {
    fn drop(&mut self) {
        free(&self.limiter, &self.requests);
    }
}

/// Frees what the requests, which were applied, have set aside: nobody will know of it.
pub fn free(limiter: &Arc<Limiter>, requests: &Requests) {
    let (Some(id), Ok(runtime)) = (requests.made_reservations(), Handle::try_current()) else { return };
    let limiter = Arc::clone(limiter);
    runtime.spawn(async move {
        let mut releases = Requests::default();
        limiter.begin(&mut releases);
        releases.push_release(&id);
        // If it fails, they end by themselves.
        limiter.apply(&mut releases).await;
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::config::{self, Format};
    use crate::limiter::{CounterNames, Intent, Policy};
    use crate::metrics::Metrics;
    use crate::rules::Operation;
    use crate::server::ended_early::{WAYS, within_polls};
    use crate::store::{Backend, MemoryStore};

    const LEASES: u64 = 3;

    fn limiter() -> Arc<Limiter> {
        let rules = format!(
            "[job=* id=*]\ncreditLimit = {LEASES}\nresetSeconds = 600\nalgorithm = concurrency\nholdField = id\n\n\
             [default]\ncreditLimit = 0\n"
        );
        let rules = config::parse(&rules, Format::Ini, "rules.ini").unwrap().rules;
        let metrics = Metrics::new();
        let policy = Policy::new(rules, &metrics, CounterNames::Usual);
        Arc::new(Limiter::new(Some(policy), Backend::Memory(MemoryStore::default()), Clock::system(), metrics))
    }

    async fn ask(limiter: &Arc<Limiter>, id: &str, intent: Intent) -> Option<u64> {
        let operation: Operation = [("job", "x"), ("id", id)].into_iter().collect();
        let mut requests = Requests::default();
        limiter.begin(&mut requests);
        requests.push(&operation, intent);
        apply(limiter, &mut requests).await;
        requests.verdict(0).ok().map(|verdict| verdict.credit)
    }

    #[tokio::test]
    async fn a_gateway_that_hangs_up_before_it_has_its_answer_holds_nothing() {
        let limiter = limiter();
        assert_eq!(ask(&limiter, "held", Intent::Enter).await, Some(LEASES - 1));
        for dropped in WAYS {
            for polls in 0.. {
                let answer = within_polls(ask(&limiter, "gone", Intent::Enter), polls, dropped).await;
                // Asked for again, it is the same lease, which another call holds.
                within_polls(ask(&limiter, "held", Intent::Enter), polls, dropped).await;
                // What goes on without it has a few turns.
                for _ in 0..100 {
                    tokio::task::yield_now().await;
                }
                let expected = if answer.is_some() { LEASES - 2 } else { LEASES - 1 };
                let left = ask(&limiter, "x", Intent::Peek).await;
                assert_eq!(left, Some(expected), "after {polls} polls ({dropped:?})");
                if answer.is_some() {
                    assert!(polls > 1);
                    break;
                }
            }
            assert_eq!(ask(&limiter, "gone", Intent::Leave).await, Some(LEASES - 1));
        }
    }
}
