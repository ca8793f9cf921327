use super::*;
use crate::grpc::envoy::tests::{descriptor, reader};
use crate::grpc::messages::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use proptest::prelude::*;
use prost::Message;

fn read(reader: &DescriptorReader, domain: &str, descriptors: &[RateLimitDescriptor]) -> Result<Vec<String>, Status> {
    let mut read = Vec::new();
    reader.read((domain.as_bytes(), descriptors), &mut Operation::new(), |operation, _| {
        read.push(operation.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" "));
    })?;
    Ok(read)
}

#[test]
fn each_descriptor_is_an_operation_and_may_have_no_entries() {
    let reader = reader(3);
    let operations = read(&reader, "llm", &[descriptor(&[("a", "1"), ("domain", "forged")]), descriptor(&[])]);
    assert_eq!(operations.unwrap(), ["a=1 domain=llm", "domain=llm"]);
    assert_eq!(read(&reader, "llm", &[]).unwrap(), ["domain=llm"]);
}

#[test]
fn limits_of_gateways_refunds_and_too_many_entries_are_refused() {
    let good = descriptor(&[("a", "1")]);
    let limited = RateLimitDescriptor { limit: Some(RateLimitOverride::default()), ..good.clone() };
    let many = descriptor(&[("a", "1"), ("b", "1"), ("c", "1")]);
    let negative = RateLimitDescriptor { is_negative_hits: true, ..good.clone() };
    for (descriptors, error) in [
        (vec![good, limited], "descriptors[1].limit is set"),
        (vec![negative], "descriptors[0].is_negative_hits is set"),
        (vec![many], "descriptors[0] has 3 entries, but at most 2 are allowed"),
    ] {
        let found = read(&reader(3), "llm", &descriptors).unwrap_err();
        assert!(found.message().contains(error), "{found}");
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
        let reader = reader(3);
        if let Ok(request) = ReserveRequest::decode(&*bytes) {
            let _ = reader.read((&request.domain, &request.descriptors), &mut Operation::new(), |_, _| {});
            request.ttl.as_ref().map(ttl_seconds);
        }
        let entries: Vec<_> = entries.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        if let Ok(operations) = read(&reader, "llm", &vec![descriptor(&entries); times]) {
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
