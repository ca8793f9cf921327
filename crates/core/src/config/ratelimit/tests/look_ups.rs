//! The look-ups of ratelimit's own tests of its configuration: files, requests, and the limits that they find.

use super::*;
use crate::config::ratelimit::compile::compile_alone;
use crate::config::ratelimit::model::Domains;
use crate::config::ratelimit::options::Options;
use crate::rules::descriptor::DescriptorKind;
use crate::rules::{ActorFields, Operation, Overrun, RuleSet, Scratch, operation};

fn rules(files: &[&str], merges: bool) -> RuleSet {
    let (mut domains, mut problems) = (Domains::new(merges), Problems::new("a.yaml"));
    files.iter().for_each(|text| domains.add_text(text, &mut problems));
    assert!(!problems.has_errors(), "{problems:?}");
    compile_alone(&domains, &Options::default()).unwrap()
}

/// Returns the limit that a request to the domain `test` finds, as `10/minute FULLKEY (NAME)`, and its counter.
fn look_up(rules: &RuleSet, request: &str) -> (String, String) {
    let mut asked = Operation::new();
    asked.push("domain", "test");
    operation::pairs(request).map(Result::unwrap).for_each(|(key, value)| asked.push(key, value));
    let mut scratch = Scratch::default();
    let (_, rule) = rules.matches(&asked, &mut scratch).next().unwrap();
    let limit = rule.descriptor.as_ref().unwrap();
    let mut counter = Vec::new();
    ActorFields::of(rule).write(&asked, &mut counter);
    let mut found = match limit.kind {
        DescriptorKind::Nothing => return ("none".to_owned(), String::new()),
        DescriptorKind::Unlimited => "unlimited".to_owned(),
        DescriptorKind::Limit => {
            format!("{}/{}", rule.settings.credit_limit, rule.settings.calendar.unwrap().unit().name())
        }
    };
    found += &format!(" {}", limit.full_key);
    if !limit.name.is_empty() {
        found += &format!(" ({})", limit.name);
    }
    if rule.overrun == Overrun::Annotate {
        found += " shadow";
    }
    (found, String::from_utf8(counter).unwrap())
}

fn check(rules: &RuleSet, cases: &[(&str, &str)]) {
    for (request, expected) in cases {
        assert_eq!(look_up(rules, request).0, *expected, "{request}");
    }
}

const BASIC: &str = "domain: test
descriptors:
- key: key1
  value: value1
  descriptors:
  - {key: subkey1, rate_limit: {unit: second, requests_per_unit: 5}}
  - {key: subkey1, value: subvalue1, rate_limit: {unit: second, requests_per_unit: 10}}
- {key: key2, rate_limit: {unit: minute, requests_per_unit: 20}}
- {key: key2, value: value2, rate_limit: {unit: minute, requests_per_unit: 30}}
- {key: key2, value: value3}
- {key: key3, rate_limit: {unit: week, requests_per_unit: 1}}
- {key: key4, rate_limit: {unit: MONTH, requests_per_unit: 2, name: fourth}, shadow_mode: true}
- {key: key6, rate_limit: {unlimited: true}}
";

#[test]
fn exact_values_come_first_and_depths_must_agree() {
    check(
        &rules(&[BASIC], false),
        &[
            ("", "none"),
            ("key1=something", "none"),
            ("key1=value1", "none"),
            ("key2=value2 subkey=subvalue", "none"),
            ("key1=value1 subkey1=something", "5/second key1_value1.subkey1"),
            ("key1=value1 subkey1=subvalue1", "10/second key1_value1.subkey1_subvalue1"),
            ("key2=something", "20/minute key2"),
            ("key2=value2", "30/minute key2_value2"),
            ("key2=value3", "none"),
            ("key3=foo", "1/7-days key3"),
            ("key4=foo", "2/30-days key4 (fourth) shadow"),
            ("key6=foo", "unlimited key6"),
        ],
    );
}

#[test]
fn merged_domain_has_the_descriptors_of_all_files() {
    let file = |key: &str, requests: u32| {
        format!(
            "domain: test\ndescriptors: [{{key: {key}, rate_limit: {{unit: day, requests_per_unit: {requests}}}}}]\n"
        )
    };
    let rules = rules(&[&file("key1", 10), &file("key2", 20)], true);
    check(&rules, &[("key1=a", "10/day key1"), ("key2=a", "20/day key2"), ("key3=a", "none")]);
}

#[test]
fn patterns_match_at_each_level() {
    let rules = rules(
        &["domain: test
descriptors:
- {key: noval, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: wild, value: foo*, rate_limit: {unit: hour, requests_per_unit: 2}}
- {key: nowild, value: foo, rate_limit: {unit: hour, requests_per_unit: 3}}
- {key: mid, value: bar*b, rate_limit: {unit: hour, requests_per_unit: 4}}
- {key: many, value: foo*bar*baz, rate_limit: {unit: hour, requests_per_unit: 5}}
- key: nested
  value: goo*
  descriptors:
  - {key: wild, value: foo*, rate_limit: {unit: hour, requests_per_unit: 6}}
"],
        false,
    );
    check(
        &rules,
        &[
            ("noval=a", "1/hour noval"),
            ("wild=foo1", "2/hour wild_foo*"),
            ("wild=foo", "2/hour wild_foo*"),
            ("wild=bar", "none"),
            ("nowild=foo1", "none"),
            ("mid=barab", "4/hour mid_bar*b"),
            ("mid=barb", "4/hour mid_bar*b"),
            ("mid=bara", "none"),
            ("mid=xbarb", "none"),
            ("many=foo123bar456baz", "5/hour many_foo*bar*baz"),
            ("many=foobarbaz", "5/hour many_foo*bar*baz"),
            ("many=foo123baz", "none"),
            ("many=bar456baz", "none"),
            ("nested=goo2 wild=foo2", "6/hour nested_goo*.wild_foo*"),
            ("nested=bar wild=foo2", "none"),
        ],
    );
}

#[test]
fn shared_thresholds_replace_the_values_of_their_level_in_counters() {
    let rules = rules(
        &["domain: test
descriptors:
- {key: files, value: files/*, share_threshold: true, rate_limit: {unit: hour, requests_per_unit: 10}}
- {key: apart, value: files/*, rate_limit: {unit: hour, requests_per_unit: 10}}
- key: route
  value: /api*v1
  share_threshold: true
  descriptors:
  - {key: method, rate_limit: {unit: hour, requests_per_unit: 60}}
  - {key: method, value: get, rate_limit: {unit: hour, requests_per_unit: 20}}
- key: user
  value: a*
  descriptors:
  - {key: file, value: test*, share_threshold: true, rate_limit: {unit: hour, requests_per_unit: 100}}
  - {key: file, value: test1, rate_limit: {unit: hour, requests_per_unit: 50}}
"],
        false,
    );
    for (request, expected) in [
        ("files=files/a.pdf", "files=files/*"),
        ("apart=files/a.pdf", "apart=files/a.pdf"),
        ("route=/api/x/v1 method=put", "route=/api*v1 method=put"),
        ("route=/api/y/v1 method=get", "route=/api*v1 method=get"),
        ("route=/api/v2 method=get", ""),
        ("user=ann file=test7", "user=ann file=test*"),
        ("user=ann file=test1", "user=ann file=test1"),
    ] {
        assert_eq!(look_up(&rules, request).1, expected, "{request}");
    }
}
