//! The one place that says what a request does to a rule: its intent by the kind of rule.
//!
//! The function [`treatment`] is the table; docs/architecture.md shows it, as the test prints it. Buckets under the client's
//! own limit do not pass through here.

use crate::algorithm::{Ask, Limit, ReservationAsk};
use crate::rules::{MatchPolicy, Overrun, Quota, Rule};

/// The intent of a request about an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    /// Take credit.
    Hit,
    /// Report what a hit would be answered, without taking.
    Peek,
    /// Forget every counter that a hit would take from.
    Forget,
    /// Count what was used already, regardless of what is left.
    Charge,
    /// Give back, up to what was taken.
    Refund,
    /// A gateway's question before a request: take credit, and from each concurrency rule the lease that its `holdField` names.
    Enter,
    /// Same as [`Intent::Enter`]. If a rule with debt counts the cost, the cost has arisen already, and is charged.
    EnterOrCharge,
    /// Same as [`Intent::Refund`], and free the leases that [`Intent::Enter`] took. If it frees any, it gives back nothing else.
    Leave,
    /// Set credit aside.
    Reserve,
}

impl Intent {
    /// Whether rules are asked to allow it, and metrics count what they answer.
    pub fn is_hit(self) -> bool {
        matches!(self, Self::Hit | Self::Enter | Self::EnterOrCharge | Self::Reserve)
    }
}

/// The kind of a rule: all that the table knows about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuleKind {
    pub counter: Counter,
    pub has_debt: bool,
    /// `costField = none`: each request costs one.
    pub counts_requests: bool,
    pub is_canary: bool,
}

/// The unit that a rule counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counter {
    /// It always allows, or never.
    None,
    Credits,
    /// Single events. None can be over the limit.
    Log,
    /// Leases, which requests name by a field if `are_named`.
    Leases {
        are_named: bool,
    },
}

impl RuleKind {
    pub fn of(rule: &Rule) -> Self {
        let counter = match rule.quota {
            Quota::Always { .. } | Quota::Never => Counter::None,
            Quota::Limited(Limit::SlidingLog(_)) => Counter::Log,
            Quota::Limited(Limit::Concurrency(_)) => Counter::Leases { are_named: rule.hold_field.is_some() },
            Quota::Limited(_) => Counter::Credits,
        };
        Self {
            counter,
            has_debt: rule.overrun == Overrun::Debt,
            counts_requests: rule.counts_requests(),
            is_canary: rule.match_policy == MatchPolicy::Canary,
        }
    }

    /// Whether a gateway's cost settles what was used of the rule before.
    pub fn charges_on_enter(self) -> bool {
        self.has_debt && !self.counts_requests && !self.is_canary
    }

    /// Whether gateways take leases of the rule.
    pub fn leases_to_gateways(self) -> bool {
        self.counter == Counter::Leases { are_named: true }
    }
}

/// Modes that depend on all rules that a request matches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Modes {
    /// Of an [`Intent::EnterOrCharge`]: a matched rule [charges](RuleKind::charges_on_enter), so the request is about a cost that
    /// has arisen, and rules that count requests have counted it before.
    pub charges: bool,
    /// Of an [`Intent::Leave`]: a matched rule [leases to gateways](RuleKind::leases_to_gateways).
    pub frees_leases: bool,
}

/// The cost of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cost {
    /// The rule's cost, or the client's own.
    pub credits: u64,
    /// The client itself gave a cost of 0.
    pub is_none: bool,
}

/// The effect of a request on a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Treatment {
    /// The rule has no part in it. If no other rule answers, it answers this ask, which changes nothing.
    Absent(Ask),
    Ask(Ask),
    Forget,
    /// Set credits aside, or take the lease. If a lease of that name is held, it is kept.
    Reserve {
        credits: u64,
    },
    FreeLease,
    Refused(Objection),
}

/// Why a rule cannot do what is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Objection {
    /// A log cannot count more than its limit.
    LogCannotCharge,
    /// A log cannot set credits aside.
    LogCannotReserve,
    /// Only a reservation takes a lease.
    TakesLeases,
    /// Gateways have no field to name a lease by.
    NoHoldField,
}

/// The table.
pub fn treatment(intent: Intent, rule: RuleKind, cost: Cost, modes: Modes) -> Treatment {
    match rule.counter {
        Counter::Leases { are_named } => lease_treatment(intent, rule.is_canary, are_named, cost, modes),
        Counter::None | Counter::Credits | Counter::Log => credit_treatment(intent, rule, cost.credits, modes),
    }
}

/// Treatment of a rule that counts credits, or nothing.
fn credit_treatment(intent: Intent, rule: RuleKind, cost: u64, modes: Modes) -> Treatment {
    let RuleKind { counter, has_debt, counts_requests, is_canary } = rule;
    let has_no_part = counts_requests || modes.frees_leases || counter == Counter::None;
    match intent {
        Intent::Forget => Treatment::Forget,
        Intent::Peek if has_debt => Treatment::Ask(look(1)),
        Intent::Peek => Treatment::Ask(look(cost)),
        Intent::Charge if has_no_part => Treatment::Absent(Ask::Charge { cost: 0 }),
        // A canary counts what it can.
        Intent::Charge if counter == Counter::Log && !is_canary => Treatment::Refused(Objection::LogCannotCharge),
        Intent::Charge => Treatment::Ask(Ask::Charge { cost }),
        Intent::Refund | Intent::Leave if has_no_part => Treatment::Absent(Ask::Refund { cost: 0 }),
        Intent::Refund | Intent::Leave => Treatment::Ask(Ask::Refund { cost }),
        Intent::EnterOrCharge if modes.charges && counts_requests => Treatment::Absent(look(0)),
        Intent::EnterOrCharge if has_debt && !counts_requests && cost > 0 => Treatment::Ask(Ask::Charge { cost }),
        Intent::Hit | Intent::Enter | Intent::EnterOrCharge if has_debt && cost > 0 => {
            Treatment::Ask(Ask::Overdraw { cost })
        }
        Intent::Hit | Intent::Enter | Intent::EnterOrCharge => Treatment::Ask(hit(cost)),
        // Rules that count requests count this one, and canaries count what it asks for.
        Intent::Reserve if counts_requests || is_canary => Treatment::Ask(hit(cost)),
        Intent::Reserve if counter == Counter::Log => Treatment::Refused(Objection::LogCannotReserve),
        Intent::Reserve => Treatment::Reserve { credits: cost },
    }
}

/// Treatment of a concurrency rule. Costs do not concern it.
fn lease_treatment(intent: Intent, is_canary: bool, are_named: bool, cost: Cost, modes: Modes) -> Treatment {
    let absent = Treatment::Absent(Ask::Refund { cost: 0 });
    let take = Treatment::Reserve { credits: cost.credits };
    match intent {
        Intent::Forget => Treatment::Forget,
        Intent::Peek => Treatment::Ask(look(cost.credits)),
        Intent::Reserve => take,
        // A canary never keeps a request from passing.
        Intent::Hit if is_canary => absent,
        Intent::Hit if cost.is_none => Treatment::Ask(look(0)),
        Intent::Hit => Treatment::Refused(Objection::TakesLeases),
        Intent::Charge | Intent::Refund => absent,
        Intent::EnterOrCharge if modes.charges => absent,
        Intent::Enter | Intent::EnterOrCharge | Intent::Leave if is_canary && !are_named => absent,
        Intent::Enter | Intent::EnterOrCharge | Intent::Leave if !are_named => {
            Treatment::Refused(Objection::NoHoldField)
        }
        Intent::Leave => Treatment::FreeLease,
        Intent::Enter | Intent::EnterOrCharge if cost.credits == 0 => Treatment::Ask(look(0)),
        Intent::Enter | Intent::EnterOrCharge => take,
    }
}

/// A way to settle a reservation, or to keep it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settlement {
    /// Count what was used, and free the rest.
    Commit {
        /// Credits that were used.
        cost: u64,
    },
    /// Free all of it.
    Release,
    /// Keep it for `ttl_seconds` from now on; `None`: for the time that it was made for.
    Renew {
        /// Time to live from now on.
        ttl_seconds: Option<u32>,
    },
}

impl Settlement {
    /// Returns the ask for a record whose counter has this limit; `None` if nothing is ever reserved there. `is_in_force`: a rule in
    /// force has the counter.
    pub fn ask(self, limit: &Limit, is_in_force: bool) -> Option<ReservationAsk> {
        Some(match (self, limit) {
            (_, Limit::SlidingLog(_)) => return None,
            // Without the reservation, what was used is charged, if a rule counts it.
            (Self::Commit { cost }, _) => ReservationAsk::Commit { cost, charges: is_in_force },
            (Self::Release, _) => ReservationAsk::Release,
            // A lease lasts as long as its rule says.
            (Self::Renew { .. }, Limit::Concurrency(limit)) => {
                ReservationAsk::Renew { ttl_seconds: is_in_force.then_some(limit.ttl_seconds.get()) }
            }
            (Self::Renew { ttl_seconds }, _) => ReservationAsk::Renew { ttl_seconds },
        })
    }
}

/// The ask of a hit. A gateway that charges afterwards asks first with a cost of 0. To take nothing is always
/// possible, so the hit looks whether one credit is left instead.
pub fn hit(cost: u64) -> Ask {
    if cost == 0 { look(0) } else { Ask::Take { cost } }
}

/// The ask of a peek at such a hit.
fn look(cost: u64) -> Ask {
    Ask::Look { cost: cost.max(1) }
}

#[cfg(test)]
mod tests;
