//! Tests of descriptors, and of limits in replies.

use prost::Message;

use super::*;
use crate::grpc::messages::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;

pub fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entries =
        entries.iter().map(|(key, value)| Entry { key: (*key).to_owned().into(), value: (*value).to_owned().into() });
    RateLimitDescriptor { entries: entries.collect(), ..Default::default() }
}

fn request(hits_addend: u32, descriptor: RateLimitDescriptor) -> RateLimitRequest {
    RateLimitRequest { domain: "edge".into(), descriptors: vec![descriptor], hits_addend }
}

fn read(request: &RateLimitRequest) -> Result<(Operation, DescriptorAsk), InvalidRequest> {
    let mut operation = Operation::new();
    operation.set("left", "over");
    let ask = read_descriptor(request, 0, &request.descriptors[0], 4, &mut operation)?;
    Ok((operation, ask))
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
fn addend_of_a_descriptor_wins_and_may_be_0() {
    let cost = |of_request, of_descriptor| {
        let descriptor = RateLimitDescriptor { hits_addend: of_descriptor, ..descriptor(&[("a", "b")]) };
        read(&request(of_request, descriptor)).unwrap().1.cost
    };
    assert_eq!([cost(0, None), cost(5, None), cost(5, Some(2)), cost(5, Some(0))], [None, Some(5), Some(2), Some(0)]);
}

#[test]
fn descriptor_may_have_its_own_cost_and_may_give_back() {
    let terms = |hits_addend, is_negative_hits| {
        let descriptor = RateLimitDescriptor { hits_addend, is_negative_hits, ..descriptor(&[("a", "b")]) };
        let ask = read(&request(5, descriptor)).unwrap().1;
        (ask.has_own_cost, ask.gives_back)
    };
    assert_eq!(
        [terms(None, false), terms(Some(0), false), terms(None, true)],
        [(false, false), (true, false), (false, true)]
    );
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
    assert_eq!((own.limit(), own.describe()), (Some(hour), describe(String::new(), &hour)));
    let own = with(0, RateLimitUnit::Month).unwrap();
    let described = RateLimit { unit: Unit::Month.into(), ..Default::default() };
    assert_eq!((own.limit(), own.describe()), (None, described));
    assert_eq!(with(7, RateLimitUnit::Unknown), Err(InvalidRequest::new("descriptors[0].limit has an unknown unit")));
}

#[test]
fn errors_name_the_invalid_part() {
    let refused = |descriptor| read(&request(0, descriptor)).unwrap_err().to_string();
    assert_eq!(refused(descriptor(&[])), "descriptors[0] has no entries");
    assert_eq!(refused(descriptor(&[("a", ""), ("", "b")])), "descriptors[0].entries[1].key is empty");
    let many = [("a", ""), ("b", ""), ("c", ""), ("d", "")];
    assert_eq!(refused(descriptor(&many)), "descriptors[0] has 4 entries, but at most 3 are allowed");

    let mut empty = request(0, descriptor(&[("a", "b")]));
    assert_eq!(check(&empty), Ok(()));
    empty.descriptors.clear();
    assert!(check(&empty).unwrap_err().text.contains("descriptors is empty"));
    empty.domain.clear();
    assert_eq!(check(&empty), Err(InvalidRequest::no_domain()));
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
