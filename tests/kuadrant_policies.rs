//! Rules that `divvy convert` makes of Kuadrant's policies and limitador's limits. Requests as Kuadrant's gateways send them are
//! answered as limitador answers them.

use std::collections::HashMap;

use rand::rngs::Xoshiro256PlusPlus as Rng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use serde_json::json;

use crate::support::grpc::descriptor;
use crate::support::{Caller, Place, Server, done, seed};

const POLICIES: &str = r#"
apiVersion: kuadrant.io/v1
kind: RateLimitPolicy
metadata: {name: rlpA, namespace: testNS}
spec:
  targetRef: {group: gateway.networking.k8s.io, kind: HTTPRoute, name: toys}
  limits:
    foo:
      rates: [{limit: 9, window: 1h}, {limit: 14, window: 24h}]
      when: [{predicate: "request.url_path.startsWith('/toy')"}]
      counters: [{expression: auth.identity.userid}]
---
apiVersion: kuadrant.io/v1
kind: RateLimitPolicy
metadata: {name: rlpB, namespace: testNS}
spec:
  targetRef: {group: gateway.networking.k8s.io, kind: Gateway, name: edge}
  defaults:
    strategy: merge
    limits: {foo: {rates: [{limit: 25, window: 1h}]}}
---
apiVersion: kuadrant.io/v1alpha1
kind: TokenRateLimitPolicy
metadata: {name: rlpA, namespace: testNS}
spec:
  targetRef: {group: gateway.networking.k8s.io, kind: HTTPRoute, name: toys}
  limits:
    foo:
      rates: [{limit: 60, window: 1h}]
      counters: [{expression: auth.identity.userid}]
"#;

const LIMITS: &str = r#"
- {namespace: testNS/shop, name: gets, max_value: 20, seconds: 3600, conditions: ["descriptors[0]['m'] in ['GET', 'HEAD']"]}
- namespace: testNS/shop
  max_value: 8
  seconds: 7200
  conditions: ["descriptors[0].m == 'GET'", "descriptors[0].path.startsWith('/v1/')"]
  variables: ["descriptors[0].user"]
- {namespace: testNS/shop, max_value: 0, seconds: 60, conditions: ["m == 'TRACE'"], variables: []}
"#;

/// A limit as limitador applies it. No window ends during the test.
struct Limit {
    /// The domains. Each has its own limit.
    domains: &'static [&'static str],
    /// A test of each key, where `*` accepts every value that begins with what precedes it.
    conditions: &'static [(&'static str, &'static [&'static str])],
    variables: &'static [&'static str],
    max_value: u64,
}

const ROUTES: &[&str] = &["testNS/toys", "testNS/shop", "other/shop"];
const SHOP: &[&str] = &["testNS/shop"];
const TOYS: &[&str] = &["testNS/toys"];
const USER: &str = "auth.identity.userid";
/// The ends of the keys are those in Kuadrant's own tests.
const OF_ROUTE: &str = "limit.foo__1da6e70a";
const OF_GATEWAY: &str = "limit.foo__2c1520b6";
const OF_TOKENS: &str = "tokenlimit.foo__1da6e70a";

const MODEL: &[Limit] = &[
    Limit { domains: TOYS, conditions: &[(OF_ROUTE, &["1"])], variables: &[USER], max_value: 9 },
    Limit { domains: TOYS, conditions: &[(OF_ROUTE, &["1"])], variables: &[USER], max_value: 14 },
    Limit { domains: ROUTES, conditions: &[(OF_GATEWAY, &["1"])], variables: &[], max_value: 25 },
    Limit { domains: TOYS, conditions: &[(OF_TOKENS, &["1"])], variables: &[USER], max_value: 60 },
    Limit { domains: SHOP, conditions: &[("m", &["GET", "HEAD"])], variables: &[], max_value: 20 },
    Limit { domains: SHOP, conditions: &[("m", &["GET"]), ("path", &["/v1/*"])], variables: &["user"], max_value: 8 },
    Limit { domains: SHOP, conditions: &[("m", &["TRACE"])], variables: &[], max_value: 0 },
];

impl Limit {
    /// Returns the domain and the values of the counter for a descriptor; `None` if the limit does not apply to it.
    fn counter(&self, domain: &str, pairs: &HashMap<&str, &str>) -> Option<Vec<String>> {
        let accepts = |(key, accepted): &(&str, &[&str])| {
            pairs.get(key).is_some_and(|value| {
                accepted
                    .iter()
                    .any(|text| text.strip_suffix('*').map_or(text == value, |beginning| value.starts_with(beginning)))
            })
        };
        if !self.domains.contains(&domain) || !self.conditions.iter().all(accepts) {
            return None;
        }
        let values = self.variables.iter().map(|key| pairs.get(key).map(|value| (*value).to_owned()));
        [Some(domain.to_owned())].into_iter().chain(values).collect()
    }
}

/// The used credits, by limit and counter.
#[derive(Default)]
struct Limitador(HashMap<(usize, Vec<String>), u64>);

impl Limitador {
    fn answer(&mut self, method: &str, domain: &str, pairs: &str, hits_addend: u64) -> &'static str {
        let pairs: HashMap<&str, &str> = pairs.split(' ').filter_map(|pair| pair.split_once('=')).collect();
        let applied =
            MODEL.iter().enumerate().filter_map(|(index, limit)| Some((index, limit.counter(domain, &pairs)?)));
        let counters: Vec<_> = applied.collect();
        let delta = if method == CHECK { 1 } else { hits_addend.max(1) };
        let used = |counter| self.0.get(counter).copied().unwrap_or(0);
        let is_within = counters.iter().all(|counter| used(counter) + delta <= MODEL[counter.0].max_value);
        if method == REPORT || (method == HIT && is_within) {
            counters.into_iter().for_each(|counter| *self.0.entry(counter).or_default() += delta);
        }
        if is_within || method == REPORT { "OK" } else { "OVER_LIMIT" }
    }
}

const HIT: &str = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const CHECK: &str = "kuadrant.service.ratelimit.v1.RateLimitService/CheckRateLimit";
const REPORT: &str = "kuadrant.service.ratelimit.v1.RateLimitService/Report";

/// A gateway asks about a limit with one descriptor, and before and after a request about its tokens.
const DESCRIPTORS: &[&str] = &[
    "limit.foo__1da6e70a=1 auth.identity.userid=ann",
    "limit.foo__1da6e70a=1 auth.identity.userid=bob",
    "limit.foo__1da6e70a=1",
    "limit.foo__2c1520b6=1",
    "tokenlimit.foo__1da6e70a=1 auth.identity.userid=ann",
    "tokenlimit.foo__1da6e70a=1 auth.identity.userid=bob",
    // Earlier gateways ask about several limits at once.
    "limit.foo__1da6e70a=1 auth.identity.userid=ann limit.foo__2c1520b6=1",
    "limit.other__00000000=1",
    "m=GET path=/v1/x user=ann",
    "m=GET path=/v1/x user=bob",
    "m=GET path=/v2/x user=bob",
    "m=GET path=/v1/x",
    "m=HEAD",
    "m=POST",
    "m=TRACE",
];

#[test]
fn converted_limits_answer_gateways_as_limitador_does() {
    let place = Place::with("", &[("policies.yaml", POLICIES), ("limits.yaml", LIMITS)]);
    let mut rng = Rng::seed_from_u64(seed());
    for rules in ["made.ini", "made.json"].map(|name| place.path(name)) {
        done(&format!("convert {} {} {rules}", place.path("policies.yaml"), place.path("limits.yaml")));
        let server = Server::in_memory(&rules);
        let (mut caller, mut limitador) = (Caller::new(&server), Limitador::default());
        let mut codes: HashMap<(&str, &str), usize> = HashMap::new();
        for number in 0..500 {
            let method = *[HIT, HIT, CHECK, REPORT].choose(&mut rng).unwrap();
            let (domain, pairs) = (*ROUTES.choose(&mut rng).unwrap(), *DESCRIPTORS.choose(&mut rng).unwrap());
            let hits_addend = rng.random_range(0..4);
            // The labels of metrics are a second descriptor, which no limit is about.
            let descriptors = [descriptor(pairs), descriptor("user=ann")];
            let request = json!({ "domain": domain, "hits_addend": hits_addend, "descriptors": descriptors });
            let code = caller.call(method, &request)["overall_code"].as_str().unwrap().to_owned();
            let expected = limitador.answer(method, domain, pairs, hits_addend);
            assert_eq!(code, expected, "{number}: {method} {domain} {pairs} {hits_addend}");
            *codes.entry((method, expected)).or_default() += 1;
        }
        assert_eq!(codes.len(), 5, "{codes:?}");
    }
}
