//! The actors of one rule that take the most, or that it denies the most.

use super::error::AdminError;
pub use super::names::RuleName;
use crate::Limiter;
pub use crate::heavy_hitters::{Order, Ranked, Ranking, Window};
use crate::refusal::Refusal;
use divvy_core::rules::{MatchPolicy, Scope};
use divvy_telemetry::metrics::Metric;

/// Number of actors, unless the client asks for another.
pub const DEFAULT_COUNT: usize = 10;
/// Maximum number of actors.
pub const MAX_COUNT: usize = 1_000;

/// A question for the actors of a rule.
#[derive(Debug, Clone, Copy)]
pub struct TopOf<'a> {
    /// The rule.
    pub rule: RuleName<'a>,
    /// The order of the actors.
    pub order: Order,
    /// The time over which they are counted.
    pub window: Window,
    /// Maximum number of actors, at most [`MAX_COUNT`].
    pub count: usize,
}

/// The actors of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleRanking {
    /// [`Rule::name`](divvy_core::rules::Rule::name).
    pub rule: String,
    /// Whether the rule is a canary, whose denials deny nothing.
    pub is_canary: bool,
    /// Whether only one actor is in scope. Then the total is its own.
    pub is_of_one_actor: bool,
    /// The actors.
    pub ranking: Ranking,
}

impl Limiter {
    /// Returns whether actors are ranked.
    pub fn ranks_actors(&self) -> bool {
        self.observers.top.is_some()
    }

    /// Ranks the actors of a rule, as this server has counted them.
    ///
    /// # Errors
    /// There is no such rule, it is out of scope, or nothing is counted.
    pub fn top(&self, of: TopOf<'_>, scope: &Scope) -> Result<RuleRanking, AdminError> {
        let policy = self.policy().ok_or(Refusal::NoRules)?;
        of.rule.check(Some(&policy), None, scope)?;
        let index = of.rule.index(&policy)?;
        let top = self.observers.top.as_ref().ok_or(AdminError::NoTop)?;
        let found = policy.rules.rules().get(index).zip(policy.tops.get(index));
        let (rule, of_rule) = found.ok_or(AdminError::NoTop)?;
        let own = scope.own_actor(rule);
        let count = of.count.clamp(1, MAX_COUNT);
        let only = own.as_deref().map(str::as_bytes);
        let ranking = top.rank(&of_rule.top, (of.order, of.window), self.now(), count, only);
        Ok(RuleRanking {
            rule: rule.name(index).into(),
            is_canary: rule.match_policy == MatchPolicy::Canary,
            is_of_one_actor: own.is_some(),
            ranking,
        })
    }

    /// Returns the metrics of the memory for ranking actors.
    pub(crate) fn top_metrics(&self) -> Vec<Metric> {
        let Some(top) = &self.observers.top else { return Vec::new() };
        let without_room = self.policy().map_or(0, |policy| policy.tops.without_room());
        vec![
            Metric::gauge("divvy_top_memory_bytes", "Bytes of --top-memory in use.", top.memory() as u64),
            Metric::gauge(
                "divvy_top_rules_without_room",
                "Rules whose actors are not ranked, because --top-memory is spent.",
                without_room as u64,
            ),
        ]
    }
}
