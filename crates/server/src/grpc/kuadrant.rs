//! Kuadrant's rate limit service, version 1, whose messages contain Envoy's: gateways check or reserve before a request, and
//! report or commit after it. Each descriptor is an operation, like in Envoy's service. But if several descriptors match a
//! counter, it counts the call once.
//!
//! Sources: `limitador-server/proto/kuadrantrls.proto` in <https://github.com/Kuadrant/limitador>, and
//! <https://github.com/Kuadrant/architecture/blob/main/rfcs/0021-token-rate-limit-reservations.md>.

use bytes::Bytes;
use prost_types::Duration;
use tonic::Status;

use super::descriptors::{DescriptorReader, NO_DOMAIN};
use super::envoy::{RateLimits, RpcCall, Work, refuse, refuse_refused};
use super::messages::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use super::messages::envoy::service::ratelimit::v3::rate_limit_response::Code;
use super::messages::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use super::messages::kuadrant::service::ratelimit::v1::{
    CommitRequest, CommitResponse, ReserveRequest, ReserveResponse,
};
use crate::net::auth::RequestOrigin;
use divvy_core::clock::NANOS_PER_SECOND;
use divvy_core::rules::Operation;
use divvy_limiter::{Intent, PlanBuilder, Refusal, Report, Settlement, Together};

/// The domain of a call, and its descriptors. Each descriptor is an operation.
pub type Subject<'a> = (&'a [u8], &'a [RateLimitDescriptor]);

impl RateLimits {
    /// Answers a check: whether each operation may use one credit, regardless of the request's addend.
    pub(super) async fn check_rate_limit(
        &self,
        call: &mut RpcCall<'_, RateLimitRequest>,
    ) -> Result<RateLimitResponse, Status> {
        let _request_memory = self.memory_for(call.request.descriptors.len(), call).await;
        let (request, Work { operation, brought, .. }) = (&call.request, &mut *call.work);
        brought.clear();
        let answers = call.origin.ask(&self.limiter, |builder| {
            self.reader.read((&request.domain, &request.descriptors), operation, |operation, _| {
                builder.add(operation, Intent::Peek, Some(1));
                brought.push(None);
            })?;
            refuse_refused(builder, |_| false)
        });
        let mut answer = self.respond(answers.await?.report(), brought)?;
        // A call without descriptors has no statuses.
        answer.statuses.truncate(request.descriptors.len());
        Ok(answer)
    }

    /// Answers a report.
    pub(super) async fn report(&self, call: &mut RpcCall<'_, RateLimitRequest>) -> Result<RateLimitResponse, Status> {
        let _request_memory = self.memory_for(call.request.descriptors.len(), call).await;
        let RpcCall { request, origin, work, .. } = call;
        let cost = |descriptor: &RateLimitDescriptor| reported_cost(request, descriptor);
        self.charge(origin, (&request.domain, &request.descriptors), cost, work).await?;
        Ok(RateLimitResponse { overall_code: Code::Ok.into(), ..Default::default() })
    }

    /// Counts the cost of the operations, even if it exceeds the credits left.
    async fn charge(
        &self,
        origin: &RequestOrigin,
        subject: Subject<'_>,
        cost: impl Fn(&RateLimitDescriptor) -> u64,
        work: &mut Work,
    ) -> Result<(), Status> {
        let answers = origin.ask(&self.limiter, |builder| {
            self.add_as_one(subject, builder, |builder| {
                self.reader.read(subject, &mut work.operation, |operation, descriptor| {
                    builder.add(operation, Intent::Charge, Some(cost(descriptor)));
                })
            })?;
            refuse_refused(builder, counts_nothing)
        });
        let answers = answers.await?;
        let report = answers.report();
        let mut refusals = (0..report.len()).filter_map(|index| report.verdict(index).err());
        refusals.find(|refusal| !counts_nothing(refusal)).map_or(Ok(()), |refusal| Err(refuse(refusal)))
    }

    /// Adds the requests of `add`. Several descriptors are parts of one request.
    fn add_as_one(
        &self,
        (_, descriptors): Subject<'_>,
        builder: &mut PlanBuilder,
        add: impl FnOnce(&mut PlanBuilder) -> Result<(), Status>,
    ) -> Result<(), Status> {
        match descriptors.len() {
            0 | 1 => add(builder),
            _ => builder.together(Together::AsOne, |member| refuse(member.refusal), add),
        }
    }

    /// Answers a call that reserves for all operations or for none, with one id.
    pub(super) async fn reserve(&self, call: &mut RpcCall<'_, ReserveRequest>) -> Result<ReserveResponse, Status> {
        let request_memory = self.memory_for(call.request.descriptors.len(), call).await;
        let request = &call.request;
        let subject: Subject = (&request.domain, &request.descriptors);
        let ttl_seconds = request.ttl.as_ref().map(ttl_seconds);
        let add = |builder: &mut PlanBuilder, work: &mut Work| {
            self.add_as_one(subject, builder, |builder| {
                self.reader.read(subject, &mut work.operation, |operation, _| match request.amount {
                    // Nothing is reserved, but there must be credits left.
                    0 => builder.add(operation, Intent::Hit, Some(0)),
                    amount => builder.add_clamped_reservation(operation, amount, ttl_seconds),
                })
            })?;
            refuse_refused(builder, |_| false)
        };
        let reserved = |report: Report<'_>, _: &Work| report.reserved_together().map_err(refuse);
        let reserving = self.reserving_calls.ask(call.origin, request_memory, &mut call.work, add, reserved);
        let Some(id) = reserving.await? else {
            return Ok(ReserveResponse { code: Code::OverLimit.into(), reservation_id: Bytes::new() });
        };
        // A commit without an id is a report, under the rules in force at that time.
        let reservation_id =
            if id.is_of_nothing() { Bytes::new() } else { self.limiter.write_id(id).map_err(refuse)?.into() };
        Ok(ReserveResponse { code: Code::Ok.into(), reservation_id })
    }

    /// Answers a commit of a reservation. If the reservation does not exist, charges the amount as a report instead.
    pub(super) async fn commit(&self, call: &mut RpcCall<'_, CommitRequest>) -> Result<CommitResponse, Status> {
        let _request_memory = self.memory_for(call.request.descriptors.len(), call).await;
        let RpcCall { request, origin, work, .. } = call;
        let subject: Subject = (&request.domain, &request.descriptors);
        // The request is checked even if the reservation exists, because it may be gone when the call is repeated.
        self.reader.read(subject, &mut work.operation, |_, _| {})?;
        let id = match self.limiter.read_id(&request.reservation_id) {
            Ok(id) => Some(id),
            Err(Refusal::BadReservationId(_)) => None,
            // A report needs no id.
            Err(_) if request.reservation_id.is_empty() => None,
            Err(refusal) => return Err(refuse(refusal)),
        };
        if let Some(id) = id {
            let commit = Settlement::Commit { cost: request.actual_amount };
            let answers = origin.ask(&self.limiter, |builder| {
                builder.settle(&id, commit);
                Ok::<_, Status>(())
            });
            match answers.await?.report().committed(0) {
                Ok(settled) if settled.is_counted => {
                    return Ok(CommitResponse { reservation_released: settled.is_released() });
                }
                // Nothing was counted.
                Ok(_) | Err(Refusal::NoReservation | Refusal::BadReservationId(_)) => {}
                Err(refusal) => return Err(refuse(refusal)),
            }
        }
        self.charge(origin, subject, |_| request.actual_amount, work).await?;
        Ok(CommitResponse { reservation_released: false })
    }
}

impl DescriptorReader {
    /// Reads the operations into `operation`, and calls `take` for each.
    ///
    /// A descriptor may have no entries: gateways send those for requests that match none of their policies. A call without
    /// descriptors means the same as a call with one such descriptor: it is about the domain.
    ///
    /// # Errors
    /// The domain is missing, or a descriptor is invalid. `take` was called for the descriptors before it.
    pub fn read(
        &self,
        (domain, descriptors): Subject<'_>,
        operation: &mut Operation,
        mut take: impl FnMut(&Operation, &RateLimitDescriptor),
    ) -> Result<(), Status> {
        if domain.is_empty() {
            return Err(Status::invalid_argument(NO_DOMAIN));
        }
        let (count, max) = (descriptors.len(), MAX_DESCRIPTORS);
        if count > max {
            let text = format!("descriptors has {count} elements, but this service takes at most {max}");
            return Err(Status::invalid_argument(text));
        }
        let none = [RateLimitDescriptor::default()];
        let descriptors = if descriptors.is_empty() { &none } else { descriptors };
        for (index, descriptor) in descriptors.iter().enumerate() {
            let refuse = |text| Err(Status::invalid_argument(format!("descriptors[{index}].{text}: leave it out")));
            if descriptor.limit.is_some() {
                return refuse("limit is set, but this service counts by the server's rules alone");
            }
            if descriptor.is_negative_hits {
                return refuse("is_negative_hits is set, but this service gives nothing back");
            }
            self.read_operation(domain, index, descriptor, operation)?;
            take(operation, descriptor);
        }
        Ok(())
    }
}

/// Returns whether the rules count only requests and no costs, so that a charge has no effect.
fn counts_nothing(refusal: &Refusal) -> bool {
    matches!(refusal, Refusal::NothingToCharge { .. })
}

/// Maximum number of descriptors in a call.
pub const MAX_DESCRIPTORS: usize = 16;

/// Returns the cost of a descriptor in a report: its addend, or else the request's, where 0 means 1.
pub fn reported_cost(request: &RateLimitRequest, descriptor: &RateLimitDescriptor) -> u64 {
    descriptor.hits_addend.unwrap_or(request.hits_addend.max(1).into())
}

/// Returns the requested duration of a reservation in seconds, rounded up; 0 if it is negative.
pub fn ttl_seconds(ttl: &Duration) -> u32 {
    let nanos = i128::from(ttl.seconds) * i128::from(NANOS_PER_SECOND) + i128::from(ttl.nanos);
    let nanos = u128::try_from(nanos).unwrap_or(0);
    u32::try_from(nanos.div_ceil(u128::from(NANOS_PER_SECOND))).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
