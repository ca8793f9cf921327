//! Blocks of addresses and networks, for programs that enforce them elsewhere, such as firewalls.

use std::collections::HashSet;
use std::sync::Arc;

use super::error::AdminError;
use super::names::RuleName;
use crate::Limiter;
use crate::policy::Policy;
use crate::register::owner::{ALL_RULES, ExceptionOwner, OwnerName};
use crate::register::table::{Cursor, Listed};
use crate::store::{ExceptionChange, ExceptionKind};
use divvy_core::clock::Timestamp;
use divvy_core::rules::{Address, MatchPolicy, Network, Rule};

/// A block of an address or a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressBlock {
    /// The address or network.
    pub network: Network,
    /// The rule's label, or [`ALL_RULES`].
    pub rule: String,
    /// The reason that was given.
    pub reason: Option<Arc<str>>,
    /// Its end; `None` if it lasts until it is removed.
    pub ends: Option<Timestamp>,
}

/// A page of blocks, in no particular order. Even an empty page need not be the last one.
#[derive(Debug, Clone, Default)]
pub struct AddressBlockPage {
    /// The blocks of the page.
    pub blocks: Vec<AddressBlock>,
    /// The cursor of the next page; `None` on the last page.
    pub next: Option<String>,
}

impl Limiter {
    /// Returns a number that changes whenever blocks, allows or the rules change.
    pub fn blocks_revision(&self) -> u64 {
        self.exceptions.memory.overrides_revision()
    }

    /// Returns the maximum number of blocks and allows.
    pub fn max_blocks(&self) -> usize {
        self.exceptions.bounds.overrides.max
    }

    /// Returns a page of at most `count` blocks of addresses and networks: those of all rules for this field, and those of
    /// rules whose actors are this field alone. Leaves out blocks that an allow covers.
    ///
    /// # Errors
    /// The cursor is invalid.
    pub fn address_blocks(
        &self,
        field: &str,
        cursor: Option<&str>,
        count: usize,
    ) -> Result<AddressBlockPage, AdminError> {
        let cursor = cursor.map(|cursor| Cursor::parse(cursor).ok_or(AdminError::Cursor)).transpose()?;
        let (policy, memory, now) = (self.policy(), &self.exceptions.memory, self.now());
        let owners = memory.all_owners();
        let owners = owners.iter().map(|of| of.owner());
        let owners: HashSet<_> = owners.filter(|owner| has_addresses(owner, field, policy.as_deref())).collect();
        let is_meant = |owner: &str, _: &str| owners.contains(owner);
        let (found, next) = memory.page(Listed::Beginning("block:"), is_meant, cursor.as_ref(), count, now);
        let blocks = found.into_iter().filter_map(|change| self.address_block(change, field, now));
        Ok(AddressBlockPage { blocks: blocks.collect(), next: next.map(|next| next.to_string()) })
    }

    fn address_block(
        &self,
        ExceptionChange { owner, actor, value }: ExceptionChange,
        field: &str,
        now: Timestamp,
    ) -> Option<AddressBlock> {
        let (owner, block) = (ExceptionOwner::parse(&owner)?, value?);
        let network = match owner.of {
            OwnerName::Field(..) => Network::parse(&owner.shown(&actor)?).ok()?,
            OwnerName::Rule(label) => {
                let policy = self.policy()?;
                actor_network(RuleName::Name(label).find(&policy).ok()?.0, &actor)?
            }
        };
        if self.exceptions.allows_all_of(field, network, now) {
            return None;
        }
        let rule = match owner.of {
            OwnerName::Field(..) => ALL_RULES.to_owned(),
            OwnerName::Rule(label) => {
                let allows = ExceptionOwner::of_rule(ExceptionKind::Allow, label).to_string();
                if self.exceptions.memory.find(&allows, &actor, now).is_some() {
                    return None;
                }
                label.to_owned()
            }
        };
        Some(AddressBlock { network, rule, reason: block.reason().cloned(), ends: block.ends })
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
