//! Envoy's Rate Limit Service, version 3. A descriptor is one operation: its entries as pairs, and the request's `domain`.
//! Source: <https://www.envoyproxy.io/docs/envoy/latest/api-v3/service/ratelimit/v3/rls.proto>.
//!
//! `ShouldRateLimit` makes each descriptor a hit or a refund. For a rule with debt, a descriptor with its own cost is a charge:
//! Envoy sends such descriptors at the end of a stream.

use std::num::NonZeroU64;
use std::sync::Arc;

use bytes::Bytes;
use hyper::{HeaderMap, Response};
use prost::Message;
use prost_types::value::Kind;
use tonic::{Code as TonicCode, Status};

use super::descriptors::{DescriptorReader, NO_DOMAIN};
use super::messages::envoy::config::core::v3::HeaderValue;
use super::messages::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use super::messages::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use super::messages::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use super::messages::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use super::messages::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use super::messages::envoy::r#type::v3::RateLimitUnit;
use super::messages::write;
use super::ratelimit::{self, LookedUp, Served};
use super::reserving_calls::ReservingCalls;
use crate::errors::{self, Terms};
use crate::http::transport::bodies::Reply;
use crate::http::{Answer, EXCEEDED, RateLimitHeaders};
use crate::net::auth::RequestOrigin;
use crate::net::memory::{self, BufferMemory, RequestMemory, pooled};
use crate::net::protocol::Protocol;
use crate::server_context::ServerContext;
use divvy_core::algorithm::{FixedWindow, Limit};
use divvy_core::calendar::{self, Calendar};
use divvy_core::clock::{NANOS_PER_SECOND, ceil_seconds};
use divvy_core::config::ratelimit::options::Options;
use divvy_core::rules::{Operation, Settings};
use divvy_limiter::{
    ErrorClass, Intent, Limiter, LimiterError, MAX_TOGETHER, Outcome, PlanBuilder, Refusal, Report, Standing, Together,
    Verdict,
};
use divvy_telemetry::metrics::{ErrorKind, FrontRequests, RequestKind};

/// The services of Envoy and Kuadrant.
pub(crate) struct RateLimits {
    pub(super) limiter: Arc<Limiter>,
    pub(super) reserving_calls: ReservingCalls,
    /// Counts calls.
    pub(super) counts: FrontRequests,
    pub(super) reader: DescriptorReader,
    pub(super) settings: GrpcSettings,
    /// Memory of requests in work.
    pub(super) memory: Arc<BufferMemory>,
}

/// A call with its message and its buffers.
pub(super) struct RpcCall<'a, M> {
    pub request: M,
    /// Length of the message.
    pub bytes: usize,
    pub origin: &'a RequestOrigin,
    pub work: Box<Work>,
}

/// Settings of the services.
#[derive(Debug, Clone)]
pub struct GrpcSettings {
    /// Headers that gateways add to their responses.
    pub headers: RateLimitHeaders,
    /// Whether all descriptors of a request count, or none.
    pub atomic: bool,
    /// Options for requests in ratelimit's domains.
    pub ratelimit: Arc<Options>,
}

impl RateLimits {
    /// Creates the services.
    pub(crate) fn new(server: &ServerContext, settings: GrpcSettings) -> Self {
        let ServerContext { limiter, limits, memory, .. } = server.clone();
        let metrics = Arc::clone(limiter.metrics());
        Self {
            reserving_calls: ReservingCalls::new(Arc::clone(&limiter)),
            counts: metrics.requests.front(Protocol::Grpc.name()),
            reader: DescriptorReader { max_pairs: limits.max_pairs, metrics },
            limiter,
            settings,
            memory,
        }
    }

    /// Waits for the memory of a call with this many descriptors.
    pub(super) async fn memory_for<M>(&self, descriptors: usize, call: &RpcCall<'_, M>) -> Option<RequestMemory> {
        // Each descriptor includes the request's domain.
        RequestMemory::wait_for_call(&self.memory, &self.limiter, call.bytes, descriptors).await
    }

    /// Counts a call, returns its buffers to the pool, and writes the answer.
    pub(super) fn done<M, T: Message>(
        &self,
        call: RpcCall<'_, M>,
        kind: RequestKind,
        answer: Result<T, Status>,
    ) -> Result<Response<Reply>, Status> {
        let RpcCall { work, origin, .. } = call;
        memory::give(work);
        let is_invalid = answer.as_ref().is_err_and(|status| status.code() == TonicCode::InvalidArgument);
        self.counts.count(if is_invalid { RequestKind::Invalid } else { kind });
        if let Err(status) = &answer {
            let metrics = self.limiter.metrics();
            errors::count(metrics, Protocol::Grpc, ErrorKind::Unknown, || origin.error_client(), status.message());
        }
        answer.map(|answer| write(&answer))
    }

    /// Answers a call of Envoy's service.
    pub(super) async fn should_rate_limit(
        &self,
        call: &mut RpcCall<'_, RateLimitRequest>,
    ) -> Result<RateLimitResponse, Status> {
        let request_memory = self.memory_for(call.request.descriptors.len(), call).await;
        let answer = self.answer_hits(call, request_memory).await;
        if let Some(served) = call.work.served {
            served.count_call(&self.limiter.metrics().ratelimit, self.limiter.now());
        }
        answer
    }

    /// Answers a call of Envoy's service that has its memory.
    pub(super) async fn answer_hits(
        &self,
        call: &mut RpcCall<'_, RateLimitRequest>,
        request_memory: Option<RequestMemory>,
    ) -> Result<RateLimitResponse, Status> {
        call.work.served = None;
        let request = &call.request;
        let (is_atomic, options) = (self.settings.atomic, &self.settings.ratelimit);
        if is_atomic && request.descriptors.len() > MAX_TOGETHER {
            let what = format!("more than {MAX_TOGETHER} descriptors cannot be taken together (--grpc-atomic)");
            return Err(Status::invalid_argument(what));
        }
        let add = |builder: &mut PlanBuilder, work: &mut Work| {
            work.looked_up.clear();
            work.served = Served::of(builder, &request.domain);
            if work.served.is_some_and(|served| served.has_domain) {
                ratelimit::add(request, options, &self.reader, builder, work)?;
                return refuse_refused(builder, |_| false);
            }
            let mut add_each = |builder: &mut PlanBuilder| self.add(request, builder, work);
            if is_atomic {
                builder.together(Together::Summed, |member| refuse(member.refusal), add_each)?;
            } else {
                add_each(builder)?;
            }
            refuse_refused(builder, |_| false)
        };
        let respond = |report: Report<'_>, work: &Work| match work.looked_up.as_slice() {
            [] => self.respond(report, &work.brought),
            looked_up => ratelimit::respond(report, request, looked_up, options, &self.limiter.metrics().ratelimit),
        };
        let answer = self.reserving_calls.ask(call.origin, request_memory, &mut call.work, add, respond).await;
        if let Some(served) = call.work.served {
            served.count_answer(&self.limiter.metrics().ratelimit, request, &answer);
        }
        answer
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
        let may_deny = statuses.iter().any(|status| status.code() == Code::OverLimit);
        // The descriptors are parts of one request.
        let denying = if may_deny { report.denying() } else { Vec::new() };
        let is_over = !denying.is_empty();
        let overall_code = if is_over { Code::OverLimit } else { Code::Ok };
        // Without a dialect, only denials have a header.
        let is_silent = !is_over && self.settings.headers == RateLimitHeaders::NONE;
        let response_headers_to_add =
            if is_silent { Vec::new() } else { self.response_headers(report, brought, &statuses, &denying) };
        let exceeded: Vec<_> = (0..brought.len()).flat_map(|index| report.exceeded(index)).collect();
        let (request_headers_to_add, dynamic_metadata) = annotations(&exceeded);
        Ok(RateLimitResponse {
            overall_code: overall_code.into(),
            statuses,
            response_headers_to_add,
            request_headers_to_add,
            dynamic_metadata,
        })
    }

    /// Returns headers for the client, about the limit that denies it or that leaves it the fewest credits. `denying` has the
    /// descriptors that deny the call.
    fn response_headers(
        &self,
        report: Report<'_>,
        brought: &[Option<OwnLimit>],
        statuses: &[DescriptorStatus],
        denying: &[usize],
    ) -> Vec<HeaderValue> {
        let decides = |(index, status): &(usize, &DescriptorStatus)| {
            if denying.is_empty() { status.code() == Code::Ok } else { denying.binary_search(index).is_ok() }
        };
        let deciding = statuses.iter().enumerate().filter(decides);
        let Some((index, _)) = deciding.min_by_key(|(_, status)| status.limit_remaining) else { return Vec::new() };
        let answer = match brought.get(index).copied().flatten() {
            Some(own) => report.outcome(index).ok().map(|outcome| own_answer(&own, outcome)),
            // The note is for the service behind the gateway.
            None => Answer::for_request(report, index).ok(),
        };
        let Some(answer) = answer else { return Vec::new() };
        let mut headers = HeaderMap::new();
        answer.write_headers(self.settings.headers, &mut headers, &mut Vec::new());
        let bytes = Bytes::copy_from_slice;
        let written = headers.iter().map(|(name, value)| (bytes(name.as_ref()), bytes(value.as_bytes())));
        written.map(|(key, value)| HeaderValue { key, value }).collect()
    }

    /// Adds a request for each descriptor, in order, and keeps their own limits.
    fn add(
        &self,
        request: &RateLimitRequest,
        builder: &mut PlanBuilder,
        Work { operation, brought, .. }: &mut Work,
    ) -> Result<(), Status> {
        if request.domain.is_empty() {
            return Err(Status::invalid_argument(NO_DOMAIN));
        }
        if request.descriptors.is_empty() {
            return Err(Status::invalid_argument("descriptors is empty: there is nothing to limit"));
        }
        brought.clear();
        for (index, descriptor) in request.descriptors.iter().enumerate() {
            let ask = self.reader.read_descriptor(request, index, descriptor, operation)?;
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

impl DescriptorReader {
    /// Reads descriptor number `index` into `operation`.
    ///
    /// # Errors
    /// The descriptor is invalid, or has too many pairs.
    pub fn read_descriptor(
        &self,
        request: &RateLimitRequest,
        index: usize,
        descriptor: &RateLimitDescriptor,
        operation: &mut Operation,
    ) -> Result<DescriptorAsk, Status> {
        if descriptor.entries.is_empty() {
            return Err(Status::invalid_argument(format!("descriptors[{index}] has no entries")));
        }
        self.read_operation(&request.domain, index, descriptor, operation)?;
        let own_limit = OwnLimit::of(index, descriptor)?;
        // In the request, an unset field is 0.
        let of_request = (request.hits_addend > 0).then_some(u64::from(request.hits_addend));
        Ok(DescriptorAsk {
            cost: descriptor.hits_addend.or(of_request),
            has_own_cost: descriptor.hits_addend.is_some(),
            gives_back: descriptor.is_negative_hits,
            own_limit,
        })
    }
}

/// Buffers of a call.
#[derive(Default)]
pub(super) struct Work {
    pub(super) operation: Operation,
    /// The descriptors' own limits.
    pub(super) brought: Vec<Option<OwnLimit>>,
    /// The source of the answer to each descriptor in a domain of ratelimit. Empty in other domains.
    pub(super) looked_up: Vec<LookedUp>,
    /// The domain of a call, if ratelimit's configuration is served.
    pub(super) served: Option<Served>,
}

pooled!(Box<Work>, |work| {
    let lists =
        work.brought.capacity() * size_of::<Option<OwnLimit>>() + work.looked_up.capacity() * size_of::<LookedUp>();
    work.operation.memory() + lists
});

/// Returns the error of the first request of the call that was refused, but for the refusals that do not matter. A call has one status
/// for all descriptors, so after an error none of them counts.
pub(super) fn refuse_refused(builder: &PlanBuilder, is_harmless: fn(&Refusal) -> bool) -> Result<(), Status> {
    let first = builder.refusals().map(|(_, refusal)| refusal).find(|refusal| !is_harmless(refusal));
    first.map_or(Ok(()), |refusal| Err(refuse(refusal.clone())))
}

fn status(report: Report<'_>, index: usize, brought: Option<OwnLimit>) -> Result<DescriptorStatus, Refusal> {
    if let Some(own) = brought {
        return Ok(descriptor_status(report.outcome(index)?.into(), Some(own.describe())));
    }
    let Standing { verdict, text, limit, .. } = report.standing(index)?;
    Ok(descriptor_status(verdict, limit.map(|limit| describe(Bytes::copy_from_slice(text.as_bytes()), limit))))
}

/// Returns the header for the service behind the gateway, and the metadata for the gateway's other filters, with the names of the
/// rules that are exceeded.
fn annotations(exceeded: &[&str]) -> (Vec<HeaderValue>, Option<prost_types::Struct>) {
    if exceeded.is_empty() {
        return (Vec::new(), None);
    }
    let header =
        HeaderValue { key: Bytes::copy_from_slice(EXCEEDED.as_str().as_bytes()), value: exceeded.join(", ").into() };
    let text = |name: &&str| prost_types::Value { kind: Some(Kind::StringValue((*name).to_owned())) };
    let names = prost_types::ListValue { values: exceeded.iter().map(text).collect() };
    let names = prost_types::Value { kind: Some(Kind::ListValue(names)) };
    (vec![header], Some(prost_types::Struct { fields: [("exceeded".to_owned(), names)].into() }))
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
pub(super) fn duration(nanos: u64) -> prost_types::Duration {
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
    Status::new(code, errors::describe(&refusal, &Terms::NONE))
}

/// The request of a descriptor, without its operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DescriptorAsk {
    /// The cost. `None`: the rule's cost, or else 1.
    pub cost: Option<u64>,
    /// Whether the cost comes from the descriptor itself, and not from the request.
    pub has_own_cost: bool,
    /// Whether the descriptor gives credits back (`is_negative_hits`).
    pub gives_back: bool,
    /// The limit in Envoy's configuration, instead of a rule's.
    pub own_limit: Option<OwnLimit>,
}

/// A descriptor's own limit: Envoy's override.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnLimit {
    requests_per_unit: u32,
    unit: Unit,
    /// Length of the window (nanoseconds). A month has 30 days and a year 365.
    pub window_ns: NonZeroU64,
}

impl OwnLimit {
    /// Name in headers, instead of a rule's label.
    pub const NAME: &'static str = "override";

    /// Reads the limit of descriptor number `index`, if it has one.
    ///
    /// # Errors
    /// Its unit is unknown.
    pub fn of(index: usize, descriptor: &RateLimitDescriptor) -> Result<Option<Self>, Status> {
        let unknown = || Status::invalid_argument(format!("descriptors[{index}].limit has an unknown unit"));
        descriptor.limit.as_ref().map(|given| Self::read(given).ok_or_else(unknown)).transpose()
    }

    fn read(given: &RateLimitOverride) -> Option<Self> {
        // The unit in replies has the same names. An unknown one has no window.
        let named = Unit::from_str_name(RateLimitUnit::try_from(given.unit).ok()?.as_str_name())?;
        let (unit, _, seconds) = UNITS.into_iter().find(|(unit, ..)| *unit == named)?;
        let window_ns = NonZeroU64::new(seconds * NANOS_PER_SECOND)?;
        Some(Self { requests_per_unit: given.requests_per_unit, unit, window_ns })
    }

    /// Returns the limit of its counter; `None` if it allows nothing.
    pub fn limit(&self) -> Option<Limit> {
        FixedWindow::new(self.requests_per_unit.into(), self.window_ns.get()).ok().map(Limit::FixedWindow)
    }

    /// Returns the same limit in windows of the clock, as ratelimit has them.
    pub fn settings(&self) -> Settings {
        let calendar =
            UNITS.iter().find(|(unit, ..)| *unit == self.unit).and_then(|(_, unit, _)| Calendar::in_utc(*unit));
        Settings { credit_limit: self.requests_per_unit.into(), calendar, ..Settings::default() }
    }

    /// Returns the unit of a limit with such windows.
    pub fn unit_of(settings: &Settings) -> Unit {
        let unit = settings.calendar.map(Calendar::unit);
        UNITS.iter().find(|(_, known, _)| Some(*known) == unit).map_or(Unit::Unknown, |(unit, ..)| *unit)
    }

    /// Describes the limit for a reply.
    pub fn describe(&self) -> RateLimit {
        let Self { requests_per_unit, unit, .. } = *self;
        RateLimit { requests_per_unit, unit: unit.into(), name: Bytes::new() }
    }
}

/// Describes a limit for a reply. The unit is unknown if the limit has no time, or if its time is not one of the units.
pub fn describe(name: Bytes, limit: &Limit) -> RateLimit {
    let (credits, time_ns) = limit.rate().unwrap_or((limit.capacity(), 0));
    let fits = |(_, _, seconds): &(Unit, calendar::Unit, u64)| time_ns == seconds * NANOS_PER_SECOND;
    let unit = UNITS.into_iter().find(fits).map_or(Unit::Unknown, |(unit, ..)| unit);
    RateLimit { requests_per_unit: u32::try_from(credits).unwrap_or(u32::MAX), unit: unit.into(), name }
}

const DAY: u64 = 24 * 60 * 60;
/// The units, their windows of the clock, and their seconds, as in envoyproxy/ratelimit: a month has 30 days, a year 365.
const UNITS: [(Unit, calendar::Unit, u64); 7] = [
    (Unit::Second, calendar::Unit::Second, 1),
    (Unit::Minute, calendar::Unit::Minute, 60),
    (Unit::Hour, calendar::Unit::Hour, 60 * 60),
    (Unit::Day, calendar::Unit::Day, DAY),
    (Unit::Week, calendar::Unit::SevenDays, 7 * DAY),
    (Unit::Month, calendar::Unit::ThirtyDays, 30 * DAY),
    (Unit::Year, calendar::Unit::YearOfDays, 365 * DAY),
];

#[cfg(test)]
pub(super) mod tests;
