//! Envoy's Rate Limit Service, version 3: its messages, and the operations in them.
//!
//! The service itself is in `server`. A descriptor is one operation: its entries as pairs, and the request's `domain`.
//! Source: <https://www.envoyproxy.io/docs/envoy/latest/api-v3/service/ratelimit/v3/rls.proto>.

use std::num::NonZeroU64;

use self::messages::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use self::messages::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use self::messages::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use self::messages::envoy::service::ratelimit::v3::{RateLimitRequest, rate_limit_response};
use self::messages::envoy::r#type::v3::RateLimitUnit;
use divvy_core::algorithm::{FixedWindow, Limit};
use divvy_core::clock::NANOS_PER_SECOND;
use divvy_core::rules::Operation;
use divvy_core::rules::operation::DOMAIN;

/// The code that the files in proto/ compile to.
#[allow(clippy::all, clippy::allow_attributes_without_reason, missing_docs, reason = "generated")]
pub mod messages {
    include!(concat!(env!("OUT_DIR"), "/messages.rs"));
}

/// The same for gRPC's reflection: an encoded `FileDescriptorSet`.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// The domain is a pair, too.
const DOMAIN_PAIRS: usize = 1;

/// Why a request is invalid.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum InvalidRequest {
    /// The request's `domain` is empty.
    #[error("domain is empty: name the set of rules that the descriptors belong to")]
    NoDomain,
    /// The request has no descriptors.
    #[error("descriptors is empty: there is nothing to limit")]
    NoDescriptors,
    /// A descriptor has no entries.
    #[error("descriptors[{descriptor}] has no entries")]
    NoEntries {
        /// Index of the descriptor in the request.
        descriptor: usize,
    },
    /// An entry's key is empty.
    #[error("descriptors[{descriptor}].entries[{entry}].key is empty")]
    NoKey {
        /// Index of the descriptor in the request.
        descriptor: usize,
        /// Index of the entry in the descriptor.
        entry: usize,
    },
    /// A descriptor has more entries than a request may have pairs. The domain counts as a pair.
    #[error("descriptors[{descriptor}] has {entries} entries, but at most {max} are allowed")]
    TooManyEntries {
        /// Index of the descriptor in the request.
        descriptor: usize,
        /// Number of its entries.
        entries: usize,
        /// Maximum number of entries.
        max: usize,
    },
    /// The unit of a descriptor's own limit is missing or unknown. Weeks are not supported there.
    #[error("descriptors[{descriptor}].limit has an unknown unit")]
    Override {
        /// Index of the descriptor in the request.
        descriptor: usize,
    },
    /// A descriptor has its own limit, which Kuadrant's service does not accept.
    #[error(
        "descriptors[{descriptor}].limit is set, but this service counts by the server's rules alone: leave it out"
    )]
    OverrideOfRules {
        /// Index of the descriptor in the request.
        descriptor: usize,
    },
    /// A descriptor gives credits back, which Kuadrant's service does not support.
    #[error("descriptors[{descriptor}].is_negative_hits is set, but this service gives nothing back: leave it out")]
    GivesBack {
        /// Index of the descriptor in the request.
        descriptor: usize,
    },
    /// A call of Kuadrant's service has more descriptors than are decided together.
    #[error("descriptors has {descriptors} elements, but this service takes at most {max}")]
    TooManyDescriptors {
        /// Number of descriptors in the call.
        descriptors: usize,
        /// Maximum number of descriptors.
        max: usize,
    },
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

    fn read(given: &RateLimitOverride) -> Option<Self> {
        let unit = match RateLimitUnit::try_from(given.unit).ok()? {
            RateLimitUnit::Unknown => return None,
            RateLimitUnit::Second => Unit::Second,
            RateLimitUnit::Minute => Unit::Minute,
            RateLimitUnit::Hour => Unit::Hour,
            RateLimitUnit::Day => Unit::Day,
            RateLimitUnit::Month => Unit::Month,
            RateLimitUnit::Year => Unit::Year,
        };
        let window_ns = NonZeroU64::new(seconds(unit) * NANOS_PER_SECOND)?;
        Some(Self { requests_per_unit: given.requests_per_unit, unit, window_ns })
    }

    /// Returns the limit of its counter; `None` if it allows nothing.
    pub fn limit(&self) -> Option<Limit> {
        FixedWindow::new(self.requests_per_unit.into(), self.window_ns.get()).ok().map(Limit::FixedWindow)
    }

    /// Describes the limit for a reply.
    pub fn describe(&self) -> rate_limit_response::RateLimit {
        let Self { requests_per_unit, unit, .. } = *self;
        rate_limit_response::RateLimit { requests_per_unit, unit: unit.into(), name: String::new() }
    }
}

/// Checks that there is something to decide.
///
/// # Errors
/// The domain or the descriptors are missing.
pub fn check(request: &RateLimitRequest) -> Result<(), InvalidRequest> {
    if request.domain.is_empty() {
        return Err(InvalidRequest::NoDomain);
    }
    if request.descriptors.is_empty() {
        return Err(InvalidRequest::NoDescriptors);
    }
    Ok(())
}

/// Reads descriptor number `index` into `operation`. The last of a repeated key wins, and no entry replaces the domain.
///
/// Invalid UTF-8 is replaced by U+FFFD, so that a client that makes a gateway send it is limited, too.
///
/// # Errors
/// The descriptor is invalid, or has more than `max_pairs` pairs.
pub fn read_descriptor(
    request: &RateLimitRequest,
    index: usize,
    descriptor: &RateLimitDescriptor,
    max_pairs: usize,
    operation: &mut Operation,
) -> Result<DescriptorAsk, InvalidRequest> {
    if descriptor.entries.is_empty() {
        return Err(InvalidRequest::NoEntries { descriptor: index });
    }
    read_operation(&request.domain, index, descriptor, max_pairs, operation)?;
    let own_limit = match &descriptor.limit {
        None => None,
        Some(given) => Some(OwnLimit::read(given).ok_or(InvalidRequest::Override { descriptor: index })?),
    };
    // In the request, an unset field is 0.
    let of_request = (request.hits_addend > 0).then_some(u64::from(request.hits_addend));
    Ok(DescriptorAsk {
        cost: descriptor.hits_addend.or(of_request),
        has_own_cost: descriptor.hits_addend.is_some(),
        gives_back: descriptor.is_negative_hits,
        own_limit,
    })
}

/// Reads the entries of descriptor number `index` into `operation`, and the `domain`: see [`read_descriptor`].
///
/// # Errors
/// An entry has no key, or there are more than `max_pairs` pairs.
pub fn read_operation(
    domain: &[u8],
    index: usize,
    descriptor: &RateLimitDescriptor,
    max_pairs: usize,
    operation: &mut Operation,
) -> Result<(), InvalidRequest> {
    let entries = descriptor.entries.len();
    if entries + DOMAIN_PAIRS > max_pairs {
        let max = max_pairs.saturating_sub(DOMAIN_PAIRS);
        return Err(InvalidRequest::TooManyEntries { descriptor: index, entries, max });
    }
    operation.clear();
    for (place, entry) in descriptor.entries.iter().enumerate() {
        if entry.key.is_empty() {
            return Err(InvalidRequest::NoKey { descriptor: index, entry: place });
        }
        operation.set(&String::from_utf8_lossy(&entry.key), &String::from_utf8_lossy(&entry.value));
    }
    operation.set(DOMAIN, &String::from_utf8_lossy(domain));
    Ok(())
}

/// Describes a limit for a reply. The unit is unknown if the limit has no time, or if its time is not one of the units.
pub fn describe(name: String, limit: &Limit) -> rate_limit_response::RateLimit {
    let (credits, time_ns) = limit.rate().unwrap_or((limit.capacity(), 0));
    let fits = |unit: &Unit| time_ns == seconds(*unit) * NANOS_PER_SECOND;
    let unit = UNITS.into_iter().find(fits).unwrap_or(Unit::Unknown);
    rate_limit_response::RateLimit {
        requests_per_unit: u32::try_from(credits).unwrap_or(u32::MAX),
        unit: unit.into(),
        name,
    }
}

const UNITS: [Unit; 7] = [Unit::Second, Unit::Minute, Unit::Hour, Unit::Day, Unit::Week, Unit::Month, Unit::Year];

/// Returns the length of a unit as in envoyproxy/ratelimit: a month has 30 days, a year 365.
fn seconds(unit: Unit) -> u64 {
    const DAY: u64 = 24 * 60 * 60;
    match unit {
        Unit::Unknown => 0,
        Unit::Second => 1,
        Unit::Minute => 60,
        Unit::Hour => 60 * 60,
        Unit::Day => DAY,
        Unit::Week => 7 * DAY,
        Unit::Month => 30 * DAY,
        Unit::Year => 365 * DAY,
    }
}

#[cfg(test)]
mod tests;
