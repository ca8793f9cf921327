//! Resources of a response as domains.

use prost::Message;
use prost_types::{Any, Struct, Value, value::Kind};
use serde_json::{Map, Number, Value as Json};

use super::LoadedDomains;
use super::messages::{
    DiscoveryResponse, RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit as Unit,
};
use divvy_core::config::ratelimit::model::Domains;
use divvy_core::config::ratelimit::raw::{At, Finding, RawDomain, RawEntry, RawLimit, Requests};
use divvy_core::config::{Problems, Report};
use divvy_core::units::shorten;

/// The type of the resources.
pub const TYPE: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";
/// Maximum length of a resource's name in a problem (bytes).
const MAX_NAME: usize = 256;
const FIX: &str = "send a RateLimitConfig";

/// Returns the domains in a response, and warnings about them. `merges` means that several resources may have one domain.
///
/// # Errors
/// All problems of all resources, if there is any.
pub fn read(response: &DiscoveryResponse, merges: bool) -> LoadedDomains {
    let (mut domains, mut report) = (Domains::new(merges), Report::default());
    let mut add = |problems: Problems| {
        let Report { errors, warnings, .. } = problems.into();
        report.errors.extend(errors);
        report.warnings.extend(warnings);
    };
    if response.type_url != TYPE {
        let mut problems = Problems::new("the response");
        problems.file_error(format!("it has the type {:?}", shorten(response.type_url.clone(), MAX_NAME)), FIX);
        add(problems);
    }
    for (index, resource) in response.resources.iter().enumerate() {
        let config = decode(resource);
        let name = config.as_ref().map(|config| config.name.as_str()).unwrap_or_default();
        let name = if name.is_empty() { format!("resource {}", index + 1) } else { name.escape_debug().to_string() };
        let mut problems = Problems::new(&shorten(name, MAX_NAME));
        match config {
            Ok(RateLimitConfig { domain, descriptors, .. }) => {
                let descriptors = descriptors.into_iter().map(entry).collect();
                domains.add(RawDomain { domain: at(domain), descriptors, ..RawDomain::default() }, &mut problems);
            }
            Err(what) => problems.file_error(what, FIX),
        }
        add(problems);
    }
    if report.errors.is_empty() { Ok((domains, report.warnings)) } else { Err(report) }
}

/// Decodes a resource.
///
/// # Errors
/// The reason why it is no configuration.
fn decode(resource: &Any) -> Result<RateLimitConfig, String> {
    // The part before the last slash is free.
    let name = |url: &str| url.rsplit('/').next().map(str::to_owned);
    if name(&resource.type_url) != name(TYPE) {
        return Err(format!("it has the type {:?}", shorten(resource.type_url.clone(), MAX_NAME)));
    }
    RateLimitConfig::decode(resource.value.as_slice()).map_err(|error| format!("it cannot be decoded: {error}"))
}

fn at<T>(value: T) -> At<T> {
    At { line: 0, value }
}

fn entry(given: RateLimitDescriptor) -> RawEntry {
    let mut findings = Vec::new();
    RawEntry {
        key: at(given.key),
        value: at(given.value),
        rate_limit: given.rate_limit.map(|policy| Box::new(limit(policy))),
        descriptors: given.descriptors.into_iter().map(entry).collect(),
        shadow_mode: at(given.shadow_mode),
        quota_mode: at(given.quota_mode),
        detailed_metric: at(given.detailed_metric),
        metadata: given.metadata.map(|metadata| at(fields(metadata, &mut findings))),
        findings,
        ..RawEntry::default()
    }
}

fn limit(given: RateLimitPolicy) -> RawLimit {
    let unit = Unit::try_from(given.unit).map_or_else(|_| given.unit.to_string(), |unit| unit.as_str_name().to_owned());
    RawLimit {
        unit: at(unit),
        requests_per_unit: at(Requests::Number(given.requests_per_unit)),
        unlimited: at(given.unlimited),
        name: at(given.name),
        replaces: given.replaces.into_iter().map(|replaced| at(replaced.name)).collect(),
        ..RawLimit::default()
    }
}

fn fields(given: Struct, findings: &mut Vec<Finding>) -> Map<String, Json> {
    given.fields.into_iter().map(|(name, value)| (name, json(value, findings))).collect()
}

fn json(given: Value, findings: &mut Vec<Finding>) -> Json {
    match given.kind {
        None | Some(Kind::NullValue(_)) => Json::Null,
        Some(Kind::BoolValue(value)) => value.into(),
        Some(Kind::StringValue(text)) => text.into(),
        Some(Kind::ListValue(list)) => list.values.into_iter().map(|value| json(value, findings)).collect(),
        Some(Kind::StructValue(value)) => fields(value, findings).into(),
        Some(Kind::NumberValue(number)) => Number::from_f64(number).map_or_else(
            || {
                let what = format!("`metadata` has the number {number}");
                findings.push(Finding { line: 0, is_error: true, what, fix: "send it as a text".to_owned() });
                Json::Null
            },
            Json::Number,
        ),
    }
}

#[cfg(test)]
mod tests;
