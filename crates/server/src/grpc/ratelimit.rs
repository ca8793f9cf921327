//! `ShouldRateLimit`: each descriptor is a hit or a refund. For a rule with debt, a descriptor with its own cost is a charge:
//! Envoy sends such descriptors at the end of a stream.

use std::sync::Arc;

use hyper::HeaderMap;
use tonic::{Code as TonicCode, Status};

use super::reserving_calls::ReservingCalls;
use crate::error_log;
use crate::error_text::{self, Terms};
use crate::http::{Answer, RateLimitHeaders};
use crate::net::memory::BufferMemory;
use crate::net::origin::Origin;
use crate::net::pool::{self, pooled};
use crate::net::request_memory::{RequestMemory, SMALL};
use crate::protocol::envoy::messages::envoy::config::core::v3::HeaderValue;
use crate::protocol::envoy::messages::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit,
};
use crate::protocol::envoy::messages::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use crate::protocol::envoy::{self, InvalidRequest, OwnLimit};
use divvy_core::clock::ceil_seconds;
use divvy_core::rules::Operation;
use divvy_limiter::{
    ErrorClass, Intent, Limiter, LimiterError, MAX_TOGETHER, Outcome, PlanBuilder, Refusal, Report, Standing, Together,
    Verdict,
};
use divvy_telemetry::metrics::{Bound, ErrorKind, FrontRequests, RequestKind};

/// Name of the front.
pub const FRONT: &str = "grpc";
/// A short call with at most this number of descriptors needs no permit for memory.
const FEW: usize = 4;

/// The services of Envoy and Kuadrant.
pub struct RateLimits {
    pub limiter: Arc<Limiter>,
    pub reserving_calls: ReservingCalls,
    /// Counts calls.
    pub counts: FrontRequests,
    pub max_pairs: usize,
    pub settings: GrpcSettings,
    /// Memory of requests in work.
    pub memory: Arc<BufferMemory>,
}

/// A call with its message.
pub struct RpcCall<'a, M> {
    pub request: M,
    /// Length of the message.
    pub bytes: usize,
    pub origin: &'a Origin,
}

/// Settings of the services.
#[derive(Debug, Clone, Copy)]
pub struct GrpcSettings {
    /// Headers that gateways add to their responses.
    pub headers: RateLimitHeaders,
    /// Whether all descriptors of a request count, or none.
    pub atomic: bool,
}

impl RateLimits {
    /// Waits for the memory of a call with this length and number of descriptors; returns `None` if it needs none.
    pub(super) async fn request_memory(&self, bytes: usize, descriptors: usize) -> Option<RequestMemory> {
        if bytes <= SMALL && descriptors <= FEW {
            return None;
        }
        // Each descriptor includes the request's domain.
        Box::pin(RequestMemory::wait_for_call(&self.memory, &self.limiter, bytes, descriptors)).await
    }

    /// Answers and counts a call of Envoy's service.
    pub async fn should_rate_limit(&self, call: &RpcCall<'_, RateLimitRequest>) -> Result<RateLimitResponse, Status> {
        let RpcCall { request, bytes, origin } = call;
        let request_memory = self.request_memory(*bytes, request.descriptors.len()).await;
        let mut work = self.begin(origin);
        let decided = self.decide(request, request_memory, &mut work).await;
        self.done(work, RequestKind::Hit, origin, decided)
    }

    /// Takes buffers from the pool, and begins a plan for the client of a call.
    pub(super) fn begin(&self, origin: &Origin) -> Box<Work> {
        let mut work: Box<Work> = pool::take();
        origin.begin(&self.limiter, &mut work.builder);
        work
    }

    /// Counts a call, and returns its buffers to the pool.
    pub(super) fn done<T>(
        &self,
        mut work: Box<Work>,
        kind: RequestKind,
        origin: &Origin,
        decided: Result<T, Status>,
    ) -> Result<T, Status> {
        work.builder.release();
        pool::give(work);
        let is_invalid = decided.as_ref().is_err_and(|status| status.code() == TonicCode::InvalidArgument);
        self.counts.count(if is_invalid { RequestKind::Invalid } else { kind });
        if let Err(status) = &decided {
            let metrics = self.limiter.metrics();
            error_log::count(metrics, FRONT, ErrorKind::Unknown, || origin.error_client(), status.message());
        }
        decided
    }

    async fn decide(
        &self,
        request: &RateLimitRequest,
        request_memory: Option<RequestMemory>,
        work: &mut Work,
    ) -> Result<RateLimitResponse, Status> {
        let Work { builder, operation, brought } = work;
        let mut add = |builder: &mut PlanBuilder| {
            let added = self.add(request, builder, operation, brought);
            added.map_err(|invalid| self.refuse_invalid(&invalid))
        };
        if self.settings.atomic {
            if request.descriptors.len() > MAX_TOGETHER {
                let what = format!("more than {MAX_TOGETHER} descriptors cannot be taken together (--grpc-atomic)");
                return Err(Status::invalid_argument(what));
            }
            builder.together(Together::Summed, |member| refuse(member.refusal), add)?;
        } else {
            add(builder)?;
        }
        // A call has one status for all descriptors, so after an error none of them counts.
        if let Some((_, refusal)) = builder.plan().refusals().next() {
            return Err(refuse(refusal.clone()));
        }
        let (answered, plan) =
            self.reserving_calls.apply(builder.build(), request_memory, |report| self.respond(report, brought)).await;
        builder.reuse(plan);
        answered
    }

    /// Returns the answer to applied requests. `brought` contains the descriptors' own limits.
    pub(super) fn respond(
        &self,
        report: Report<'_>,
        brought: &[Option<OwnLimit>],
    ) -> Result<RateLimitResponse, Status> {
        let mut statuses = Vec::with_capacity(brought.len());
        for (index, limit) in brought.iter().enumerate() {
            statuses.push(status(report, index, *limit).map_err(refuse)?);
        }
        let is_over = statuses.iter().any(|status| status.code() == Code::OverLimit);
        let overall_code = if is_over { Code::OverLimit } else { Code::Ok };
        // Without a dialect, only denials have a header.
        let is_silent = !is_over && self.settings.headers == RateLimitHeaders::NONE;
        let response_headers_to_add =
            if is_silent { Vec::new() } else { self.response_headers(report, brought, &statuses) };
        Ok(RateLimitResponse { overall_code: overall_code.into(), statuses, response_headers_to_add })
    }

    pub(super) fn refuse_invalid(&self, invalid: &InvalidRequest) -> Status {
        if let InvalidRequest::TooManyEntries { .. } = invalid {
            self.limiter.metrics().limits.reached(Bound::Pairs);
        }
        Status::invalid_argument(invalid.to_string())
    }

    /// Returns headers for the client, about the limit that denies it or that leaves it the fewest credits.
    fn response_headers(
        &self,
        report: Report<'_>,
        brought: &[Option<OwnLimit>],
        statuses: &[DescriptorStatus],
    ) -> Vec<HeaderValue> {
        let by_strictness =
            |(_, status): &(usize, &DescriptorStatus)| (status.code() != Code::OverLimit, status.limit_remaining);
        let Some((index, _)) = statuses.iter().enumerate().min_by_key(by_strictness) else { return Vec::new() };
        let answer = match brought.get(index).copied().flatten() {
            Some(own) => report.outcome(index).ok().map(|outcome| own_answer(&own, outcome)),
            None => Answer::for_request(report, index).ok(),
        };
        let Some(answer) = answer else { return Vec::new() };
        let mut headers = HeaderMap::new();
        answer.write_headers(self.settings.headers, &mut headers, &mut Vec::new());
        let written =
            headers.iter().filter_map(|(name, value)| Some((name.to_string(), value.to_str().ok()?.to_owned())));
        written.map(|(key, value)| HeaderValue { key, value }).collect()
    }

    /// Adds a request for each descriptor, in order, and their own limits to `brought`.
    fn add(
        &self,
        request: &RateLimitRequest,
        builder: &mut PlanBuilder,
        operation: &mut Operation,
        brought: &mut Vec<Option<OwnLimit>>,
    ) -> Result<(), InvalidRequest> {
        envoy::check(request)?;
        brought.clear();
        for (index, descriptor) in request.descriptors.iter().enumerate() {
            let ask = envoy::read_descriptor(request, index, descriptor, self.max_pairs, operation)?;
            let intent = match (ask.gives_back, ask.has_own_cost) {
                (true, _) => Intent::Leave,
                (false, true) => Intent::EnterOrCharge,
                (false, false) => Intent::Enter,
            };
            match ask.own_limit {
                None => builder.add(operation, intent, ask.cost),
                Some(own) => match own.limit() {
                    Some(limit) => builder.add_limited(operation, limit, intent, ask.cost.unwrap_or(1)),
                    None => builder.add_barred(operation, own.window_ns, intent),
                },
            }
            brought.push(ask.own_limit);
        }
        Ok(())
    }
}

/// Buffers of a call.
#[derive(Default)]
pub(super) struct Work {
    pub(super) builder: PlanBuilder,
    pub(super) operation: Operation,
    /// The descriptors' own limits.
    pub(super) brought: Vec<Option<OwnLimit>>,
}

pooled!(Box<Work>, |work| {
    work.builder.memory() + work.operation.memory() + work.brought.capacity() * size_of::<Option<OwnLimit>>()
});

fn status(report: Report<'_>, index: usize, brought: Option<OwnLimit>) -> Result<DescriptorStatus, Refusal> {
    if let Some(own) = brought {
        return Ok(descriptor_status(report.outcome(index)?.into(), Some(own.describe())));
    }
    let Standing { verdict, rule, limit, .. } = report.standing(index)?;
    let name = || rule.label.clone().unwrap_or_else(|| rule.to_string());
    Ok(descriptor_status(verdict, limit.map(|limit| envoy::describe(name(), limit))))
}

fn own_answer(own: &OwnLimit, outcome: Outcome) -> Answer<'static> {
    let requests_per_unit = own.limit().map_or(0, |limit| limit.capacity());
    Answer::by_own_limit(OwnLimit::NAME, requests_per_unit, own.window_ns.get(), outcome)
}

fn descriptor_status(verdict: Verdict, current_limit: Option<RateLimit>) -> DescriptorStatus {
    let code = if verdict.allowed { Code::Ok } else { Code::OverLimit };
    DescriptorStatus {
        code: code.into(),
        current_limit,
        limit_remaining: u32::try_from(verdict.credit).unwrap_or(u32::MAX),
        duration_until_reset: Some(duration(verdict.reset_ns)),
    }
}

/// Returns whole seconds, rounded up. Envoy drops fractions, so its `x-ratelimit-reset` would be less than `retry-after`.
fn duration(nanos: u64) -> prost_types::Duration {
    // It fits: a u64 of nanoseconds is less than 2^35 seconds.
    prost_types::Duration { seconds: ceil_seconds(nanos) as i64, nanos: 0 }
}

/// Returns the status for a refusal. A failed store is UNAVAILABLE, so that Envoy's `failure_mode_deny` decides.
pub(super) fn refuse(refusal: Refusal) -> Status {
    let code = match refusal.class() {
        ErrorClass::RulesMistake | ErrorClass::UnsuitableRule => TonicCode::FailedPrecondition,
        ErrorClass::BadRequest | ErrorClass::UnnamedLease | ErrorClass::ReusedName => TonicCode::InvalidArgument,
        ErrorClass::Forbidden => TonicCode::PermissionDenied,
        ErrorClass::NotFound => TonicCode::NotFound,
        ErrorClass::Full => TonicCode::ResourceExhausted,
        ErrorClass::StoreFailure => TonicCode::Unavailable,
    };
    Status::new(code, error_text::describe(&refusal, &Terms::NONE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_out_of_scope_is_denied_for_a_lack_of_permission() {
        let status = refuse(Refusal::OutOfScope);
        assert_eq!(
            (status.code(), status.message()),
            (TonicCode::PermissionDenied, "this is outside the scope of your user")
        );
    }
}
