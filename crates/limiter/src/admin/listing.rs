//! Blocks of addresses and networks, for programs that enforce them elsewhere, such as firewalls.

use std::collections::HashSet;

use super::RuleName;
use crate::policy::Policy;
use crate::register::Register;
use crate::register::overrides::{ExceptionOwner, OwnerName};
use crate::store::ExceptionKind;
use divvy_core::clock::Timestamp;
use divvy_core::rules::{Address, MatchPolicy, Network, Rule};

/// The blocks that keep addresses of a field away: those of all rules for this field, and those of rules whose actors are this
/// field alone. Leaves out blocks that an allow covers.
pub(super) struct AddressBlocks<'a> {
    field: &'a str,
    register: &'a Register,
    policy: Option<&'a Policy>,
    /// The owners that have such blocks.
    owners: HashSet<String>,
}

impl<'a> AddressBlocks<'a> {
    pub fn new(field: &'a str, register: &'a Register, policy: Option<&'a Policy>) -> Self {
        let owners = register.memory.all_owners();
        let owners = owners.iter().map(|of| of.owner()).filter(|owner| has_addresses(owner, field, policy));
        let owners = owners.map(str::to_owned).collect();
        Self { field, register, policy, owners }
    }

    /// Returns whether the actor's block is one of them.
    pub fn contains(&self, owner: &str, actor: &str, now: Timestamp) -> bool {
        self.owners.contains(owner) && self.denies(owner, actor, now) == Some(true)
    }

    fn denies(&self, owner: &str, actor: &str, now: Timestamp) -> Option<bool> {
        let owner = ExceptionOwner::parse(owner)?;
        let network = match owner.of {
            OwnerName::Field(..) => Network::parse(&owner.shown(actor)?).ok()?,
            OwnerName::Rule(label) => actor_network(RuleName::Name(label).find(self.policy?).ok()?.0, actor)?,
        };
        let is_allowed = match owner.of {
            OwnerName::Field(..) => false,
            OwnerName::Rule(label) => {
                let allows = ExceptionOwner::of_rule(ExceptionKind::Allow, label).to_string();
                self.register.memory.find(&allows, actor, now).is_some()
            }
        };
        Some(!is_allowed && !self.register.allows_all_of(self.field, network, now))
    }
}

/// Returns whether the owner has blocks of values of this field.
fn has_addresses(owner: &str, field: &str, policy: Option<&Policy>) -> bool {
    let Some(ExceptionOwner { kind: ExceptionKind::Block, of }) = ExceptionOwner::parse(owner) else { return false };
    match of {
        OwnerName::Field(name, prefix) => name == field && prefix.is_some(),
        OwnerName::Rule(label) => policy.is_some_and(|policy| {
            let rule = RuleName::Name(label).find(policy);
            // Blocks by a canary deny no hit, and a bouncer must not, either.
            rule.is_ok_and(|(rule, _)| {
                rule.lasting_name() == Some(label)
                    && rule.actor_fields == [field]
                    && rule.match_policy != MatchPolicy::Canary
            })
        }),
    }
}

/// Returns the network that an actor of the rule is: an address in any notation, or a network of the lengths in the rule's
/// `actorPrefix`. Another text is no network, even if it is written like one, because a client may have chosen it.
fn actor_network(rule: &Rule, actor: &str) -> Option<Network> {
    if let Some(address) = Address::parse(actor) {
        return Some(Network::of(address, address.length()));
    }
    let lengths = rule.actor_prefix.as_ref()?.lengths;
    Network::parse(actor).ok().filter(|network| lengths.canonical(actor).as_deref() == Some(&*network.to_string()))
}

#[cfg(test)]
mod tests;
