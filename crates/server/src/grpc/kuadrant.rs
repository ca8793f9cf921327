//! Kuadrant's service, like limitador's: gateways check or reserve before a request, and report or commit after it.
//! Each descriptor is an operation, like in Envoy's service. But if several descriptors match a counter, it counts the
//! call once.

use tonic::Status;

use super::ratelimit::{RateLimits, RpcCall, Work, refuse};
use crate::net::origin::Origin;
use crate::net::request_memory::RequestMemory;
use crate::protocol::envoy::messages::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use crate::protocol::envoy::messages::envoy::service::ratelimit::v3::rate_limit_response::Code;
use crate::protocol::envoy::messages::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use crate::protocol::envoy::messages::kuadrant::service::ratelimit::v1::{
    CommitRequest, CommitResponse, ReserveRequest, ReserveResponse,
};
use crate::protocol::kuadrant::{Subject, reported_cost, ttl_seconds};
use divvy_core::rules::Operation;
use divvy_limiter::{Intent, PlanBuilder, Refusal, Settlement, Together};
use divvy_telemetry::metrics::RequestKind;

impl RateLimits {
    /// Answers and counts a check.
    pub async fn check_rate_limit(&self, call: &RpcCall<'_, RateLimitRequest>) -> Result<RateLimitResponse, Status> {
        let RpcCall { request, bytes, origin } = call;
        let _request_memory = self.request_memory(*bytes, request.descriptors.len()).await;
        let mut work = self.begin(origin);
        let decided = self.look(request, &mut work).await;
        self.done(work, RequestKind::Peek, origin, decided)
    }

    /// Answers and counts a report.
    pub async fn report(&self, call: &RpcCall<'_, RateLimitRequest>) -> Result<RateLimitResponse, Status> {
        let RpcCall { request, bytes, origin } = call;
        let _request_memory = self.request_memory(*bytes, request.descriptors.len()).await;
        let mut work = self.begin(origin);
        let cost = |descriptor: &RateLimitDescriptor| reported_cost(request, descriptor);
        let decided = self.charge(request.into(), cost, &mut work).await;
        let decided = decided.map(|()| RateLimitResponse { overall_code: Code::Ok.into(), ..Default::default() });
        self.done(work, RequestKind::Charge, origin, decided)
    }

    /// Answers and counts a call that reserves.
    pub async fn reserve(&self, call: &RpcCall<'_, ReserveRequest>) -> Result<ReserveResponse, Status> {
        let RpcCall { request, bytes, origin } = call;
        let request_memory = self.request_memory(*bytes, request.descriptors.len()).await;
        let mut work = self.begin(origin);
        let decided = self.set_aside(request, request_memory, &mut work).await;
        self.done(work, RequestKind::Reserve, origin, decided)
    }

    /// Answers and counts a commit.
    pub async fn commit(&self, call: &RpcCall<'_, CommitRequest>) -> Result<CommitResponse, Status> {
        let RpcCall { request, bytes, origin } = call;
        let _request_memory = self.request_memory(*bytes, request.descriptors.len()).await;
        let mut work = self.begin(origin);
        let decided = self.settle(request, origin, &mut work).await;
        let decided = decided.map(|reservation_released| CommitResponse { reservation_released });
        self.done(work, RequestKind::Commit, origin, decided)
    }

    /// Checks whether each operation may use one credit, regardless of the request's addend.
    async fn look(&self, request: &RateLimitRequest, work: &mut Work) -> Result<RateLimitResponse, Status> {
        let Work { builder, operation, brought } = work;
        brought.clear();
        let push = |operation: &_, _: &_| {
            builder.add(operation, Intent::Peek, Some(1));
            brought.push(None);
        };
        self.read(request.into(), operation, push)?;
        if let Some((_, refusal)) = builder.plan().refusals().next() {
            return Err(refuse(refusal.clone()));
        }
        let applied = self.limiter.apply(builder.build()).await;
        let mut answer = self.respond(applied.report(), brought)?;
        builder.reuse(applied);
        // A call without descriptors has no statuses.
        answer.statuses.truncate(request.descriptors.len());
        Ok(answer)
    }

    /// Counts the cost of the operations, even if it exceeds the credits left.
    async fn charge(
        &self,
        subject: Subject<'_>,
        cost: impl Fn(&RateLimitDescriptor) -> u64,
        work: &mut Work,
    ) -> Result<(), Status> {
        let Work { builder, operation, .. } = work;
        self.add_as_one(subject, builder, |builder| {
            self.read(subject, operation, |operation, descriptor| {
                builder.add(operation, Intent::Charge, Some(cost(descriptor)));
            })
        })?;
        // A call has one status for all descriptors, so after an error none of them is charged.
        if let Some((_, refusal)) = builder.plan().refusals().find(|(_, refusal)| !counts_nothing(refusal)) {
            return Err(refuse(refusal.clone()));
        }
        let applied = self.limiter.apply(builder.build()).await;
        let report = applied.report();
        for index in 0..report.len() {
            match report.verdict(index) {
                Err(refusal) if !counts_nothing(&refusal) => return Err(refuse(refusal)),
                Ok(_) | Err(_) => {}
            }
        }
        builder.reuse(applied);
        Ok(())
    }

    /// Adds the requests of `add`. Several descriptors are parts of one request.
    fn add_as_one(
        &self,
        subject: Subject<'_>,
        builder: &mut PlanBuilder,
        add: impl FnOnce(&mut PlanBuilder) -> Result<(), Status>,
    ) -> Result<(), Status> {
        if subject.is_of_several() {
            builder.together(Together::AsOne, |member| refuse(member.refusal), add)
        } else {
            add(builder)
        }
    }

    /// Reserves for all operations or for none, with one id.
    async fn set_aside(
        &self,
        request: &ReserveRequest,
        request_memory: Option<RequestMemory>,
        work: &mut Work,
    ) -> Result<ReserveResponse, Status> {
        let Work { builder, operation, .. } = work;
        let subject = Subject::from(request);
        let ttl_seconds = request.ttl.as_ref().map(ttl_seconds);
        self.add_as_one(subject, builder, |builder| {
            self.read(subject, operation, |operation, _| match request.amount {
                // Nothing is reserved, but there must be credits left.
                0 => builder.add(operation, Intent::Hit, Some(0)),
                amount => builder.add_clamped_reservation(operation, amount, ttl_seconds),
            })
        })?;
        if let Some((_, refusal)) = builder.plan().refusals().next() {
            return Err(refuse(refusal.clone()));
        }
        let (reserved, plan) = self
            .reserving_calls
            .apply(builder.build(), request_memory, |report| report.reserved_together().map_err(refuse))
            .await;
        builder.reuse(plan);
        let Some(id) = reserved? else {
            return Ok(ReserveResponse { code: Code::OverLimit.into(), reservation_id: String::new() });
        };
        // A commit without an id is a report, under the rules in force at that time.
        let reservation_id =
            if id.is_of_nothing() { String::new() } else { self.limiter.write_id(id).map_err(refuse)? };
        Ok(ReserveResponse { code: Code::Ok.into(), reservation_id })
    }

    /// Commits a reservation. If the reservation does not exist, charges the amount as a report instead. Returns
    /// whether a reservation was released.
    async fn settle(&self, request: &CommitRequest, origin: &Origin, work: &mut Work) -> Result<bool, Status> {
        let subject = Subject::from(request);
        // The request is checked even if the reservation exists, because it may be gone when the call is repeated.
        self.read(subject, &mut work.operation, |_, _| {})?;
        let id = match self.limiter.read_id(&request.reservation_id) {
            Ok(id) => Some(id),
            Err(Refusal::BadReservationId(_)) => None,
            // A report needs no id.
            Err(_) if request.reservation_id.is_empty() => None,
            Err(refusal) => return Err(refuse(refusal)),
        };
        if let Some(id) = id {
            let builder = &mut work.builder;
            builder.settle(&id, Settlement::Commit { cost: request.actual_amount });
            let applied = self.limiter.apply(builder.build()).await;
            match applied.report().committed(0) {
                Ok(settled) if settled.is_counted => return Ok(settled.is_released()),
                // Nothing was counted.
                Ok(_) | Err(Refusal::NoReservation | Refusal::BadReservationId(_)) => {}
                Err(refusal) => return Err(refuse(refusal)),
            }
            origin.begin(&self.limiter, builder);
        }
        self.charge(subject, |_| request.actual_amount, work).await?;
        Ok(false)
    }

    fn read(
        &self,
        subject: Subject<'_>,
        operation: &mut Operation,
        take: impl FnMut(&Operation, &RateLimitDescriptor),
    ) -> Result<(), Status> {
        subject.read(self.max_pairs, operation, take).map_err(|invalid| self.refuse_invalid(&invalid))
    }
}

/// Returns whether the rules count only requests and no costs, so that a charge has no effect.
fn counts_nothing(refusal: &Refusal) -> bool {
    matches!(refusal, Refusal::NothingToCharge { .. })
}
