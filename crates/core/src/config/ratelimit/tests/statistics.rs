//! The names of limits in statistics, for requests and the limits that they find.

use super::*;
use crate::config::Report;
use crate::config::ratelimit::compile::compile;
use crate::config::ratelimit::model::Domains;
use crate::config::ratelimit::options::Options;
use crate::rules::{ActorFields, Operation, RuleSet, operation, read_entries};

/// Returns the name in the statistics of the limit that a request to the domain `d` finds, without the domain. The request is `k=v` for
/// each entry.
fn statistic(descriptors: &str, request: &str) -> Option<String> {
    let (mut domains, mut problems) = (Domains::new(false), Problems::new("a.yaml"));
    domains.add_text(&format!("domain: d\ndescriptors: [{descriptors}]\n"), &mut problems);
    let report = Report::from(problems);
    assert!(report.errors.is_empty(), "{report}");
    let rules = RuleSet::default();
    let rules = rules.replace_domains(compile(&domains, &Options::default(), &rules).unwrap()).unwrap();
    let mut asked = Operation::new();
    asked.push("domain", "d");
    operation::pairs(request).map(Result::unwrap).for_each(|(key, value)| asked.push(key, value));
    let descriptor = rules.descriptor(&asked)?;
    let name = descriptor.statistic_of(asked.entries());
    assert!(descriptor.shows_values() || name == descriptor.statistic(), "{name}");
    // Statistics read the entries from the actor in the counter's key.
    let rule = rules.rules().iter().find(|rule| rule.descriptor.as_deref() == Some(descriptor)).unwrap();
    let mut actor = Vec::new();
    ActorFields::of(rule).write(&asked, &mut actor);
    assert_eq!(descriptor.statistic_of(read_entries(&actor)), name);
    Some(name.strip_prefix("d.").unwrap().to_owned())
}

fn check(descriptors: &str, cases: &[(&str, &str)]) {
    let descriptors = descriptors.replace("LIMIT", "rate_limit: {unit: hour, requests_per_unit: 9}");
    for (request, expected) in cases {
        assert_eq!(statistic(&descriptors, request).as_deref(), Some(*expected), "{descriptors} {request}");
    }
}

#[test]
fn names_are_configured_unless_a_level_asks_for_values() {
    check(
        "{key: plain, LIMIT}, {key: wild, value: go*, LIMIT}, {key: mid, value: a*z, LIMIT}, {key: many, value: a*b*c, LIMIT},
         {key: top, value: one, descriptors: [{key: wild, value: to*, LIMIT}]}",
        &[
            ("plain=1", "plain"),
            ("plain=2", "plain"),
            ("wild=gone", "wild_go*"),
            ("mid=az", "mid_a*z"),
            ("many=a1b2c", "many_a*b*c"),
            ("top=one wild=top", "top_one.wild_to*"),
        ],
    );
}

#[test]
fn detailed_names_have_all_values() {
    let nested = |of_top: bool, of_leaf: bool| {
        format!(
            "{{key: t, LIMIT, detailed_metric: {of_top}, descriptors: [{{key: l, LIMIT, detailed_metric: {of_leaf}}}]}}"
        )
    };
    check(&nested(true, false), &[("t=1", "t_1"), ("t=1 l=2", "t.l")]);
    check(&nested(false, false), &[("t=1", "t"), ("t=1 l=2", "t.l")]);
    check(&nested(true, true), &[("t=1 l=2", "t_1.l_2"), ("t= l=", "t_.l_")]);
    check(&nested(false, true), &[("t=1", "t"), ("t=1 l=2", "t_1.l_2")]);
    check(
        "{key: a, LIMIT, detailed_metric: true}, {key: a, value: known, LIMIT},
         {key: b, LIMIT, detailed_metric: true, descriptors: [
           {key: c, detailed_metric: true}, {key: c, value: known, LIMIT, detailed_metric: true}]}",
        &[("a=new", "a_new"), ("a=known", "a_known"), ("b=7", "b_7"), ("b=7 c=known", "b_7.c_known")],
    );
}

#[test]
fn levels_show_their_values() {
    let levels = |one: &str, two: &str, three: &str| {
        format!("{{key: a, {one}, descriptors: [{{key: b, {two}, descriptors: [{{key: c, LIMIT, {three}}}]}}]}}")
    };
    let (shown, not) = ("value_to_metric: true", "value_to_metric: false");
    check(
        &levels(shown, shown, not),
        &[("a=1 b=2 c=3", "a_1.b_2.c"), ("a= b=2 c=3", "a.b_2.c"), ("a=1 b= c=3", "a_1.b.c"), ("a= b= c=3", "a.b.c")],
    );
    check(&levels(shown, not, not), &[("a=1 b=2 c=3", "a_1.b.c")]);
    check(&levels(not, shown, not), &[("a=1 b=2 c=3", "a.b_2.c")]);
    check(&levels(not, not, not), &[("a=1 b=2 c=3", "a.b.c")]);
    check(&levels(shown, shown, "detailed_metric: true"), &[("a=1 b=2 c=3", "a_1.b_2.c_3")]);
    check(&levels(shown, "value: x, value_to_metric: true", not), &[("a=1 b=x c=3", "a_1.b_x.c")]);
    check(&levels(shown, "value: x, value_to_metric: false", not), &[("a=1 b=x c=3", "a_1.b_x.c")]);
    check(&levels(shown, "value: x*, value_to_metric: true", not), &[("a=1 b=xy c=3", "a_1.b_xy.c")]);
    check(&levels("value: x*", shown, not), &[("a=xy b=2 c=3", "a_x*.b_2.c")]);
    check("{key: a, value: x*y*, value_to_metric: true, LIMIT}", &[("a=x1y2", "a_x1y2")]);
    // The names of two levels are one text each.
    check("{key: a_b, value: c, value_to_metric: true, LIMIT}", &[("a=b_c", "a_b_c")]);
    check("{key: 'a*', value: c, LIMIT, detailed_metric: true}", &[("ab=c", "ab_c")]);
}

#[test]
fn shared_patterns_stand_for_values_everywhere() {
    let shared = "share_threshold: true";
    check(&format!("{{key: f, value: d/*, {shared}, LIMIT}}"), &[("f=d/a", "f_d/*"), ("f=d/b", "f_d/*")]);
    check(&format!("{{key: f, value: a*c*e, {shared}, value_to_metric: true, LIMIT}}"), &[("f=abcde", "f_a*c*e")]);
    let nested = |top: &str, leaf: &str| format!("{{key: a, {top}, descriptors: [{{key: b, LIMIT, {leaf}}}]}}");
    let wild = |value: &str, more: &str| format!("value: '{value}', {more}");
    let (a, b) = (wild("x*", shared), wild("y*z", shared));
    check(&nested(&a, "value_to_metric: false"), &[("a=x1 b=2", "a_x*.b")]);
    check(&nested(&a, "value_to_metric: true"), &[("a=x1 b=2", "a_x*.b_2")]);
    check(&nested(&a, "detailed_metric: true"), &[("a=x1 b=2", "a_x*.b_2"), ("a=x1 b=", "a_x*.b")]);
    check(&nested(&a, "value: 'y*'"), &[("a=x1 b=y2", "a_x*.b_y*")]);
    check(&nested("value: one", &b), &[("a=one b=y2z", "a_one.b_y*z")]);
    check(&nested(&a, &b), &[("a=x1 b=y2z", "a_x*.b_y*z"), ("a=x b=yz", "a_x*.b_y*z")]);
    check(
        &format!("{{key: f, value: t1, LIMIT}}, {{key: f, value: t*, {shared}, LIMIT}}"),
        &[("f=t1", "f_t1"), ("f=t12", "f_t*")],
    );
    check(
        &format!("{{key: a, {a}, descriptors: [{{key: b, {b}, descriptors: [{{key: c, LIMIT}}]}}]}}"),
        &[("a=x b=yz c=1", "a_x*.b_y*z.c")],
    );
}
