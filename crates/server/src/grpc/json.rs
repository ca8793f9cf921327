//! Calls of Envoy's service in JSON, for clients without gRPC: the messages as protobuf's JSON mapping writes them
//! (<https://protobuf.dev/programming-guides/json/>). Names may be in camelCase or as in the proto file, an enum a name or a
//! number, and a number a string. Fields with their default are left out of answers.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use bytes::Bytes;
use prost_types::value::Kind;
use serde::Deserialize;
use serde::de::value::F64Deserializer;
use serde::de::{Deserializer, Error, Unexpected, Visitor};
use serde_json::{Map, Value};

use super::DECODED;
use super::envoy::{RateLimits, RpcCall};
use super::messages::envoy::config::core::v3::HeaderValue;
use super::messages::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use super::messages::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{Entry, RateLimitOverride};
use super::messages::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use super::messages::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use super::messages::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use super::messages::envoy::r#type::v3::RateLimitUnit;
use crate::net::auth::RequestOrigin;
use crate::net::memory::{self, RequestMemory};
use divvy_core::json::{self, Object, WholeNumber};

/// Length of the shortest descriptor with an entry (bytes).
const SHORTEST_DESCRIPTOR: usize = r#"{"entries":[{"key":"k"}]},"#.len();

/// An answer in JSON.
pub struct JsonAnswer {
    /// Whether the request is over a limit.
    pub is_over: bool,
    /// The message.
    pub json: Value,
}

impl RateLimits {
    /// Answers a call of Envoy's service whose message is in JSON.
    ///
    /// # Errors
    /// The text says why there is no answer.
    pub async fn answer_json(&self, body: &Bytes, origin: &RequestOrigin) -> Result<JsonAnswer, String> {
        let (bytes, most_descriptors) = (body.len().saturating_mul(DECODED), body.len() / SHORTEST_DESCRIPTOR);
        let memory = RequestMemory::wait_for_call(&self.memory, &self.limiter, bytes, most_descriptors).await;
        let request = read(body).map_err(|error| json::message(&error))?;
        let mut call = RpcCall { request, bytes: body.len(), origin, work: memory::take() };
        let answered = self.answer_hits(&mut call, memory).await;
        memory::give(call.work);
        let answer = answered.map_err(|status| status.message().to_owned())?;
        Ok(JsonAnswer { is_over: answer.overall_code() == Code::OverLimit, json: write(&answer) })
    }
}

fn read(body: &[u8]) -> serde_json::Result<RateLimitRequest> {
    serde_json::from_slice(body).map(|Object(request): Object<JsonRequest>| request.into())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonRequest {
    domain: Option<String>,
    descriptors: Option<Vec<Object<JsonDescriptor>>>,
    #[serde(rename = "hitsAddend", alias = "hits_addend")]
    hits_addend: Option<Number<u32>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonDescriptor {
    entries: Option<Vec<Object<JsonEntry>>>,
    limit: Option<Object<JsonOverride>>,
    #[serde(rename = "hitsAddend", alias = "hits_addend")]
    hits_addend: Option<Number<u64>>,
    #[serde(rename = "isNegativeHits", alias = "is_negative_hits")]
    is_negative_hits: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonEntry {
    key: Option<String>,
    value: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonOverride {
    #[serde(rename = "requestsPerUnit", alias = "requests_per_unit")]
    requests_per_unit: Option<Number<u32>>,
    unit: Option<JsonUnit>,
}

impl From<JsonRequest> for RateLimitRequest {
    fn from(request: JsonRequest) -> Self {
        Self {
            domain: request.domain.unwrap_or_default().into(),
            descriptors: messages(request.descriptors),
            hits_addend: request.hits_addend.map_or(0, |Number(number)| number),
        }
    }
}

impl From<JsonDescriptor> for RateLimitDescriptor {
    fn from(descriptor: JsonDescriptor) -> Self {
        Self {
            entries: messages(descriptor.entries),
            limit: descriptor.limit.map(|Object(limit)| limit.into()),
            hits_addend: descriptor.hits_addend.map(|Number(number)| number),
            is_negative_hits: descriptor.is_negative_hits.unwrap_or_default(),
        }
    }
}

impl From<JsonEntry> for Entry {
    fn from(JsonEntry { key, value }: JsonEntry) -> Self {
        Self { key: key.unwrap_or_default().into(), value: value.unwrap_or_default().into() }
    }
}

impl From<JsonOverride> for RateLimitOverride {
    fn from(JsonOverride { requests_per_unit, unit }: JsonOverride) -> Self {
        Self {
            requests_per_unit: requests_per_unit.map_or(0, |Number(number)| number),
            unit: unit.map_or(0, |JsonUnit(number)| number),
        }
    }
}

fn messages<T, M: From<T>>(list: Option<Vec<Object<T>>>) -> Vec<M> {
    list.unwrap_or_default().into_iter().map(|Object(one)| one.into()).collect()
}

/// A whole number, or a string with one.
struct Number<T>(T);

impl<'de, T: TryFrom<u64>> Deserialize<'de> for Number<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberVisitor(PhantomData))
    }
}

struct NumberVisitor<T>(PhantomData<T>);

impl<T: TryFrom<u64>> Visitor<'_> for NumberVisitor<T> {
    type Value = Number<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number of {} bits, or a string with one", size_of::<T>() * 8)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Number<T>, E> {
        let fitting = T::try_from(number).map(Number);
        fitting.map_err(|_| E::invalid_value(Unexpected::Unsigned(number), &self))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Number<T>, E> {
        let WholeNumber(number) = WholeNumber::deserialize(F64Deserializer::<E>::new(number))?;
        self.visit_u64(number)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Number<T>, E> {
        let whole = Some(text).filter(|text| text.trim() == *text).map(serde_json::from_str);
        match whole {
            Some(Ok(WholeNumber(number))) => self.visit_u64(number),
            _ => Err(E::invalid_value(Unexpected::Str(text), &self)),
        }
    }
}

/// The number of a unit.
struct JsonUnit(i32);

impl<'de> Deserialize<'de> for JsonUnit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UnitVisitor)
    }
}

struct UnitVisitor;

impl Visitor<'_> for UnitVisitor {
    type Value = JsonUnit;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name or the number of a unit")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<JsonUnit, E> {
        let fitting = i32::try_from(number).map(JsonUnit);
        fitting.map_err(|_| E::invalid_value(Unexpected::Unsigned(number), &self))
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<JsonUnit, E> {
        let known = RateLimitUnit::from_str_name(name).map(|unit| JsonUnit(unit.into()));
        known.ok_or_else(|| E::invalid_value(Unexpected::Str(name), &self))
    }
}

fn write(answer: &RateLimitResponse) -> Value {
    object([
        ("overallCode", named(answer.overall_code, |code| Some(Code::try_from(code).ok()?.as_str_name()))),
        ("statuses", list(&answer.statuses, status)),
        ("responseHeadersToAdd", list(&answer.response_headers_to_add, header)),
        ("requestHeadersToAdd", list(&answer.request_headers_to_add, header)),
        ("dynamicMetadata", answer.dynamic_metadata.as_ref().map(|metadata| fields(&metadata.fields))),
    ])
}

fn status(status: &DescriptorStatus) -> Value {
    object([
        ("code", named(status.code, |code| Some(Code::try_from(code).ok()?.as_str_name()))),
        ("currentLimit", status.current_limit.as_ref().map(limit)),
        ("limitRemaining", number(status.limit_remaining)),
        ("durationUntilReset", status.duration_until_reset.map(|duration| duration.to_string().into())),
    ])
}

fn limit(limit: &RateLimit) -> Value {
    object([
        ("requestsPerUnit", number(limit.requests_per_unit)),
        ("unit", named(limit.unit, |unit| Some(Unit::try_from(unit).ok()?.as_str_name()))),
        ("name", text(&limit.name)),
    ])
}

fn header(header: &HeaderValue) -> Value {
    object([("key", text(&header.key)), ("value", text(&header.value))])
}

/// Returns an object without the fields that have their default.
fn object<const N: usize>(fields: [(&str, Option<Value>); N]) -> Value {
    fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect::<Map<_, _>>().into()
}

fn list<T>(items: &[T], write: fn(&T) -> Value) -> Option<Value> {
    (!items.is_empty()).then(|| items.iter().map(write).collect())
}

fn number(number: u32) -> Option<Value> {
    (number != 0).then(|| number.into())
}

/// Returns the name of an enum's value; its number if it has none.
fn named(value: i32, name: fn(i32) -> Option<&'static str>) -> Option<Value> {
    (value != 0).then(|| name(value).map_or_else(|| value.into(), Into::into))
}

fn text(bytes: &[u8]) -> Option<Value> {
    (!bytes.is_empty()).then(|| String::from_utf8_lossy(bytes).into())
}

fn fields(fields: &BTreeMap<String, prost_types::Value>) -> Value {
    fields.iter().map(|(name, value)| (name.clone(), metadata(value))).collect::<Map<_, _>>().into()
}

fn metadata(value: &prost_types::Value) -> Value {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::BoolValue(flag)) => (*flag).into(),
        // A whole number has no fraction in JSON.
        Some(Kind::NumberValue(number)) if number.fract() == 0.0 && number.abs() < MAX_EXACT => (*number as i64).into(),
        Some(Kind::NumberValue(number)) => (*number).into(),
        Some(Kind::StringValue(text)) => text.as_str().into(),
        Some(Kind::ListValue(list)) => list.values.iter().map(metadata).collect(),
        Some(Kind::StructValue(inner)) => fields(&inner.fields),
    }
}

/// 2^53: below, a floating-point number has every whole number.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(key: &str, value: &str) -> Entry {
        Entry { key: key.to_owned().into(), value: value.to_owned().into() }
    }

    #[test]
    fn request_is_read_in_all_spellings() {
        let descriptor = RateLimitDescriptor {
            entries: vec![entry("user", "ann"), entry("api", "")],
            limit: Some(RateLimitOverride { requests_per_unit: 7, unit: RateLimitUnit::Hour.into() }),
            hits_addend: Some(u64::MAX),
            is_negative_hits: true,
        };
        let request = RateLimitRequest { domain: "edge".into(), descriptors: vec![descriptor], hits_addend: 3 };
        for body in [
            r#"{"domain":"edge","descriptors":[{"entries":[{"key":"user","value":"ann"},{"key":"api"}],
                "limit":{"requestsPerUnit":7,"unit":"HOUR"},"hitsAddend":"18446744073709551615","isNegativeHits":true}],
                "hitsAddend":3}"#,
            r#" {"hits_addend":"3","descriptors":[{"is_negative_hits":true,"hits_addend":18446744073709551615,
                "limit":{"unit":3,"requests_per_unit":"7e0"},
                "entries":[{"value":"ann","key":"user"},{"value":null,"key":"api"}]}],"domain":"edge"} "#,
        ] {
            assert_eq!(read(body.as_bytes()).unwrap(), request, "{body}");
        }
        for empty in ["{}", r#"{"domain":null,"descriptors":null,"hitsAddend":null}"#] {
            assert_eq!(read(empty.as_bytes()).unwrap(), RateLimitRequest::default(), "{empty}");
        }
        let own = read(br#"{"descriptors":[{"limit":{"unit":9,"requestsPerUnit":2.0},"hitsAddend":0}]}"#).unwrap();
        let limit = Some(RateLimitOverride { requests_per_unit: 2, unit: 9 });
        assert_eq!(own.descriptors, [RateLimitDescriptor { limit, hits_addend: Some(0), ..Default::default() }]);
    }

    #[test]
    fn other_requests_are_refused() {
        for body in [
            "",
            "}",
            "[]",
            "null",
            "{} {}",
            r#"{"domain":"a","domain":"b"}"#,
            r#"{"hitsAddend":1,"hits_addend":1}"#,
            r#"{"domain":1}"#,
            r#"{"domian":"a"}"#,
            r#"{"descriptors":{}}"#,
            r#"{"descriptors":[null]}"#,
            r#"{"descriptors":[["user"]]}"#,
            r#"{"descriptors":[{"entries":[{"name":"a"}]}]}"#,
            r#"{"descriptors":[{"limit":{"unit":"hour"}}]}"#,
            r#"{"descriptors":[{"limit":{"unit":"3"}}]}"#,
            r#"{"descriptors":[{"isNegativeHits":1}]}"#,
            r#"{"descriptors":[{"hitsAddend":{"value":1}}]}"#,
            r#"{"hitsAddend":4294967296}"#,
            r#"{"hitsAddend":-1}"#,
            r#"{"hitsAddend":1.5}"#,
            r#"{"hitsAddend":" 1"}"#,
            r#"{"hitsAddend":""}"#,
        ] {
            assert!(read(body.as_bytes()).is_err(), "{body}");
        }
        assert!(read(b"{\"domain\":\"\xff\"}").is_err());
    }

    #[test]
    fn answer_leaves_defaults_out() {
        assert_eq!(write(&RateLimitResponse::default()), json!({}));
        let status = DescriptorStatus {
            code: Code::OverLimit.into(),
            current_limit: Some(RateLimit { requests_per_unit: 2, unit: Unit::Hour.into(), name: "edge".into() }),
            limit_remaining: 1,
            duration_until_reset: Some(prost_types::Duration { seconds: 58, nanos: 0 }),
        };
        let unused = DescriptorStatus {
            code: Code::Ok.into(),
            current_limit: Some(RateLimit::default()),
            limit_remaining: 0,
            duration_until_reset: Some(prost_types::Duration::default()),
        };
        let value = |kind| prost_types::Value { kind: Some(kind) };
        let inner =
            [("whole", 3.0), ("half", 0.5)].map(|(name, number)| (name.to_owned(), value(Kind::NumberValue(number))));
        let flags = prost_types::ListValue { values: vec![value(Kind::BoolValue(false)), value(Kind::NullValue(0))] };
        let metadata = [
            ("inner".to_owned(), value(Kind::StructValue(prost_types::Struct { fields: inner.into() }))),
            ("list".to_owned(), value(Kind::ListValue(flags))),
            ("text".to_owned(), value(Kind::StringValue(String::new()))),
        ];
        let answer = RateLimitResponse {
            overall_code: Code::OverLimit.into(),
            statuses: vec![status, unused, DescriptorStatus { code: 7, ..Default::default() }],
            response_headers_to_add: vec![HeaderValue { key: "retry-after".into(), value: "58".into() }],
            request_headers_to_add: vec![HeaderValue { key: "a".into(), value: Bytes::new() }],
            dynamic_metadata: Some(prost_types::Struct { fields: metadata.into() }),
        };
        let expected = json!({
            "overallCode": "OVER_LIMIT",
            "statuses": [
                {
                    "code": "OVER_LIMIT",
                    "currentLimit": {"requestsPerUnit": 2, "unit": "HOUR", "name": "edge"},
                    "limitRemaining": 1,
                    "durationUntilReset": "58s",
                },
                {"code": "OK", "currentLimit": {}, "durationUntilReset": "0s"},
                {"code": 7},
            ],
            "responseHeadersToAdd": [{"key": "retry-after", "value": "58"}],
            "requestHeadersToAdd": [{"key": "a"}],
            "dynamicMetadata": {"inner": {"half": 0.5, "whole": 3}, "list": [false, null], "text": ""},
        });
        assert_eq!(write(&answer), expected);
    }
}
