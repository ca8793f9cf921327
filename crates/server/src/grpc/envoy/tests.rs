//! Tests of descriptors, and of limits in replies.

use super::*;
use crate::grpc::messages::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use divvy_telemetry::metrics::Metrics;

pub fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entries =
        entries.iter().map(|(key, value)| Entry { key: (*key).to_owned().into(), value: (*value).to_owned().into() });
    RateLimitDescriptor { entries: entries.collect(), ..Default::default() }
}

fn request(hits_addend: u32, descriptor: RateLimitDescriptor) -> RateLimitRequest {
    RateLimitRequest { domain: "edge".into(), descriptors: vec![descriptor], hits_addend }
}

/// Returns a reader of operations of at most this many pairs.
pub fn reader(max_pairs: usize) -> DescriptorReader {
    DescriptorReader { max_pairs, metrics: Metrics::new() }
}

fn read(request: &RateLimitRequest) -> Result<(Operation, DescriptorAsk), String> {
    let mut operation = Operation::new();
    operation.set("left", "over");
    let read = reader(4).read_descriptor(request, 0, &request.descriptors[0], &mut operation);
    read.map(|ask| (operation, ask)).map_err(|status| status.message().to_owned())
}

#[test]
fn entries_and_domain_of_a_descriptor_form_the_operation() {
    let asked = request(0, descriptor(&[("path", "/a"), ("domain", "forged"), ("path", "/b")]));
    let (operation, ask) = read(&asked).unwrap();
    let pairs: Vec<_> = operation.iter().collect();
    assert_eq!(pairs, [("path", "/b"), ("domain", "edge")]);
    assert_eq!(ask, DescriptorAsk { cost: None, has_own_cost: false, gives_back: false, own_limit: None });
}

#[test]
fn invalid_utf_8_is_decoded_and_decided() {
    let entry = Entry { key: "user".into(), value: b"a\xff".as_slice().into() };
    let descriptor = RateLimitDescriptor { entries: vec![entry], ..Default::default() };
    let sent =
        RateLimitRequest { domain: b"edge\xff".as_slice().into(), descriptors: vec![descriptor], hits_addend: 0 };
    let received = RateLimitRequest::decode(sent.encode_to_vec().as_slice()).unwrap();
    let (operation, _) = read(&received).unwrap();
    assert_eq!(operation.iter().collect::<Vec<_>>(), [("user", "a\u{fffd}"), ("domain", "edge\u{fffd}")]);
}

#[test]
fn descriptor_may_have_its_own_cost_and_may_give_back() {
    let ask = |of_request, hits_addend, is_negative_hits| {
        let descriptor = RateLimitDescriptor { hits_addend, is_negative_hits, ..descriptor(&[("a", "b")]) };
        let ask = read(&request(of_request, descriptor)).unwrap().1;
        (ask.cost, ask.has_own_cost, ask.gives_back)
    };
    assert_eq!([ask(0, None, false), ask(5, None, true)], [(None, false, false), (Some(5), false, true)]);
    assert_eq!([ask(5, Some(2), false), ask(5, Some(0), false)], [(Some(2), true, false), (Some(0), true, false)]);
}

#[test]
fn limit_of_envoy_is_a_fixed_window() {
    let with = |requests_per_unit, unit: RateLimitUnit| {
        let limit = Some(RateLimitOverride { requests_per_unit, unit: unit.into() });
        let read = read(&request(0, RateLimitDescriptor { limit, ..descriptor(&[("a", "b")]) }));
        read.map(|(_, ask)| ask.own_limit.unwrap())
    };
    let hour = Limit::FixedWindow(FixedWindow::new(7, 3600 * NANOS_PER_SECOND).unwrap());
    let own = with(7, RateLimitUnit::Hour).unwrap();
    assert_eq!((own.limit(), own.describe()), (Some(hour), describe(Bytes::new(), &hour)));
    let own = with(0, RateLimitUnit::Month).unwrap();
    let described = RateLimit { unit: Unit::Month.into(), ..Default::default() };
    assert_eq!((own.limit(), own.describe()), (None, described));
    assert_eq!(with(7, RateLimitUnit::Unknown), Err("descriptors[0].limit has an unknown unit".to_owned()));
}

#[test]
fn errors_name_the_invalid_part() {
    let many = [("a", ""), ("b", ""), ("c", ""), ("d", "")];
    for (entries, error) in [
        (&[][..], "descriptors[0] has no entries"),
        (&[("a", ""), ("", "b")], "descriptors[0].entries[1].key is empty"),
        (&many, "descriptors[0] has 4 entries, but at most 3 are allowed"),
    ] {
        assert_eq!(read(&request(0, descriptor(entries))).unwrap_err(), error);
    }
}

#[test]
fn limit_has_a_unit_if_its_window_equals_one() {
    let limit_of = |credits, seconds: u64| {
        let limit = Limit::FixedWindow(FixedWindow::new(credits, seconds * NANOS_PER_SECOND).unwrap());
        let described = describe("api".into(), &limit);
        (described.requests_per_unit, described.unit())
    };
    assert_eq!(limit_of(5, 1), (5, Unit::Second));
    assert_eq!(limit_of(5, 7 * 86_400), (5, Unit::Week));
    assert_eq!(limit_of(5, 30 * 86_400), (5, Unit::Month));
    assert_eq!(limit_of(5, 90), (5, Unit::Unknown));
    assert_eq!(limit_of(u64::MAX, 60), (u32::MAX, Unit::Minute));
}
