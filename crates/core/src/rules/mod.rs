//! Policy: the limits that apply to an operation.
//!
//! A [`Rule`] is one validated section of the rules file. A [`RuleSet`] is all rules, compiled so that the cost of
//! matching does not grow with their number. Nothing here reads files, counts hits or depends on a store.

mod actor;
mod address;
mod condition;
pub mod descriptor;
pub mod diff;
pub mod explain;
mod matcher;
pub mod network;
mod network_table;
pub mod operation;
mod pattern;
mod quota;
mod rule;
mod ruleset;
mod scope;
mod spelling;
pub mod stacks;
#[cfg(test)]
pub(crate) mod testing;

pub use actor::{ActorFields, OverrideKind, read_entries, read_pair, write_entries};
pub use address::Address;
pub(crate) use condition::NOT;
pub use condition::{ActorPrefix, Condition, List, ListEntry, PrefixLengths};
pub use descriptor::{Descriptor, DescriptorRules};
pub use matcher::RuleSetError;
pub use network::{Network, NetworkError};
pub use operation::{Key, Operation};
pub use pattern::{Glob, Pattern};
pub use quota::{
    Jitter, MAX_BLOCK_AFTER, MAX_BLOCK_FACTOR, MAX_CREDIT_LIMIT, MAX_RESET_SECONDS, Penalty, Quota, QuotaError,
    Seconds, Settings,
};
pub use rule::{
    AUTO_SHARE, BadCost, Identity, MAX_STACK, MatchPolicy, NamedSetting, Overrun, Rhythm, Rule, SettingValue,
    calls_for_shares, header, setting_name,
};
pub use ruleset::{DEFAULT_RULE, Matches, RuleSet, Scratch};
pub use scope::{ResolvedScope, Scope};
pub use spelling::{FinalSlash, Misspelling, Spelling, Spellings, UnknownSpelling, split_target};
