use std::collections::BTreeMap;

use prost_types::ListValue;

use super::super::messages::RateLimitPolicy;
use super::*;
use divvy_core::config::ratelimit::model::{Rate, Unit as ModelUnit};

fn value(kind: Kind) -> Value {
    Value { kind: Some(kind) }
}

fn policy(unit: i32, requests: u32) -> Option<RateLimitPolicy> {
    Some(RateLimitPolicy { unit, requests_per_unit: requests, ..RateLimitPolicy::default() })
}

fn config(name: &str, domain: &str, descriptors: Vec<RateLimitDescriptor>) -> RateLimitConfig {
    RateLimitConfig { name: name.to_owned(), domain: domain.to_owned(), descriptors }
}

fn limited(key: &str, rate_limit: Option<RateLimitPolicy>) -> RateLimitDescriptor {
    RateLimitDescriptor { key: key.to_owned(), rate_limit, ..RateLimitDescriptor::default() }
}

fn packed(config: &RateLimitConfig) -> Any {
    Any { type_url: TYPE.to_owned(), value: config.encode_to_vec() }
}

fn response(resources: Vec<Any>) -> DiscoveryResponse {
    DiscoveryResponse { type_url: TYPE.to_owned(), resources, ..DiscoveryResponse::default() }
}

fn read_all(configs: &[RateLimitConfig]) -> LoadedDomains {
    read(&response(configs.iter().map(packed).collect()), false)
}

fn refused(response: &DiscoveryResponse) -> Vec<String> {
    let report = read(response, false).unwrap_err();
    report.errors.iter().map(ToString::to_string).collect()
}

#[test]
fn every_field_reaches_the_domain() {
    let metadata = Struct {
        fields: BTreeMap::from([
            ("null".to_owned(), value(Kind::NullValue(0))),
            ("number".to_owned(), value(Kind::NumberValue(1.5))),
            ("list".to_owned(), value(Kind::ListValue(ListValue { values: vec![value(Kind::BoolValue(true))] }))),
            ("struct".to_owned(), value(Kind::StructValue(Struct::default()))),
            ("text".to_owned(), value(Kind::StringValue("a".to_owned()))),
        ]),
    };
    let replaced = super::super::messages::RateLimitReplace { name: "other".to_owned() };
    let rate_limit = RateLimitPolicy { name: "own".to_owned(), replaces: vec![replaced], ..policy(4, 7).unwrap() };
    let leaf = RateLimitDescriptor {
        value: "v*".to_owned(),
        shadow_mode: true,
        detailed_metric: true,
        quota_mode: true,
        metadata: Some(metadata),
        ..limited("leaf", Some(rate_limit))
    };
    let unlimited = RateLimitPolicy { unlimited: true, ..RateLimitPolicy::default() };
    let root = RateLimitDescriptor { descriptors: vec![leaf], ..limited("root", Some(unlimited)) };
    let (domains, warnings) = read_all(&[config("a", "edge", vec![root])]).unwrap();
    assert_eq!(warnings, []);
    let root = &domains.get("edge").unwrap().entries[0];
    assert_eq!((root.key.as_str(), &root.value, root.place.line), ("root", &None, 0));
    assert_eq!(root.limit.as_ref().unwrap().rate, Rate::Unlimited);
    let leaf = &root.entries[0];
    assert_eq!((leaf.key.as_str(), leaf.value.as_deref(), leaf.detailed_metric.value), ("leaf", Some("v*"), true));
    let limit = leaf.limit.as_ref().unwrap();
    assert_eq!(limit.rate, Rate::PerUnit { requests: 7, unit: ModelUnit::Day });
    assert_eq!((limit.name.value.as_str(), limit.shadow_mode, limit.quota_mode.value), ("own", true, true));
    assert_eq!(limit.replaces[0].value, "other");
    let metadata = Json::from(limit.metadata.clone().unwrap().value);
    assert_eq!(metadata, serde_json::json!({"list": [true], "null": null, "number": 1.5, "struct": {}, "text": "a"}));
}

#[test]
fn numbers_of_units_are_those_of_the_definition() {
    use ModelUnit::{Day, Hour, Minute, Month, Second, Week, Year};
    for (number, unit) in (1..).zip([Second, Minute, Hour, Day, Month, Year, Week]) {
        let (domains, _) = read_all(&[config("a", "edge", vec![limited("k", policy(number, 1))])]).unwrap();
        let limit = domains.get("edge").unwrap().entries[0].limit.as_ref().unwrap();
        assert_eq!(limit.rate, Rate::PerUnit { requests: 1, unit }, "{number}");
    }
}

#[test]
fn all_problems_of_all_resources_are_reported_with_their_names() {
    let invalid_utf_8 = Any { type_url: TYPE.to_owned(), value: vec![0x0a, 1, 0xff] };
    let other = Any { type_url: "type.googleapis.com/other".to_owned(), value: Vec::new() };
    let configs = [
        config("first", "edge", vec![limited("k", policy(0, 1)), limited("", None)]),
        config("second", "edge", Vec::new()),
        config("", "", Vec::new()),
        config("in\nvalid", "x", vec![limited("k", policy(9, 1))]),
    ];
    let problems = refused(&response(configs.iter().map(packed).chain([invalid_utf_8, other]).collect()));
    let expected = [
        ("first: [domain=edge k=*] ", "unknown unit \"UNKNOWN\""),
        ("first: [domain=edge] ", "an entry has no `key`"),
        ("second: ", "the domain \"edge\" is in first, too"),
        ("resource 3: ", "`domain` is missing"),
        ("in\\nvalid: [domain=x k=*] ", "unknown unit \"9\""),
        ("resource 5: ", "it cannot be decoded"),
        ("resource 6: ", "it has the type \"type.googleapis.com/other\""),
    ];
    assert_eq!(problems.len(), expected.len(), "{problems:#?}");
    for (problem, (start, what)) in problems.iter().zip(expected) {
        assert!(problem.starts_with(start) && problem.contains(what), "{problem}");
    }
}

#[test]
fn several_resources_have_one_domain_only_if_domains_merge() {
    let configs = ["a", "b"].map(|name| packed(&config(name, "edge", vec![limited(name, policy(1, 1))])));
    let response = response(configs.to_vec());
    assert_eq!(refused(&response).len(), 1);
    let (domains, _) = read(&response, true).unwrap();
    assert_eq!(domains.get("edge").unwrap().entries.len(), 2);
}

#[test]
fn empty_response_has_no_domains_and_one_of_another_type_is_refused() {
    assert_eq!(read_all(&[]).unwrap().0.iter().count(), 0);
    let other = DiscoveryResponse { type_url: "other".to_owned(), ..response(Vec::new()) };
    assert_eq!(refused(&other), ["the response: it has the type \"other\"; send a RateLimitConfig"]);
}

#[test]
fn numbers_that_json_has_not_and_deep_nesting_are_refused() {
    for number in [f64::NAN, f64::INFINITY] {
        let fields = BTreeMap::from([("n".to_owned(), value(Kind::NumberValue(number)))]);
        let entry = RateLimitDescriptor { metadata: Some(Struct { fields }), ..limited("k", policy(1, 1)) };
        let problems = refused(&response(vec![packed(&config("a", "edge", vec![entry]))]));
        assert!(problems[0].contains("`metadata` has the number"), "{problems:?}");
    }
    let deep = |depth| {
        let nest = |entry, _| RateLimitDescriptor { descriptors: vec![entry], ..limited("k", None) };
        (0..depth).fold(limited("k", policy(1, 1)), nest)
    };
    assert!(read_all(&[config("a", "edge", vec![deep(90)])]).is_ok());
    let problems = refused(&response(vec![packed(&config("a", "edge", vec![deep(200)]))]));
    assert!(problems[0].contains("recursion limit"), "{problems:?}");
}
