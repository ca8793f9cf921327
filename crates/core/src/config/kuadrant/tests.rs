//! Policies and their rules.

use super::*;
use crate::config::limitador::tests::convert;

/// Returns a policy for a route with this `spec`, in block style.
fn policy(spec: &str) -> String {
    format!(
        "apiVersion: kuadrant.io/v1\nkind: RateLimitPolicy\nmetadata: {{name: rlpA, namespace: testNS}}\nspec:\n  targetRef: \
         {{group: gateway.networking.k8s.io, kind: HTTPRoute, name: toys}}\n{}",
        spec.lines().map(|line| format!("  {line}\n")).collect::<String>()
    )
}

/// The hashes of the first two are those in Kuadrant's own tests.
#[test]
fn keys_of_limits_are_kuadrants() {
    let key = |name: &str, limit: &str, prefix: &str| {
        let domain = Pattern::Any;
        Policy { prefix, namespace: "testNS", name, domain, limits: Vec::new() }.key(limit)
    };
    assert_eq!(key("rlpA", "foo", "limit"), "limit.foo__1da6e70a");
    assert_eq!(key("rlpB", "foo", "tokenlimit"), "tokenlimit.foo__2c1520b6");
    assert!(key("rlpA", "my/limit-0.é", "limit").starts_with("limit.my_limit_0_é__"));
}

#[test]
fn each_rate_becomes_a_rule_about_what_gateways_send() {
    let text = policy(
        "when:\n- predicate: request.path.matches('^/v[0-9]')\nlimits:\n  foo:\n    rates:\n    - {limit: 5, window: 10s}\n    - \
         limit: 100\n      window: 1h30m\n    when:\n    - predicate: request.method == 'POST'\n    counters:\n    - expression: \
         auth.identity.userid\n    - expression: request.headers['x-tier']\n  none: {rates: []}\n",
    );
    let header = "[domain=testNS/toys limit.foo__1da6e70a=1 auth.identity.userid=* request.headers['x-tier']=*]";
    let actor = "actorField=\"auth.identity.userid, request.headers['x-tier']\"";
    let rules = format!(
        "{header} creditLimit=5 resetSeconds=10 {actor} label=rlpA-foo at :11\n\
         {header} creditLimit=100 resetSeconds=5400 {actor} label=rlpA-foo-2 at :12\n"
    );
    assert_eq!(convert(&text), (rules, String::new()));
}

#[test]
fn limits_of_a_gateway_count_each_route() {
    for part in ["defaults:\n  strategy: merge\n", "overrides:\n"] {
        let spec = format!("{part}  when: []\n  limits:\n    foo:\n      rates: [{{limit: 5, window: 500ms}}]\n");
        let text = policy(&spec).replace("HTTPRoute", "Gateway");
        let rule =
            "[domain=*/* limit.foo__1da6e70a=1] creditLimit=5 resetSeconds=0.5 actorField=domain label=rlpA-foo at ";
        let (rules, report) = convert(&text);
        assert!(rules.starts_with(rule) && report.is_empty(), "{rules}{report}");
    }
}

#[test]
fn limits_of_tokens_have_their_own_keys() {
    let text = policy("limits: {foo: {rates: [{limit: 5, window: 1m}]}}");
    let text = text.replace("/v1", "/v1alpha1").replace("RateLimitPolicy", "TokenRateLimitPolicy");
    let rule = "[domain=testNS/toys tokenlimit.foo__1da6e70a=1] creditLimit=5 resetSeconds=60 label=rlpA-foo at :6\n";
    assert_eq!(convert(&text), (rule.into(), String::new()));
    // `kubectl get -o yaml` prints a list.
    let list = format!("kind: List\nitems:\n- {}", text.trim_end().replace('\n', "\n  "));
    assert_eq!(convert(&list), (rule.replace(":6", ":8"), String::new()));
}

#[test]
fn what_no_rule_can_say_is_left_out_with_its_line() {
    let rate = "{rates: [{limit: 1, window: 1s}]}";
    let good = policy(&format!("limits: {{a: {rate}}}"));
    for (text, report) in [
        (policy("limits:\n  a: {rates: [{limit: 1, window: soon}]}"), "7: \"soon\" is no time: the rate is left out"),
        (policy("limits:\n  a: {rates: [{limit: -1, window: 1s}]}"), "7: this is not a whole number: the rate is left"),
        (policy("limits:\n  a: {rates: [{limit: 1}]}"), "7: `window` is missing: the rate is left out"),
        (
            policy("limits:\n  a: {rates: [{limit: 1, duration: 1}]}"),
            "7: `duration` is an unknown key: the rate is left",
        ),
        (
            policy(&format!("limits: {{a: {}}}", rate.replace("]}", "], counters: [x]}"))),
            "6: this is not a mapping: the",
        ),
        (
            policy(&format!("limits: {{a: {}}}", rate.replace("]}", "], counters: [{expression: domain}]}"))),
            "6: the key \"domain\" is the domain of the request in a rule: the limit is left out",
        ),
        (policy("limits:\n- a"), "7: `limits` is not a mapping: the policy is left out"),
        (policy("rules: {}"), "6: `rules` is an unknown key: the policy is left out"),
        (good.replace("HTTPRoute", "TCPRoute"), "5: the target is a TCPRoute: the policy is left out"),
        (good.replace("name: rlpA, ", ""), "3: `name` is missing: the policy is left out"),
        (good.replace("/v1", "/v1beta3"), "1: this RateLimitPolicy of \"kuadrant.io/v1beta3\" is left out"),
        (good.replace("kuadrant.io", "gateway.networking.k8s.io"), "1: this RateLimitPolicy of \"gateway.networking"),
    ] {
        let (rules, problems) = convert(&text);
        assert!(rules.is_empty() && problems.starts_with(&format!("f.yaml:{report}")), "{text}\n{rules}{problems}");
    }
    let (rules, warning) = convert(&good.replace(", namespace: testNS", ""));
    assert!(rules.starts_with("[domain=default/toys limit.a__"), "{rules}");
    assert!(warning.starts_with("warning: f.yaml:3: `metadata.namespace` is missing"), "{warning}");
}
