//! Calls that may make reservations. A gateway that hangs up before it has the answer cannot end its reservations, so
//! they are released on its behalf.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::net::calls_in_flight::{CallGuard, CallsInFlight};
use crate::net::request_memory::RequestMemory;
use divvy_limiter::{Applied, Limiter, Plan, PlanBuilder, Report, Scope, Settlement};

/// Applies the plans of calls, and releases reservations whose ids never reached a gateway.
pub struct ReservingCalls {
    limiter: Arc<Limiter>,
    in_flight: CallsInFlight,
}

impl ReservingCalls {
    pub fn new(limiter: Arc<Limiter>) -> Self {
        Self { limiter, in_flight: CallsInFlight::default() }
    }

    /// Applies a plan and answers its call. If the answer is an error, the call reserves nothing. The plan keeps its `request_memory`
    /// until it has been applied.
    ///
    /// A plan with reservations is applied in its own task, because the gateway may hang up at any time, and only the
    /// outcome shows which reservations to release. Until the release is done, the next call about the same reservation
    /// waits: otherwise its answer could confirm a reservation that is about to be released.
    pub async fn apply<T, E>(
        &self,
        plan: Plan,
        request_memory: Option<RequestMemory>,
        answer: impl FnOnce(Report<'_>) -> Result<T, E>,
    ) -> (Result<T, E>, Plan) {
        let keys = plan.reservation_keys();
        if keys.is_empty() {
            let applied = self.limiter.apply(plan).await;
            return (answer(applied.report()), applied.into());
        }
        // A call that hangs up while it waits here leaves nothing behind.
        let guards = self.in_flight.enter(keys).await;
        let limiter = Arc::clone(&self.limiter);
        let (sender, receiver) = oneshot::channel();
        tokio::spawn(async move {
            let applied = limiter.apply(plan).await;
            // If the gateway has hung up, this drops the reservations.
            let _ = sender.send(UnclaimedReservations { limiter, applied, guards, _request_memory: request_memory });
        });
        let Ok(mut unclaimed) = receiver.await else { return (answer(Applied::default().report()), Plan::default()) };
        let answered = answer(unclaimed.applied.report());
        let is_answered = answered.is_ok();
        (answered, if is_answered { std::mem::take(&mut unclaimed.applied).into() } else { Plan::default() })
    }
}

/// Reservations that are released when this is dropped.
struct UnclaimedReservations {
    limiter: Arc<Limiter>,
    applied: Applied,
    guards: Vec<CallGuard>,
    _request_memory: Option<RequestMemory>,
}

impl Drop for UnclaimedReservations {
    fn drop(&mut self) {
        let (Some(id), Ok(runtime)) = (self.applied.report().new_reservations(), Handle::try_current()) else { return };
        let (limiter, guards) = (Arc::clone(&self.limiter), std::mem::take(&mut self.guards));
        runtime.spawn(async move {
            let mut builder = PlanBuilder::default();
            limiter.begin(&mut builder, &Scope::EVERYTHING);
            builder.settle(&id, Settlement::Release);
            // If this fails, the reservations expire.
            limiter.apply(builder.build()).await;
            drop(guards);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interruption::{DropMoment, WAYS, poll_then_drop};
    use divvy_core::clock::Clock;
    use divvy_core::config::{self, Format};
    use divvy_core::rules::Operation;
    use divvy_limiter::store::{Backend, MemoryStore};
    use divvy_limiter::{CounterNames, Intent, Policy};
    use divvy_telemetry::metrics::Metrics;

    const LEASES: u64 = 3;

    fn calls() -> ReservingCalls {
        let rules = format!(
            "[job=* id=*]\ncreditLimit = {LEASES}\nresetSeconds = 600\nalgorithm = concurrency\nholdField = id\n\n\
             [default]\ncreditLimit = 0\n"
        );
        let rules = config::parse(&rules, Format::Ini, "rules.ini").unwrap().rules;
        let metrics = Metrics::new();
        let policy = Policy::new(rules, &metrics, CounterNames::Usual);
        let store = Backend::Memory(MemoryStore::default());
        ReservingCalls::new(Arc::new(Limiter::new(Some(policy), store, Clock::system(), metrics)))
    }

    async fn ask(calls: &ReservingCalls, id: &str, intent: Intent) -> Option<u64> {
        let operation: Operation = [("job", "x"), ("id", id)].into_iter().collect();
        let mut builder = PlanBuilder::default();
        calls.limiter.begin(&mut builder, &Scope::EVERYTHING);
        builder.add(&operation, intent, None);
        let (verdict, _) = calls.apply(builder.build(), None, |report| report.verdict(0)).await;
        verdict.ok().map(|verdict| verdict.credit)
    }

    #[tokio::test]
    async fn gateway_that_hangs_up_before_its_answer_holds_nothing() {
        let calls = calls();
        assert_eq!(ask(&calls, "held", Intent::Enter).await, Some(LEASES - 1));
        for dropped in WAYS {
            for polls in 0.. {
                let answer = poll_then_drop(ask(&calls, "gone", Intent::Enter), polls, dropped).await;
                // The same id stands for the same lease, which another call has.
                poll_then_drop(ask(&calls, "held", Intent::Enter), polls, dropped).await;
                // Lets the remaining tasks finish.
                for _ in 0..100 {
                    tokio::task::yield_now().await;
                }
                let expected = if answer.is_some() { LEASES - 2 } else { LEASES - 1 };
                let left = ask(&calls, "x", Intent::Peek).await;
                assert_eq!(left, Some(expected), "after {polls} polls ({dropped:?})");
                if answer.is_some() {
                    assert!(polls > 1);
                    break;
                }
            }
            assert_eq!(ask(&calls, "gone", Intent::Leave).await, Some(LEASES - 1));
        }
    }

    /// Regression test: the retry was answered before the first call's lease was released, and then lost it.
    #[tokio::test]
    async fn retry_of_a_call_that_hung_up_keeps_its_lease() {
        let calls = calls();
        for dropped in WAYS {
            for polls in 0.. {
                let answer = poll_then_drop(ask(&calls, "x", Intent::Enter), polls, dropped).await;
                assert_eq!(ask(&calls, "x", Intent::Enter).await, Some(LEASES - 1));
                for _ in 0..100 {
                    tokio::task::yield_now().await;
                }
                let left = ask(&calls, "y", Intent::Peek).await;
                assert_eq!(left, Some(LEASES - 1), "after {polls} polls ({dropped:?})");
                assert_eq!(ask(&calls, "x", Intent::Leave).await, Some(LEASES));
                if answer.is_some() {
                    break;
                }
            }
        }
        assert_eq!(calls.in_flight.count(), 0);
    }

    /// Regression test: each retry had a task of its own, which waited until the store had answered the first call.
    #[tokio::test]
    async fn calls_that_hang_up_while_they_wait_for_another_leave_nothing_behind() {
        let calls = calls();
        let mut builder = PlanBuilder::default();
        calls.limiter.begin(&mut builder, &Scope::EVERYTHING);
        builder.add(&[("job", "x"), ("id", "x")].into_iter().collect(), Intent::Enter, None);
        let first = calls.in_flight.enter(builder.plan().reservation_keys()).await;
        for _ in 0..5 {
            assert_eq!(poll_then_drop(ask(&calls, "x", Intent::Enter), 1, DropMoment::Waiting).await, None);
        }
        assert_eq!(calls.in_flight.guard_count(), 1, "only the first call's");
        drop(first);
        assert_eq!(ask(&calls, "x", Intent::Peek).await, Some(LEASES), "no lease was taken");
        assert_eq!(ask(&calls, "x", Intent::Enter).await, Some(LEASES - 1));
    }
}
