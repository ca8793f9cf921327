use super::*;
use crate::grpc::envoy::refuse;
use crate::interruption::{DropMoment, WAYS, poll_then_drop};
use crate::tests::limiter;
use divvy_core::rules::Operation;
use divvy_limiter::Intent;

const LEASES: u64 = 3;

fn calls() -> ReservingCalls {
    let rules = format!(
        "[job=* id=*]\ncreditLimit = {LEASES}\nresetSeconds = 600\nalgorithm = concurrency\nholdField = id\n\n\
         [default]\ncreditLimit = 0\n"
    );
    ReservingCalls::new(limiter(&rules))
}

async fn ask(calls: &ReservingCalls, id: &str, intent: Intent) -> Option<u64> {
    let operation: Operation = [("job", "x"), ("id", id)].into_iter().collect();
    let (origin, mut work) = (RequestOrigin::new(([127, 0, 0, 1], 1).into(), None), Work::default());
    let add = |builder: &mut PlanBuilder, _: &mut Work| {
        builder.add(&operation, intent, None);
        Ok(())
    };
    let credit = |report: Report<'_>, _: &Work| Ok(report.verdict(0).map_err(refuse)?.credit);
    calls.ask(&origin, None, &mut work, add, credit).await.ok()
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
    let first = calls.in_flight.enter(builder.reservation_keys()).await;
    for _ in 0..5 {
        assert_eq!(poll_then_drop(ask(&calls, "x", Intent::Enter), 1, DropMoment::Waiting).await, None);
    }
    assert_eq!(calls.in_flight.guard_count(), 1, "only the first call's");
    drop(first);
    assert_eq!(ask(&calls, "x", Intent::Peek).await, Some(LEASES), "no lease was taken");
    assert_eq!(ask(&calls, "x", Intent::Enter).await, Some(LEASES - 1));
}
