//! The messages of Kuadrant's rate limit service, version 1, which contain Envoy's.
//!
//! The service itself is in `server`. Sources: `limitador-server/proto/kuadrantrls.proto` in
//! <https://github.com/Kuadrant/limitador>, and
//! <https://github.com/Kuadrant/architecture/blob/main/rfcs/0021-token-rate-limit-reservations.md>.

use prost_types::Duration;

use super::envoy::messages::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use super::envoy::messages::envoy::service::ratelimit::v3::RateLimitRequest;
use super::envoy::messages::kuadrant::service::ratelimit::v1::{CommitRequest, ReserveRequest};
use super::envoy::{InvalidRequest, read_operation};
use divvy_core::clock::NANOS_PER_SECOND;
use divvy_core::rules::Operation;

/// Maximum number of descriptors in a call.
pub const MAX_DESCRIPTORS: usize = 16;

/// The descriptors of a call. Each is an operation.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    domain: &'a [u8],
    descriptors: &'a [RateLimitDescriptor],
}

impl Subject<'_> {
    /// Returns whether there are several operations.
    pub fn is_of_several(&self) -> bool {
        self.descriptors.len() > 1
    }

    /// Reads the operations, each with at most `max_pairs` pairs, into `operation`, and calls `take` for each.
    ///
    /// A descriptor may have no entries: gateways send those for requests that match none of their policies. A call without
    /// descriptors means the same as a call with one such descriptor: it is about the domain.
    ///
    /// # Errors
    /// The domain is missing, or a descriptor is invalid. `take` was called for the descriptors before it.
    pub fn read(
        &self,
        max_pairs: usize,
        operation: &mut Operation,
        mut take: impl FnMut(&Operation, &RateLimitDescriptor),
    ) -> Result<(), InvalidRequest> {
        if self.domain.is_empty() {
            return Err(InvalidRequest::NoDomain);
        }
        if self.descriptors.is_empty() {
            let none = RateLimitDescriptor::default();
            read_operation(self.domain, 0, &none, max_pairs, operation)?;
            take(operation, &none);
            return Ok(());
        }
        let (descriptors, max) = (self.descriptors.len(), MAX_DESCRIPTORS);
        if descriptors > max {
            return Err(InvalidRequest::TooManyDescriptors { descriptors, max });
        }
        for (index, descriptor) in self.descriptors.iter().enumerate() {
            if descriptor.limit.is_some() {
                return Err(InvalidRequest::OverrideOfRules { descriptor: index });
            }
            if descriptor.is_negative_hits {
                return Err(InvalidRequest::GivesBack { descriptor: index });
            }
            read_operation(self.domain, index, descriptor, max_pairs, operation)?;
            take(operation, descriptor);
        }
        Ok(())
    }
}

impl<'a> From<&'a RateLimitRequest> for Subject<'a> {
    fn from(RateLimitRequest { domain, descriptors, .. }: &'a RateLimitRequest) -> Self {
        Self { domain, descriptors }
    }
}

impl<'a> From<&'a ReserveRequest> for Subject<'a> {
    fn from(ReserveRequest { domain, descriptors, .. }: &'a ReserveRequest) -> Self {
        Self { domain, descriptors }
    }
}

impl<'a> From<&'a CommitRequest> for Subject<'a> {
    fn from(CommitRequest { domain, descriptors, .. }: &'a CommitRequest) -> Self {
        Self { domain, descriptors }
    }
}

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
mod tests {
    use super::*;
    use crate::protocol::envoy::messages::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
        Entry, RateLimitOverride,
    };
    use proptest::prelude::*;
    use prost::Message;

    fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
        let entry =
            |(key, value): &(&str, &str)| Entry { key: (*key).to_owned().into(), value: (*value).to_owned().into() };
        RateLimitDescriptor { entries: entries.iter().map(entry).collect(), ..Default::default() }
    }

    fn read(domain: &str, descriptors: &[RateLimitDescriptor]) -> Result<Vec<String>, InvalidRequest> {
        let mut read = Vec::new();
        let subject = Subject { domain: domain.as_bytes(), descriptors };
        subject.read(3, &mut Operation::new(), |operation, _| {
            read.push(operation.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" "));
        })?;
        Ok(read)
    }

    #[test]
    fn each_descriptor_is_an_operation_and_may_have_no_entries() {
        let operations = read("llm", &[descriptor(&[("a", "1"), ("domain", "forged")]), descriptor(&[])]);
        assert_eq!(operations.unwrap(), ["a=1 domain=llm", "domain=llm"]);
        assert_eq!(read("llm", &[]).unwrap(), ["domain=llm"]);
    }

    #[test]
    fn errors_name_the_invalid_part() {
        let good = descriptor(&[("a", "1")]);
        let limited = RateLimitDescriptor { limit: Some(RateLimitOverride::default()), ..good.clone() };
        let negative = RateLimitDescriptor { is_negative_hits: true, ..good.clone() };
        for (domain, descriptors, error) in [
            ("", vec![good.clone()], InvalidRequest::NoDomain),
            ("llm", vec![good.clone(), limited], InvalidRequest::OverrideOfRules { descriptor: 1 }),
            ("llm", vec![good.clone(); 17], InvalidRequest::TooManyDescriptors { descriptors: 17, max: 16 }),
            ("llm", vec![negative], InvalidRequest::GivesBack { descriptor: 0 }),
            ("llm", vec![descriptor(&[("a", "1"), ("", "2")])], InvalidRequest::NoKey { descriptor: 0, entry: 1 }),
            (
                "llm",
                vec![descriptor(&[("a", "1"), ("b", "2"), ("c", "3")])],
                InvalidRequest::TooManyEntries { descriptor: 0, entries: 3, max: 2 },
            ),
        ] {
            assert_eq!(read(domain, &descriptors), Err(error));
        }
    }

    #[test]
    fn report_costs_the_addend_of_its_descriptor_or_request_or_1() {
        let cost = |of_request, of_descriptor| {
            let descriptor = RateLimitDescriptor { hits_addend: of_descriptor, ..descriptor(&[]) };
            reported_cost(&RateLimitRequest { hits_addend: of_request, ..Default::default() }, &descriptor)
        };
        assert_eq!([cost(0, None), cost(5, None), cost(5, Some(2)), cost(5, Some(0))], [1, 5, 2, 0]);
    }

    #[test]
    fn ttl_is_whole_seconds_rounded_up() {
        let seconds = |seconds, nanos| ttl_seconds(&Duration { seconds, nanos });
        assert_eq!([seconds(30, 0), seconds(0, 1), seconds(1, 500_000_000), seconds(2, -1)], [30, 1, 2, 2]);
        assert_eq!([seconds(0, 0), seconds(-5, 0), seconds(i64::MIN, i32::MIN)], [0; 3]);
        assert_eq!([seconds(i64::MAX, i32::MAX), seconds(1 << 32, 0)], [u32::MAX; 2]);
    }

    proptest! {
        #[test]
        fn any_request_is_handled_without_a_panic(bytes: Vec<u8>, entries in prop::collection::vec((".{0,3}", ".{0,3}"), 0..4), times in 0..20_usize) {
            if let Ok(request) = ReserveRequest::decode(&*bytes) {
                let _ = Subject::from(&request).read(3, &mut Operation::new(), |_, _| {});
                request.ttl.as_ref().map(ttl_seconds);
            }
            let entries: Vec<_> = entries.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
            if let Ok(operations) = read("llm", &vec![descriptor(&entries); times]) {
                prop_assert!((1..=MAX_DESCRIPTORS).contains(&operations.len()));
                prop_assert!(operations.iter().all(|operation| operation.ends_with("domain=llm")));
            }
        }
    }

    #[test]
    fn id_of_any_bytes_is_decoded() {
        // Field 3, with two bytes that are not UTF-8.
        let request = CommitRequest::decode(&b"\x1a\x02\xff\xfe"[..]).unwrap();
        assert_eq!(&request.reservation_id[..], b"\xff\xfe");
    }
}
