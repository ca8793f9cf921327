//! Policy: the limits that apply to an operation.
//!
//! A [`Rule`] is one validated section of the rules file. A [`RuleSet`] is all rules, compiled so that the cost of
//! matching does not grow with their number. Nothing here reads files, counts hits or depends on a store.

mod actor;
mod address;
mod condition;
pub mod diff;
pub mod explain;
mod glob_index;
mod list;
mod matcher;
pub mod network;
mod network_table;
pub mod operation;
pub mod operation_text;
pub mod order_mistakes;
mod pattern;
mod penalty;
mod quota;
mod rule;
mod rule_index;
mod ruleset;
mod scope;
mod setting;
pub mod setting_name;
mod spelling;
mod spellings;
pub mod stacks;
#[cfg(test)]
pub(crate) mod testing;

pub use actor::{ActorFields, OverrideKind};
pub use address::Address;
pub use condition::{ActorPrefix, Condition, Member, Members, NOT, NetworkSet, PrefixLengths};
pub use list::{List, ListEntry};
pub use network::{Network, NetworkError};
pub use operation::{Key, Operation};
pub use pattern::{Glob, Pattern};
pub use penalty::{Jitter, MAX_BLOCK_AFTER, MAX_BLOCK_FACTOR, Penalty};
pub use quota::{MAX_CREDIT_LIMIT, MAX_RESET_SECONDS, Quota, QuotaError, Seconds, Settings};
pub use rule::{BadCost, Identity, MAX_STACK, MatchPolicy, NO_COST_FIELD, Overrun, Rhythm, Rule, header};
pub use rule_index::RuleSetError;
pub use ruleset::{DEFAULT_RULE, Matches, RuleSet, Scratch, index_in_name};
pub use scope::{ResolvedScope, Scope};
pub use setting::{NamedSetting, SettingValue};
pub use spelling::{FinalSlash, Misspelling, Spelling, split_target};
pub use spellings::{Spellings, UnknownSpelling};
