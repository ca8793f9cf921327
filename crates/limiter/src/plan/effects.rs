//! The table of effects: the effect of a request on a rule, by intent and kind of rule.
//!
//! The function [`treatment`] is the table. A test prints it for docs/architecture.md. Buckets under a client's own
//! limit do not use it.

use crate::refusal::Refusal;
use divvy_core::algorithm::{Ask, Limit, ReservationAsk, Run};
use divvy_core::rules::{MatchPolicy, Overrun, Quota, Rule};

/// The intent of a request about an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    /// Takes credits.
    Hit,
    /// Returns the answer that a hit would get, and takes nothing.
    Peek,
    /// Forgets every counter that a hit would take from.
    Forget,
    /// Counts credits that were used already, regardless of how many are left.
    Charge,
    /// Gives credits back, at most as many as were taken.
    Refund,
    /// A gateway's question before a request. Takes credits, and takes the lease that a concurrency rule's `holdField`
    /// names.
    Enter,
    /// Same as [`Intent::Enter`], but if a rule with debt counts the cost, the cost has already arisen and is charged.
    EnterOrCharge,
    /// Same as [`Intent::Refund`], but also frees the leases that [`Intent::Enter`] took. If it frees any, it gives
    /// back nothing else.
    Leave,
    /// Sets credits aside.
    Reserve,
    /// Takes credits ahead, for the client to grant on its own.
    Share,
}

impl Intent {
    /// Returns whether rules decide about the request, and metrics count their answers.
    pub fn is_hit(self) -> bool {
        matches!(self, Self::Hit | Self::Enter | Self::EnterOrCharge | Self::Reserve)
    }
}

/// The kind of a rule: all properties that the table depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuleKind {
    pub counter: Counter,
    pub overrun: Overrun,
    pub is_in_quota_group: bool,
    /// Whether each request costs one credit (`costField = none`).
    pub counts_requests: bool,
    pub is_canary: bool,
}

/// The unit of a rule's counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counter {
    /// No counter: the rule always allows, or never.
    None,
    Credits,
    /// Single events, which can never exceed the limit.
    Log,
    /// Leases. If `are_named`, a field of the request names them.
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
            overrun: rule.overrun,
            is_in_quota_group: rule.quota_group.is_some(),
            counts_requests: rule.counts_requests(),
            is_canary: rule.match_policy == MatchPolicy::Canary,
        }
    }

    /// Returns whether a gateway's cost is charged to the rule as earlier usage.
    pub fn charges_on_enter(self) -> bool {
        self.overrun == Overrun::Debt && !self.counts_requests && !self.is_canary
    }

    /// Returns whether gateways take leases of the rule.
    pub fn leases_to_gateways(self) -> bool {
        self.counter == Counter::Leases { are_named: true }
    }
}

/// Modes that depend on all rules that a request matches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Modes {
    /// For an [`Intent::EnterOrCharge`], whether a matched rule [charges](RuleKind::charges_on_enter). Then the request
    /// is about a cost that has already arisen, and rules that count requests have already counted it.
    pub charges: bool,
    /// For an [`Intent::Leave`], whether a matched rule [leases to gateways](RuleKind::leases_to_gateways).
    pub frees_leases: bool,
}

/// The cost of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cost {
    /// Credits, by the rule or by the client.
    pub credits: u64,
    /// Whether the client itself gave a cost of 0.
    pub is_none: bool,
}

/// The effect of a request on a rule.
#[derive(Debug, Clone, Copy)]
pub enum Treatment {
    /// The rule has no part in the request. If no other rule answers, the answer is the outcome of this ask, which
    /// changes nothing.
    Absent(Ask),
    Ask(Ask),
    Forget,
    /// Sets credits aside, or takes the lease. If the lease is already held, it is kept.
    Reserve {
        credits: u64,
    },
    FreeLease,
    /// The rule does not support the request. The reason contains the rule's header.
    Refused(fn(String) -> Refusal),
}

/// Returns the effect of a request on a rule: the table.
pub fn treatment(intent: Intent, rule: RuleKind, cost: Cost, modes: Modes) -> Treatment {
    match rule.counter {
        Counter::Leases { are_named } => lease_treatment(intent, rule.is_canary, are_named, cost, modes),
        Counter::None | Counter::Credits | Counter::Log => credit_treatment(intent, rule, cost.credits, modes),
    }
}

/// Returns the effect on a rule that counts credits, or nothing.
fn credit_treatment(intent: Intent, rule: RuleKind, cost: u64, modes: Modes) -> Treatment {
    let RuleKind { counter, overrun, is_in_quota_group, counts_requests, is_canary } = rule;
    let has_debt = overrun == Overrun::Debt;
    let counts_denials = matches!(overrun, Overrun::Count | Overrun::Annotate);
    let has_no_part = counts_requests || modes.frees_leases || counter == Counter::None;
    match intent {
        Intent::Forget => Treatment::Forget,
        Intent::Peek if has_debt => Treatment::Ask(look(1)),
        // It changes nothing, and is allowed at the limit.
        Intent::Peek if counts_denials && cost == 0 => Treatment::Ask(Ask::Tally { cost }),
        Intent::Peek => Treatment::Ask(look(cost)),
        Intent::Charge if has_no_part => Treatment::Absent(Ask::Charge { cost: 0 }),
        // A canary counts as much as it can.
        Intent::Charge if counter == Counter::Log && !is_canary => Treatment::Refused(Refusal::CountsEvents),
        Intent::Charge => Treatment::Ask(Ask::Charge { cost }),
        Intent::Refund | Intent::Leave if has_no_part => Treatment::Absent(Ask::Refund { cost: 0 }),
        Intent::Refund | Intent::Leave => Treatment::Ask(Ask::Refund { cost }),
        Intent::EnterOrCharge if modes.charges && counts_requests => Treatment::Absent(look(0)),
        Intent::EnterOrCharge if has_debt && !counts_requests && cost > 0 => Treatment::Ask(Ask::Charge { cost }),
        Intent::Hit | Intent::Enter | Intent::EnterOrCharge if has_debt && cost > 0 => {
            Treatment::Ask(Ask::Overdraw { cost })
        }
        Intent::Hit | Intent::Enter | Intent::EnterOrCharge if counts_denials => Treatment::Ask(Ask::Tally { cost }),
        Intent::Hit | Intent::Enter | Intent::EnterOrCharge => Treatment::Ask(hit(cost)),
        // The rule alone must not deny it.
        Intent::Reserve if overrun == Overrun::Annotate || is_in_quota_group => Treatment::Ask(Ask::Tally { cost }),
        // Rules that count requests count this one. Canaries count its credits.
        Intent::Reserve if counts_requests || is_canary => Treatment::Ask(hit(cost)),
        Intent::Reserve if counter == Counter::Log => Treatment::Refused(Refusal::CountsEvents),
        Intent::Reserve => Treatment::Reserve { credits: cost },
        Intent::Share if is_canary => Treatment::Absent(Ask::Refund { cost: 0 }),
        Intent::Share if counter != Counter::Credits || overrun != Overrun::Refuse => {
            Treatment::Refused(Refusal::GivesNoShare)
        }
        Intent::Share => {
            Treatment::Ask(Ask::Share { cost: 0, extra: u32::try_from(cost).unwrap_or(u32::MAX), parts: PARTS })
        }
    }
}

/// Returns the effect on a concurrency rule, which does not depend on costs.
fn lease_treatment(intent: Intent, is_canary: bool, are_named: bool, cost: Cost, modes: Modes) -> Treatment {
    let absent = Treatment::Absent(Ask::Refund { cost: 0 });
    let take = Treatment::Reserve { credits: cost.credits };
    match intent {
        Intent::Forget => Treatment::Forget,
        Intent::Peek => Treatment::Ask(look(cost.credits)),
        Intent::Reserve => take,
        // A canary never denies a request.
        Intent::Hit | Intent::Share if is_canary => absent,
        Intent::Hit if cost.is_none => Treatment::Ask(look(0)),
        Intent::Hit => Treatment::Refused(Refusal::TakesLeases),
        Intent::Share => Treatment::Refused(Refusal::GivesNoShare),
        Intent::Charge | Intent::Refund => absent,
        Intent::EnterOrCharge if modes.charges => absent,
        Intent::Enter | Intent::EnterOrCharge | Intent::Leave if is_canary && !are_named => absent,
        Intent::Enter | Intent::EnterOrCharge | Intent::Leave if !are_named => Treatment::Refused(Refusal::NoHoldField),
        Intent::Leave => Treatment::FreeLease,
        Intent::Enter | Intent::EnterOrCharge if cost.credits == 0 => Treatment::Ask(look(0)),
        Intent::Enter | Intent::EnterOrCharge => take,
    }
}

/// A client's share is at most this part of what is left. Several clients and servers may take shares, and a client may die.
const PARTS: u16 = 8;

/// A settlement or a renewal of a reservation, or the end of a share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settlement {
    /// Counts the used credits, and frees the rest.
    Commit {
        /// Credits that were used.
        cost: u64,
    },
    /// Frees all credits.
    Release,
    /// Extends the reservation: it lasts `ttl_seconds` from now on, or its original TTL if that is `None`.
    Renew {
        /// New TTL.
        ttl_seconds: Option<u32>,
    },
    /// Gives back unused credits of a share. It takes effect once.
    Return {
        /// Credits to give back.
        credits: u64,
    },
}

impl Settlement {
    /// Returns the ask for a record whose counter has this limit. `None` if nothing is ever reserved there.
    /// `is_in_force` says whether a rule in force has the counter, and `run` which reservation of the name is meant.
    pub fn ask(self, limit: &Limit, is_in_force: bool, run: Option<Run>) -> Option<ReservationAsk> {
        Some(match (self, limit) {
            (_, Limit::SlidingLog(_)) | (Self::Return { .. }, _) => return None,
            // Without the reservation, the cost is charged, if a rule counts it.
            (Self::Commit { cost }, _) => ReservationAsk::Commit { cost, charges: is_in_force, run },
            (Self::Release, _) => ReservationAsk::Release { run },
            // A lease lasts as long as its rule says.
            (Self::Renew { .. }, Limit::Concurrency(limit)) => {
                ReservationAsk::Renew { ttl_seconds: is_in_force.then_some(limit.ttl_seconds.get()), run }
            }
            (Self::Renew { ttl_seconds }, _) => ReservationAsk::Renew { ttl_seconds, run },
        })
    }
}

/// Returns the ask of a hit. A gateway that charges afterwards first hits with a cost of 0. Taking nothing would always
/// be allowed, so such a hit checks whether one credit is left.
pub fn hit(cost: u64) -> Ask {
    if cost == 0 { look(0) } else { Ask::Take { cost } }
}

/// Returns the ask of a peek at such a hit.
fn look(cost: u64) -> Ask {
    Ask::Look { cost: cost.max(1) }
}

#[cfg(test)]
mod tests;
