//! The commands of the RESP interface, typed.
//!
//! `kinds` has the commands, [`table`] their names and arity. `parse` reads their arguments. [`describe`] answers
//! `COMMAND` and its subcommands from the table. The server answers everything that needs counters, client ids or
//! settings.

mod acl;
mod ask;
mod bucket;
mod counters;
pub mod describe;
mod error;
mod integer;
mod kinds;
mod limits;
mod lookup;
mod overrides;
mod pairs;
mod parse;
mod question;
mod reservations;
mod status;
pub mod table;
mod top;

pub use ask::{
    AclAsk, BucketAsk, CountersAsk, LimitAsk, LimitsAsk, NamedRule, OverrideAsk, ReserveAsk, START, StatusAsk, TopAsk,
    TopOrder, TopWindow,
};
pub use error::CommandError;
pub use kinds::{ClientFilter, Command, Credentials, Hello, LibraryInfo, ReplyMode};
pub use lookup::CommandMatch;
pub use pairs::{Pairs, PricedOperation};
pub use question::Question;
pub use top::MAX_TOP;

#[cfg(test)]
mod tests;
