//! The blocks of addresses and networks, as CrowdSec and its bouncers see them.

use std::sync::Arc;
use std::time::Duration;

use super::journal::Reason;
use divvy_core::clock::{Timestamp, ceil_seconds};
use divvy_core::rules::Network;
use divvy_limiter::address_blocks::AddressBlock;
use divvy_limiter::exceptions::{
    ExceptionFilter, ExceptionKind, ExceptionTarget, ExceptionTerms, ListedException, MAX_LASTS_SECONDS,
};
use divvy_limiter::{ALL_RULES, ErrorClass, Limiter, LimiterError, Scope};

/// Beginning of the reason of a block that is a ban of CrowdSec.
const MARK: &str = "crowdsec: ";
/// Number of blocks that are read at a time.
const PAGE: usize = 500;

/// The blocks of one field.
#[derive(Clone)]
pub struct Blocks {
    limiter: Arc<Limiter>,
    field: Arc<str>,
}

/// A block for all rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// Its end; `None` if it is permanent.
    pub ends: Option<Timestamp>,
    /// The scenario, if the block is a ban of CrowdSec.
    pub scenario: Option<String>,
}

/// A block that was not changed.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// There is no room for another block.
    #[error("there is no room for another block")]
    Full,
    /// The store failed, or the block is not valid.
    #[error("{0}")]
    Refused(String),
}

impl ChangeError {
    fn new(error: &impl LimiterError) -> Self {
        if error.class() == ErrorClass::Full { Self::Full } else { Self::Refused(error.to_string()) }
    }
}

impl Blocks {
    /// Returns the blocks of this field.
    pub fn new(limiter: Arc<Limiter>, field: Arc<str>) -> Self {
        Self { limiter, field }
    }

    /// Returns the maximum number of blocks.
    pub fn max(&self) -> usize {
        self.limiter.max_blocks()
    }

    /// Returns a number that changes whenever blocks change.
    pub fn revision(&self) -> u64 {
        self.limiter.blocks_revision()
    }

    /// Returns the block of this network for all rules.
    pub fn find(&self, network: Network) -> Option<Known> {
        let actor = self.actor(network);
        let found = self.limiter.exception_of(target(&actor), &Scope::EVERYTHING).ok()??;
        let ListedException { reason, ends_ns, .. } = found;
        let ends = ends_ns.map(|nanos| self.limiter.now().plus(nanos));
        Some(Known { ends, scenario: reason.as_deref().and_then(scenario).map(str::to_owned) })
    }

    /// Sets the block of a ban until `ends`.
    ///
    /// # Errors
    /// [`ChangeError`]
    pub async fn set(&self, network: Network, ends: Timestamp, scenario: &str) -> Result<(), ChangeError> {
        let (actor, reason) = (self.actor(network), format!("{MARK}{scenario}"));
        let seconds = ceil_seconds(ends.since(self.limiter.now())).clamp(1, MAX_LASTS_SECONDS);
        let lasts = Some(Duration::from_secs(seconds));
        let terms = ExceptionTerms { credits: None, reason: Some(&reason), lasts };
        let set = self.limiter.set_exception(target(&actor), terms, &Scope::EVERYTHING).await;
        set.map_err(|error| ChangeError::new(&error))
    }

    /// Removes the block of this network. Returns whether there was one.
    ///
    /// # Errors
    /// [`ChangeError`]
    pub async fn remove(&self, network: Network) -> Result<bool, ChangeError> {
        let actor = self.actor(network);
        let removed = self.limiter.remove_exception(target(&actor), &Scope::EVERYTHING).await;
        removed.map_err(|error| ChangeError::new(&error))
    }

    /// Returns the networks of all blocks that are bans of CrowdSec.
    pub async fn followed(&self) -> Vec<Network> {
        let (mut followed, mut cursor) = (Vec::new(), None);
        let all_rules = ExceptionFilter { owner: Some(ALL_RULES), actor: None };
        let list = |cursor: Option<&str>| {
            self.limiter.exceptions(ExceptionKind::Block, all_rules, cursor, PAGE, &Scope::EVERYTHING)
        };
        while let Ok(page) = list(cursor.as_deref()) {
            let bans = page.exceptions.iter().filter(|block| block.reason.as_deref().and_then(scenario).is_some());
            let values = bans.filter_map(|block| block.actor.strip_prefix(&*self.field)?.strip_prefix('='));
            followed.extend(values.filter_map(|value| Network::parse(value).ok()));
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
            tokio::task::yield_now().await;
        }
        followed
    }

    /// Returns the next blocks with their reasons, for bouncers, and the cursor of those after them.
    pub fn page(&self, cursor: Option<&str>) -> (Vec<(Network, Reason)>, Option<String>) {
        match self.limiter.address_blocks(&self.field, cursor, PAGE) {
            Ok(page) => (page.blocks.into_iter().map(with_reason).collect(), page.next),
            // Each cursor comes from a previous page, so this does not happen.
            Err(_) => (Vec::new(), None),
        }
    }

    fn actor(&self, network: Network) -> String {
        format!("{}={network}", self.field)
    }
}

fn target(actor: &str) -> ExceptionTarget<'_> {
    ExceptionTarget { kind: ExceptionKind::Block, rule: ALL_RULES, actor }
}

/// Returns the scenario in the reason of a ban of CrowdSec.
fn scenario(reason: &str) -> Option<&str> {
    reason.strip_prefix(MARK)
}

/// Returns the scenario, if the block is a ban of CrowdSec.
fn is_ban(block: &AddressBlock) -> Option<&str> {
    (block.rule == ALL_RULES).then(|| block.reason.as_deref().and_then(scenario))?
}

fn with_reason(block: AddressBlock) -> (Network, Reason) {
    let (origin, scenario) = match (is_ban(&block), &block.reason) {
        (Some(scenario), _) => ("crowdsec", scenario.to_owned()),
        (None, Some(reason)) => ("divvy", format!("divvy/{}: {reason}", block.rule)),
        (None, None) => ("divvy", format!("divvy/{}", block.rule)),
    };
    (block.network, Reason { ends: block.ends, origin, scenario: scenario.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(rule: &str, reason: Option<&str>) -> String {
        let network = Network::parse("192.0.2.1").unwrap();
        let block = AddressBlock { network, rule: rule.into(), reason: reason.map(Into::into), ends: None };
        let (_, Reason { origin, scenario, .. }) = with_reason(block);
        format!("{origin} {scenario}")
    }

    #[test]
    fn scenario_names_the_rule_and_the_reason() {
        assert_eq!(described("*", None), "divvy divvy/*");
        assert_eq!(described("login", Some("5 denials")), "divvy divvy/login: 5 denials");
        assert_eq!(described("*", Some("crowdsec: ssh-bf")), "crowdsec ssh-bf");
        assert_eq!(described("login", Some("crowdsec: x")), "divvy divvy/login: crowdsec: x", "no ban is of one rule");
    }
}
