//! Calls that may reserve credits. A gateway that hangs up before it has the answer cannot end its reservations, so they are released
//! on its behalf.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tonic::Status;

use super::envoy::Work;
use crate::net::auth::RequestOrigin;
use crate::net::memory::RequestMemory;
use crate::net::work::{CallGuard, CallsInFlight};
use divvy_limiter::{Limiter, Plan, PlanBuilder, Report, Scope, Settlement};

/// Applies the plans of calls, and releases reservations whose ids never reached a gateway.
pub(super) struct ReservingCalls {
    limiter: Arc<Limiter>,
    in_flight: CallsInFlight,
}

impl ReservingCalls {
    pub(super) fn new(limiter: Arc<Limiter>) -> Self {
        Self { limiter, in_flight: CallsInFlight::default() }
    }

    /// Asks the limiter what `add` adds, and answers the call. If the answer is an error, the call reserves nothing. The
    /// `request_memory` is kept until the plan has been applied.
    ///
    /// Requests that reserve have a plan of their own, which is applied in its own task, because the gateway may hang up at any time,
    /// and only the outcome shows which reservations to release. Until the release is done, the next call about the same
    /// reservation waits: otherwise its answer could confirm a reservation that is about to be released.
    ///
    /// # Errors
    /// The error of `add` or `answer`.
    pub(super) async fn ask<T>(
        &self,
        origin: &RequestOrigin,
        request_memory: Option<RequestMemory>,
        work: &mut Work,
        mut add: impl FnMut(&mut PlanBuilder, &mut Work) -> Result<(), Status>,
        answer: impl FnOnce(Report<'_>, &Work) -> Result<T, Status>,
    ) -> Result<T, Status> {
        let asked = origin.ask(&self.limiter, |builder| {
            add(builder, work).map_err(Some)?;
            if builder.reservation_keys().is_empty() { Ok(()) } else { Err(None) }
        });
        match asked.await {
            Ok(answers) => return answer(answers.report(), work),
            Err(Some(status)) => return Err(status),
            Err(None) => {}
        }
        // Boxed: such calls are rarer, and the future of each call would otherwise include the size.
        Box::pin(async move {
            let mut builder = PlanBuilder::default();
            origin.within_scope(|scope| self.limiter.begin(&mut builder, scope));
            add(&mut builder, work)?;
            // A call that hangs up while it waits here leaves nothing behind.
            let guards = self.in_flight.enter(builder.reservation_keys()).await;
            let (limiter, mut plan) = (Arc::clone(&self.limiter), builder.build());
            let (sender, receiver) = oneshot::channel();
            tokio::spawn(async move {
                limiter.apply(&mut plan).await;
                // If the gateway has hung up, this drops the reservations.
                let _ = sender.send(UnclaimedReservations { limiter, plan, guards, _request_memory: request_memory });
            });
            let Ok(mut unclaimed) = receiver.await else { return answer(Plan::default().report(), work) };
            let answered = answer(unclaimed.plan.report(), work);
            if answered.is_ok() {
                unclaimed.plan = Plan::default();
            }
            answered
        })
        .await
    }
}

/// Reservations that are released when this is dropped.
struct UnclaimedReservations {
    limiter: Arc<Limiter>,
    plan: Plan,
    guards: Vec<CallGuard>,
    _request_memory: Option<RequestMemory>,
}

impl Drop for UnclaimedReservations {
    fn drop(&mut self) {
        let (Some(id), Ok(runtime)) = (self.plan.report().new_reservations(), Handle::try_current()) else { return };
        let (limiter, guards) = (Arc::clone(&self.limiter), std::mem::take(&mut self.guards));
        runtime.spawn(async move {
            let mut builder = PlanBuilder::default();
            limiter.begin(&mut builder, &Scope::EVERYTHING);
            builder.settle(&id, Settlement::Release);
            // If this fails, the reservations expire.
            limiter.apply(&mut builder.build()).await;
            drop(guards);
        });
    }
}

#[cfg(test)]
mod tests;
