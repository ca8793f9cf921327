//! Converts Kuadrant's policies `RateLimitPolicy` (kuadrant.io/v1) and `TokenRateLimitPolicy` (kuadrant.io/v1alpha1).
//!
//! Kuadrant translates a policy for two programs. The gateway evaluates the conditions (`when`), and decides which of several
//! policies for a route is in effect. It then asks about each limit with a descriptor: a key that stands for the limit, with the
//! value 1, and each counter's expression as a key with its value. The domain is the namespace and the name of the route. The rate
//! limit service gets limits of limitador about those descriptors. This makes the same limits, so that gateways need no change;
//! the rule for a limit that is not in effect matches no request.
//!
//! Limits of tokens differ only in their keys: gateways check them before a request, and report the tokens after it.
//!
//! The policies are defined in `api`, and their translation in `internal/controller/limitador_limits_reconciler.go` and
//! `ratelimit_workflow_helpers.go` of <https://github.com/Kuadrant/kuadrant-operator>.

use indexmap::IndexMap;
use ring::digest::{SHA256, digest};

use super::Problems;
use super::limitador::Limit;
use super::yaml::fields::{LeftOut, fields, items, number, required, text};
use super::yaml::{Content, Node, pairs};
use crate::rules::Pattern;
use crate::units::parse_duration;

/// The namespace of manifests without one.
const DEFAULT_NAMESPACE: &str = "default";
/// The routes of a gateway, in any namespace.
const EVERY_ROUTE: &str = "*/*";

/// Reads a policy whose limits have keys with this prefix. Reports what no rule can express.
pub fn read(document: &Node<'_>, prefix: &str, problems: &mut Problems) -> Vec<Limit> {
    let mut limits = Vec::new();
    let mut policy = match Policy::read(document, prefix, problems) {
        Ok(policy) => policy,
        Err(LeftOut { line, what, fix }) => {
            problems.error(line, format!("{what}: the policy is left out"), fix);
            return limits;
        }
    };
    for [name, limit] in std::mem::take(&mut policy.limits) {
        if let Err(LeftOut { line, what, fix }) = policy.add_limits(name, limit, &mut limits, problems) {
            problems.error(line, format!("{what}: the limit is left out"), fix);
        }
    }
    limits
}

struct Policy<'n, 'a> {
    prefix: &'n str,
    namespace: &'n str,
    name: &'n str,
    domain: Pattern,
    /// The names of the limits, and the limits.
    limits: Vec<&'n [Node<'a>; 2]>,
}

impl<'n, 'a> Policy<'n, 'a> {
    fn read(document: &'n Node<'a>, prefix: &'n str, problems: &mut Problems) -> Result<Self, LeftOut> {
        let metadata = required(document, "metadata", document.get("metadata"))?;
        let name = text(required(metadata, "name", metadata.get("name"))?)?;
        let namespace = match metadata.get("namespace") {
            Some(namespace) => text(namespace)?,
            None => {
                let what = format!("`metadata.namespace` is missing, and taken to be {DEFAULT_NAMESPACE:?}");
                problems.warning(metadata.line, what, "add it: it is a part of the names of limits in requests");
                DEFAULT_NAMESPACE
            }
        };
        let spec = required(document, "spec", document.get("spec"))?;
        let [target, defaults, overrides, own, _when] =
            fields(spec, ["targetRef", "defaults", "overrides", "limits", "when"])?;
        let target = required(spec, "targetRef", target)?;
        let route = text(required(target, "name", target.get("name"))?)?;
        let kind = required(target, "kind", target.get("kind"))?;
        let domain = match text(kind)? {
            "HTTPRoute" | "GRPCRoute" => Pattern::Literal(format!("{namespace}/{route}")),
            "Gateway" => Pattern::parse(EVERY_ROUTE),
            other => {
                let what = format!("the target is a {other}");
                return Err(LeftOut::new(kind.line, what, "policies are for an HTTPRoute, a GRPCRoute or a Gateway"));
            }
        };
        let mut limits = Vec::new();
        collect(own, &mut limits)?;
        for part in [defaults, overrides].into_iter().flatten() {
            let [_strategy, own, _when] = fields(part, ["strategy", "limits", "when"])?;
            collect(own, &mut limits)?;
        }
        Ok(Self { prefix, namespace, name, domain, limits })
    }

    /// Adds the limits of one of the policy: one for each of its rates.
    fn add_limits(
        &self,
        name: &Node<'_>,
        limit: &Node<'_>,
        limits: &mut Vec<Limit>,
        problems: &mut Problems,
    ) -> Result<(), LeftOut> {
        let name = text(name)?;
        let [rates, counters, _when] = fields(limit, ["rates", "counters", "when"])?;
        for rate in items(rates)? {
            let mut limit = match self.limit_of_rate(name, rate) {
                Ok(limit) => limit,
                Err(LeftOut { line, what, fix }) => {
                    problems.error(line, format!("{what}: the rate is left out"), fix);
                    continue;
                }
            };
            for counter in items(counters)? {
                let [expression] = fields(counter, ["expression"])?;
                limit.count_by(text(required(counter, "expression", expression)?)?.to_owned());
            }
            limit.check_keys()?;
            limits.push(limit);
        }
        Ok(())
    }

    fn limit_of_rate(&self, name: &str, rate: &Node<'_>) -> Result<Limit, LeftOut> {
        let [limit, window] = fields(rate, ["limit", "window"])?;
        let window = required(rate, "window", window)?;
        let length = text(window)?;
        let fix = "write hours, minutes and seconds: `1h30m`";
        Ok(Limit {
            line: rate.line,
            namespace: self.domain.clone(),
            keys: IndexMap::from([(self.key(name), vec![Pattern::Literal("1".to_owned())])]),
            variables: Vec::new(),
            max_value: number(required(rate, "limit", limit)?)?,
            window: parse_duration(length)
                .ok_or_else(|| LeftOut::new(window.line, format!("{length:?} is no time"), fix))?,
            name: format!("{}-{name}", self.name),
        })
    }

    /// Returns the key of a limit in requests. Its end tells apart limits whose names have the same letters.
    fn key(&self, name: &str) -> String {
        let letters: String = name.chars().map(|c| if c.is_alphanumeric() || c == '_' { c } else { '_' }).collect();
        let whole = digest(&SHA256, format!("{}/{}/{name}", self.namespace, self.name).as_bytes());
        let hash: String = whole.as_ref().iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        format!("{}.{letters}__{hash}", self.prefix)
    }
}

fn collect<'n, 'a>(limits: Option<&'n Node<'a>>, found: &mut Vec<&'n [Node<'a>; 2]>) -> Result<(), LeftOut> {
    match limits.map(|limits| (limits.line, limits.content())) {
        None => Ok(()),
        Some((_, Content::Mapping(limits))) => {
            found.extend(pairs(limits));
            Ok(())
        }
        Some((line, _)) => Err(LeftOut::new(line, "`limits` is not a mapping", "its keys are the names of the limits")),
    }
}

#[cfg(test)]
mod tests;
