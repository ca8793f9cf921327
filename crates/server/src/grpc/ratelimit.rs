//! Requests in a domain of envoyproxy/ratelimit's configuration, answered as ratelimit answers them.
//!
//! Each descriptor has a status of its own. The request is denied if a limit is exceeded that is no quota, or if there are quotas
//! and all of them are exceeded. A limit may replace others of the same request by their names.
//!
//! Sources: `src/service/ratelimit.go`, `src/limiter/base_limiter.go` and `src/utils/utilities.go` of
//! <https://github.com/envoyproxy/ratelimit>. `is_negative_hits`, which ratelimit ignores, gives credits back.

use std::collections::{BTreeMap, HashSet};

use bytes::Bytes;
use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};
use tonic::{Code as TonicCode, Status};

use super::descriptors::DescriptorReader;
use super::envoy::{OwnLimit, Work, duration, refuse};
use super::messages::envoy::config::core::v3::HeaderValue;
use super::messages::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use super::messages::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use super::messages::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use divvy_core::clock::Timestamp;
use divvy_core::config::ratelimit::compile::counter_name;
use divvy_core::config::ratelimit::options::{HeaderNames, Options};
use divvy_core::rules::descriptor::DescriptorKind;
use divvy_core::rules::{Descriptor, Operation, Rule, Settings};
use divvy_limiter::inspection::listed;
use divvy_limiter::{ActiveRules, Intent, PlanBuilder, Refusal, Report, Scope};
use divvy_telemetry::metrics::{Ratelimit, ServiceEvent};

/// The error of a request without descriptors.
const NO_DESCRIPTORS: &str = "rate limit descriptor list must not be empty";

/// The source of the answer to a descriptor.
#[derive(Debug, Clone, Copy)]
pub(super) enum LookedUp {
    /// The request of the plan with this index, by the domain's rules.
    Rule(usize),
    /// The request with this index, by the descriptor's own limit.
    Own(usize, OwnLimit),
    /// Nothing, because a limit of the request replaces it.
    Replaced,
}

/// Lists the limits of all domains that the scope may see, a line each, as ratelimit lists them.
pub(crate) fn list_limits(policy: &ActiveRules, scope: &Scope) -> String {
    let line = |(_, rule): (usize, &Rule)| {
        let limit = rule.descriptor.as_deref().filter(|limit| limit.kind != DescriptorKind::Nothing)?;
        // The first pair of each limit is its domain.
        let (_, domain) = rule.operation.first()?;
        let unit = OwnLimit::unit_of(&rule.settings).as_str_name();
        let requests = if limit.kind == DescriptorKind::Limit { rule.settings.credit_limit } else { 0 };
        let Descriptor { full_key, is_shadow, is_quota, .. } = limit;
        Some(format!(
            "{domain}.{full_key}: unit={unit} requests_per_unit={requests}, shadow_mode: {is_shadow}, quota_mode: {is_quota}\n"
        ))
    };
    listed(policy, scope).filter_map(line).collect()
}

/// A call while ratelimit's configuration is served.
#[derive(Debug, Clone, Copy)]
pub(super) struct Served {
    since: Timestamp,
    /// Whether the configuration has the domain.
    pub has_domain: bool,
}

impl Served {
    /// Looks a call's domain up; `None` if no configuration of ratelimit is served.
    pub fn of(builder: &PlanBuilder, domain: &[u8]) -> Option<Self> {
        let domains = builder.rules()?.domains()?;
        Some(Self { since: builder.plan().now(), has_domain: domains.has_domain(domain) })
    }

    /// Counts a call over gRPC that was answered at `now`.
    pub fn count_call(self, metrics: &Ratelimit, now: Timestamp) {
        metrics.event(ServiceEvent::TotalRequests);
        metrics.response_time.observe(now.since(self.since), 1);
    }

    /// Counts an error, or descriptors of an unknown domain.
    pub fn count_answer<T>(self, metrics: &Ratelimit, request: &RateLimitRequest, answer: &Result<T, Status>) {
        match answer.as_ref().map_err(Status::code) {
            Ok(_) => {}
            Err(TonicCode::Unavailable) => metrics.event(ServiceEvent::RedisError),
            Err(_) => metrics.event(ServiceEvent::ServiceError),
        }
        if !self.has_domain && !request.domain.is_empty() && !request.descriptors.is_empty() {
            metrics.domain_not_found(&lossy(&request.domain), request.descriptors.len());
        }
    }
}

/// Adds a request for each descriptor, in order.
///
/// # Errors
/// The request has no descriptors, or an invalid one.
pub(super) fn add(
    request: &RateLimitRequest,
    options: &Options,
    reader: &DescriptorReader,
    builder: &mut PlanBuilder,
    Work { operation, looked_up, .. }: &mut Work,
) -> Result<(), Status> {
    if request.descriptors.is_empty() {
        return Err(Status::invalid_argument(NO_DESCRIPTORS));
    }
    let replaced = replaced(request, reader, builder, operation)?;
    let mut added = 0;
    for (index, descriptor) in request.descriptors.iter().enumerate() {
        reader.read_entries(&request.domain, index, descriptor, operation)?;
        let cost = descriptor.hits_addend.unwrap_or(u64::from(request.hits_addend.max(1)));
        let intent = if descriptor.is_negative_hits { Intent::Leave } else { Intent::Enter };
        let own_limit = OwnLimit::of(index, descriptor)?;
        let is_replaced = own_limit.is_none() && !replaced.is_empty() && {
            let limit = builder.rules().and_then(|rules| rules.descriptor(operation));
            limit.is_some_and(|limit| limit.kind == DescriptorKind::Limit && replaced.contains(&limit.name))
        };
        looked_up.push(match own_limit {
            _ if is_replaced => LookedUp::Replaced,
            None => {
                builder.add(operation, intent, Some(cost));
                LookedUp::Rule(added)
            }
            Some(own) => {
                match (own.limit(), own.settings()) {
                    (Some(_), settings @ Settings { calendar: Some(calendar), .. }) => {
                        let domain = String::from_utf8_lossy(&request.domain);
                        let counter = counter_name(options, &domain, calendar.unit());
                        builder.add_tallied(operation, &counter, settings, intent, cost);
                    }
                    _ => builder.add_barred(operation, own.window_ns, intent),
                }
                if intent == Intent::Enter {
                    builder.note_own_hit(operation, cost);
                }
                LookedUp::Own(added, own)
            }
        });
        added += usize::from(!is_replaced);
    }
    Ok(())
}

/// Returns the names of the limits that limits of the request replace.
fn replaced(
    request: &RateLimitRequest,
    reader: &DescriptorReader,
    builder: &PlanBuilder,
    operation: &mut Operation,
) -> Result<HashSet<String>, Status> {
    let mut names = HashSet::new();
    let Some(rules) = builder.rules() else { return Ok(names) };
    if !rules.domains().is_some_and(|domains| domains.has_replacements(&request.domain)) {
        return Ok(names);
    }
    for (index, descriptor) in request.descriptors.iter().enumerate() {
        if descriptor.limit.is_none() {
            reader.read_entries(&request.domain, index, descriptor, operation)?;
            names.extend(rules.descriptor(operation).into_iter().flat_map(|limit| limit.replaces.iter().cloned()));
        }
    }
    Ok(names)
}

/// Returns the answer to applied requests.
///
/// # Errors
/// The store failed for a descriptor.
pub(super) fn respond(
    report: Report<'_>,
    request: &RateLimitRequest,
    looked_up: &[LookedUp],
    options: &Options,
    metrics: &Ratelimit,
) -> Result<RateLimitResponse, Status> {
    let mut statuses = Vec::with_capacity(looked_up.len());
    let mut passed = BTreeMap::new();
    let (mut is_over, mut quotas, mut quotas_over) = (false, 0, 0);
    // The status that headers describe: the last one that denies, or else the first with the fewest requests left.
    let (mut described, mut fewest) = (None, u32::MAX);
    for (place, looked_up) in looked_up.iter().enumerate() {
        let (status, limit) = status(report, *looked_up).map_err(refuse)?;
        let is_exceeded = status.code() == Code::OverLimit;
        if status.current_limit.is_some() && status.limit_remaining < fewest {
            (described, fewest) = (Some(place), status.limit_remaining);
        }
        if !limit.is_some_and(|limit| limit.kind == DescriptorKind::Unlimited) {
            let is_quota = options.quota_mode || limit.is_some_and(|limit| limit.is_quota);
            quotas += usize::from(is_quota);
            quotas_over += usize::from(is_quota && is_exceeded);
            if is_exceeded && !is_quota {
                (is_over, described, fewest) = (true, Some(place), 0);
            }
            if let Some(limit) = limit.filter(|_| !is_exceeded && options.dynamic_metadata) {
                merge(&mut passed, &limit.metadata);
            }
        }
        statuses.push(status);
    }
    let is_exceeded = is_over || (quotas > 0 && quotas == quotas_over);
    if is_exceeded && options.shadow_mode {
        metrics.event(ServiceEvent::GlobalShadowMode);
    }
    let is_denied = is_exceeded && !options.shadow_mode;
    let response_headers_to_add = match (&options.headers, described.and_then(|place| statuses.get(place))) {
        (Some(names), Some(status)) => headers(names, status),
        _ => Vec::new(),
    };
    Ok(RateLimitResponse {
        overall_code: if is_denied { Code::OverLimit } else { Code::Ok }.into(),
        statuses,
        response_headers_to_add,
        request_headers_to_add: Vec::new(),
        dynamic_metadata: options.dynamic_metadata.then(|| metadata(request, passed)),
    })
}

/// Returns the status of a descriptor, and its limit, if it has one.
fn status(report: Report<'_>, looked_up: LookedUp) -> Result<(DescriptorStatus, Option<&Descriptor>), Refusal> {
    let no_limit = DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() };
    let index = match looked_up {
        LookedUp::Replaced => return Ok((no_limit, None)),
        LookedUp::Own(index, own) => {
            let outcome = report.outcome(index)?;
            let reset_ns = reset(report, outcome.reset_ns, &own.settings());
            let status = limited(outcome.allowed, own.describe(), outcome.left, reset_ns);
            return Ok((status, None));
        }
        LookedUp::Rule(index) => index,
    };
    let standing = report.standing(index)?;
    let Some(rule) = report.rule(index) else { return Ok((no_limit, None)) };
    let code = if standing.verdict.allowed { Code::Ok } else { Code::OverLimit }.into();
    let Some(limit) = rule.descriptor.as_deref() else { return Ok((no_limit, None)) };
    match limit.kind {
        DescriptorKind::Nothing => return Ok((DescriptorStatus { code, ..no_limit }, None)),
        DescriptorKind::Unlimited => {
            return Ok((DescriptorStatus { code, limit_remaining: u32::MAX, ..no_limit }, Some(limit)));
        }
        DescriptorKind::Limit => {}
    }
    // The actor may have a limit of its own.
    let requests = standing.limit.map_or(rule.settings.credit_limit, |limit| limit.capacity());
    let current = RateLimit {
        requests_per_unit: u32::try_from(requests).unwrap_or(u32::MAX),
        unit: OwnLimit::unit_of(&rule.settings).into(),
        name: Bytes::copy_from_slice(limit.name.as_bytes()),
    };
    let reset_ns = reset(report, standing.verdict.reset_ns, &rule.settings);
    Ok((limited(standing.verdict.allowed, current, standing.verdict.credit, reset_ns), Some(limit)))
}

fn limited(is_allowed: bool, limit: RateLimit, left: u64, reset_ns: u64) -> DescriptorStatus {
    DescriptorStatus {
        code: if is_allowed { Code::Ok } else { Code::OverLimit }.into(),
        current_limit: Some(limit),
        limit_remaining: if is_allowed { u32::try_from(left).unwrap_or(u32::MAX) } else { 0 },
        duration_until_reset: Some(duration(reset_ns)),
    }
}

/// Returns the time until the window ends. An unused counter has none.
fn reset(report: Report<'_>, known_ns: u64, settings: &Settings) -> u64 {
    let window_ns = || {
        let [window, _] = settings.calendar?.windows(report.now());
        Some(window.ends.since(report.now()))
    };
    if known_ns > 0 { known_ns } else { window_ns().unwrap_or(0) }
}

/// Returns the headers that describe the limit of a status.
fn headers(names: &HeaderNames, status: &DescriptorStatus) -> Vec<HeaderValue> {
    let requests = status.current_limit.as_ref().map_or(0, |limit| limit.requests_per_unit);
    let seconds = status.duration_until_reset.as_ref().map_or(0, |duration| duration.seconds);
    let values = [
        (&names.limit, requests.to_string()),
        (&names.remaining, status.limit_remaining.to_string()),
        (&names.reset, seconds.to_string()),
    ];
    let header = |(key, value): (&String, String)| HeaderValue { key: key.clone().into(), value: value.into() };
    values.into_iter().map(header).collect()
}

/// Returns the request and the data of the limits that it passed, for the gateway's other filters.
fn metadata(request: &RateLimitRequest, passed: BTreeMap<String, Value>) -> Struct {
    let descriptors = request.descriptors.iter().map(|descriptor| object(describe(descriptor))).collect();
    let mut fields = BTreeMap::from([
        ("domain".to_owned(), string(lossy(&request.domain))),
        ("descriptors".to_owned(), list(descriptors)),
    ]);
    if request.hits_addend != 0 {
        fields.insert("hitsAddend".to_owned(), number(request.hits_addend.into()));
    }
    if !passed.is_empty() {
        fields.insert("metadata".to_owned(), object(passed));
    }
    Struct { fields }
}

fn describe(descriptor: &RateLimitDescriptor) -> BTreeMap<String, Value> {
    let entries = descriptor.entries.iter();
    let entries = entries.map(|entry| string(format!("{}={}", lossy(&entry.key), lossy(&entry.value))));
    let mut fields = BTreeMap::from([("entries".to_owned(), list(entries.collect()))]);
    if let Ok(Some(own)) = OwnLimit::of(0, descriptor) {
        let RateLimit { requests_per_unit, .. } = own.describe();
        let text = format!("requests_per_unit:{requests_per_unit} unit:{}", own.describe().unit().as_str_name());
        fields.insert("limit".to_owned(), string(text));
    }
    if let Some(hits) = descriptor.hits_addend {
        fields.insert("hitsAddend".to_owned(), number(hits as f64));
    }
    fields
}

/// Adds the data of a limit. Of two values for a name the first wins, unless both are structures, which are merged.
fn merge(into: &mut BTreeMap<String, Value>, from: &serde_json::Map<String, serde_json::Value>) {
    for (name, value) in from {
        match (into.get_mut(name).map(|known| &mut known.kind), value) {
            (Some(Some(Kind::StructValue(known))), serde_json::Value::Object(more)) => merge(&mut known.fields, more),
            (Some(_), _) => {}
            (None, value) => _ = into.insert(name.clone(), convert(value)),
        }
    }
}

fn convert(value: &serde_json::Value) -> Value {
    match value {
        serde_json::Value::Null => Value { kind: Some(Kind::NullValue(0)) },
        serde_json::Value::Bool(value) => Value { kind: Some(Kind::BoolValue(*value)) },
        serde_json::Value::Number(value) => number(value.as_f64().unwrap_or_default()),
        serde_json::Value::String(text) => string(text.clone()),
        serde_json::Value::Array(values) => list(values.iter().map(convert).collect()),
        serde_json::Value::Object(fields) => {
            object(fields.iter().map(|(name, value)| (name.clone(), convert(value))).collect())
        }
    }
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn string(text: String) -> Value {
    Value { kind: Some(Kind::StringValue(text)) }
}

fn number(number: f64) -> Value {
    Value { kind: Some(Kind::NumberValue(number)) }
}

fn list(values: Vec<Value>) -> Value {
    Value { kind: Some(Kind::ListValue(ListValue { values })) }
}

fn object(fields: BTreeMap<String, Value>) -> Value {
    Value { kind: Some(Kind::StructValue(Struct { fields })) }
}
