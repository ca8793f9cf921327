//! Reservations that are made for a gateway, until it has its answer. One that hangs up before never tells that what it asked
//! for is over, as nothing has begun: what was set aside for it is freed again.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::name_locks::{NameGuard, NameLocks};
use crate::limiter::{Applied, Limiter, Plan, PlanBuilder, Report};
use crate::server::room::Room;

/// Applies requests, and frees what they set aside if nobody has the answer.
pub struct Holder {
    limiter: Arc<Limiter>,
    in_flight: Arc<NameLocks>,
}

impl Holder {
    pub fn new(limiter: Arc<Limiter>) -> Self {
        Self { limiter, in_flight: Arc::default() }
    }

    /// Applies the requests and answers them. They are applied in a task of its own if they make reservations: whoever asked may
    /// be gone at any time, and what became of them is known only then. A call has one answer: when that is an error, nothing
    /// is held. Their `room` is theirs until they have been applied. The next call about the same reservation waits until then; else it would be answered that it holds what is about
    /// to be freed.
    pub async fn apply<T, E>(
        &self,
        plan: Plan,
        room: Option<Room>,
        answer: impl FnOnce(Report<'_>) -> Result<T, E>,
    ) -> (Result<T, E>, Plan) {
        let names = plan.reservation_keys();
        if names.is_empty() {
            let applied = self.limiter.apply(plan).await;
            return (answer(applied.report()), applied.into());
        }
        // Whoever hangs up while it waits here leaves nothing behind.
        let flight = self.in_flight.lock(names).await;
        let limiter = Arc::clone(&self.limiter);
        let (tell, told) = oneshot::channel();
        tokio::spawn(async move {
            let applied = limiter.apply(plan).await;
            // When nobody waits any more, it is dropped.
            let _ = tell.send(Held { limiter, applied, flight, _room: room });
        });
        let Ok(mut held) = told.await else { return (answer(Applied::default().report()), Plan::default()) };
        let answered = answer(held.applied.report());
        let is_answered = answered.is_ok();
        (answered, if is_answered { std::mem::take(&mut held.applied).into() } else { Plan::default() })
    }
}

/// Requests whose reservations are freed when it is dropped.
struct Held {
    limiter: Arc<Limiter>,
    applied: Applied,
    flight: Vec<NameGuard>,
    _room: Option<Room>,
}

impl Drop for Held {
    fn drop(&mut self) {
        let (Some(id), Ok(runtime)) = (self.applied.report().new_reservations(), Handle::try_current()) else { return };
        let (limiter, flight) = (Arc::clone(&self.limiter), std::mem::take(&mut self.flight));
        runtime.spawn(async move {
            let mut builder = PlanBuilder::default();
            limiter.begin(&mut builder);
            builder.add_release(&id);
            // If it fails, they end by themselves.
            limiter.apply(builder.build()).await;
            drop(flight);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::config::{self, Format};
    use crate::limiter::{CounterNames, Intent, Policy};
    use crate::metrics::Metrics;
    use crate::rules::Operation;
    use crate::server::ended_early::{Dropped, WAYS, within_polls};
    use crate::store::{Backend, MemoryStore};

    const LEASES: u64 = 3;

    fn holder() -> Holder {
        let rules = format!(
            "[job=* id=*]\ncreditLimit = {LEASES}\nresetSeconds = 600\nalgorithm = concurrency\nholdField = id\n\n\
             [default]\ncreditLimit = 0\n"
        );
        let rules = config::parse(&rules, Format::Ini, "rules.ini").unwrap().rules;
        let metrics = Metrics::new();
        let policy = Policy::new(rules, &metrics, CounterNames::Usual);
        let store = Backend::Memory(MemoryStore::default());
        Holder::new(Arc::new(Limiter::new(Some(policy), store, Clock::system(), metrics)))
    }

    async fn ask(holder: &Holder, id: &str, intent: Intent) -> Option<u64> {
        let operation: Operation = [("job", "x"), ("id", id)].into_iter().collect();
        let mut builder = PlanBuilder::default();
        holder.limiter.begin(&mut builder);
        builder.add(&operation, intent, None);
        let (verdict, _) = holder.apply(builder.build(), None, |report| report.verdict(0)).await;
        verdict.ok().map(|verdict| verdict.credit)
    }

    #[tokio::test]
    async fn a_gateway_that_hangs_up_before_it_has_its_answer_holds_nothing() {
        let holder = holder();
        assert_eq!(ask(&holder, "held", Intent::Enter).await, Some(LEASES - 1));
        for dropped in WAYS {
            for polls in 0.. {
                let answer = within_polls(ask(&holder, "gone", Intent::Enter), polls, dropped).await;
                // Asked for again, it is the same lease, which another call holds.
                within_polls(ask(&holder, "held", Intent::Enter), polls, dropped).await;
                // What goes on without it has a few turns.
                for _ in 0..100 {
                    tokio::task::yield_now().await;
                }
                let expected = if answer.is_some() { LEASES - 2 } else { LEASES - 1 };
                let left = ask(&holder, "x", Intent::Peek).await;
                assert_eq!(left, Some(expected), "after {polls} polls ({dropped:?})");
                if answer.is_some() {
                    assert!(polls > 1);
                    break;
                }
            }
            assert_eq!(ask(&holder, "gone", Intent::Leave).await, Some(LEASES - 1));
        }
    }

    /// The retry was answered before the first call's lease was freed, and lost it then.
    #[tokio::test]
    async fn a_retry_of_a_call_that_hung_up_keeps_its_lease() {
        let holder = holder();
        for dropped in WAYS {
            for polls in 0.. {
                let answer = within_polls(ask(&holder, "x", Intent::Enter), polls, dropped).await;
                assert_eq!(ask(&holder, "x", Intent::Enter).await, Some(LEASES - 1));
                for _ in 0..100 {
                    tokio::task::yield_now().await;
                }
                let left = ask(&holder, "y", Intent::Peek).await;
                assert_eq!(left, Some(LEASES - 1), "after {polls} polls ({dropped:?})");
                assert_eq!(ask(&holder, "x", Intent::Leave).await, Some(LEASES));
                if answer.is_some() {
                    break;
                }
            }
        }
        assert_eq!(holder.in_flight.count(), 0);
    }

    /// Each would have waited on as a task of its own, for as long as the store does not answer the first one.
    #[tokio::test]
    async fn calls_that_hang_up_while_they_wait_for_another_leave_nothing_behind() {
        let holder = holder();
        let mut builder = PlanBuilder::default();
        holder.limiter.begin(&mut builder);
        builder.add(&[("job", "x"), ("id", "x")].into_iter().collect(), Intent::Enter, None);
        let first = holder.in_flight.lock(builder.plan().reservation_keys()).await;
        for _ in 0..5 {
            assert_eq!(within_polls(ask(&holder, "x", Intent::Enter), 1, Dropped::Waiting).await, None);
        }
        assert_eq!(Arc::strong_count(&holder.in_flight), 2, "the holder's, and the first call's");
        drop(first);
        assert_eq!(ask(&holder, "x", Intent::Peek).await, Some(LEASES), "nobody has taken any");
        assert_eq!(ask(&holder, "x", Intent::Enter).await, Some(LEASES - 1));
    }
}
