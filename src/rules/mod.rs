//! Policy: the limits that apply to an operation.
//!
//! A [`Rule`] is one validated section of the rules file. A [`RuleSet`] is all rules, compiled so that the cost of
//! matching does not grow with their number. Nothing here reads files, counts hits or depends on a store.

mod actor;
mod actor_prefix;
mod actor_rules;
mod address;
pub mod bypass;
mod condition;
mod condition_index;
mod cost;
pub mod diff;
pub mod explain;
mod glob_index;
mod identity;
mod key;
mod list;
mod matcher;
mod most_general;
pub mod network;
mod network_table;
pub mod operation;
pub mod operation_text;
mod overlaps;
mod override_kind;
mod pattern;
mod penalty;
mod prefix_index;
mod quota;
mod rare_keys;
pub mod reachability;
mod rule;
mod rule_bits;
mod rule_name;
mod ruleset;
mod ruleset_error;
mod scope;
mod seconds;
mod setting;
pub(crate) mod setting_name;
mod spelling;
mod spellings;
mod stack_words;
pub mod stacks;
#[cfg(test)]
pub(crate) mod testing;
mod values;

pub use actor::ActorFields;
pub use actor_prefix::{ActorPrefix, PrefixLengths};
pub use address::Address;
pub use condition::{Condition, Member, Members, NOT, NetworkSet};
pub use cost::BadCost;
pub use identity::{Identity, Rhythm};
pub use key::Key;
pub use list::{List, ListEntry};
pub use network::{Network, NetworkError};
pub use operation::Operation;
pub use override_kind::OverrideKind;
pub use pattern::{Glob, Pattern};
pub use penalty::{Jitter, MAX_BLOCK_AFTER, MAX_BLOCK_FACTOR, Penalty};
pub use quota::{MAX_CREDIT_LIMIT, MAX_RESET_SECONDS, Quota, QuotaError, Settings};
pub use rule::{MAX_STACK, MatchPolicy, NO_COST_FIELD, Overrun, Rule, header};
pub use rule_name::{DEFAULT_RULE, index_in_name};
pub use ruleset::{Matches, RuleSet, Scratch};
pub use ruleset_error::RuleSetError;
pub use scope::{ResolvedScope, Scope};
pub use seconds::Seconds;
pub use setting::{NamedSetting, SettingValue};
pub use spelling::{FinalSlash, Misspelling, Spelling, split_target};
pub use spellings::{Spellings, UnknownSpelling};
