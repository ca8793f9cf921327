//! Calls that may reserve credits. A gateway that hangs up before it has the answer cannot end its reservations, so they are released
//! on its behalf.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::net::memory::RequestMemory;
use crate::net::work::{CallGuard, CallsInFlight};
use divvy_limiter::{Applied, Limiter, Plan, PlanBuilder, Report, Scope, Settlement};

/// Applies the plans of calls, and releases reservations whose ids never reached a gateway.
pub(super) struct ReservingCalls {
    limiter: Arc<Limiter>,
    in_flight: CallsInFlight,
}

impl ReservingCalls {
    pub(super) fn new(limiter: Arc<Limiter>) -> Self {
        Self { limiter, in_flight: CallsInFlight::default() }
    }

    /// Applies a plan and answers its call. If the answer is an error, the call reserves nothing. The plan keeps its `request_memory`
    /// until it has been applied.
    ///
    /// A plan with reservations is applied in its own task, because the gateway may hang up at any time, and only the
    /// outcome shows which reservations to release. Until the release is done, the next call about the same reservation
    /// waits: otherwise its answer could confirm a reservation that is about to be released.
    pub(super) async fn apply<T, E>(
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
mod tests;
