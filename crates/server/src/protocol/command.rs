//! The commands of the RESP interface, typed.
//!
//! `kinds` has the commands, [`table`] their names and arity. `parse` reads their arguments. [`describe`] answers
//! `COMMAND` and its subcommands from the table. The server answers everything that needs counters, client ids or
//! settings.

mod acl;
mod ask;
mod bucket;
pub mod describe;
mod error;
mod integer;
mod kinds;
mod lookup;
mod pairs;
mod parse;
mod question;
mod reservations;
pub mod table;

pub use ask::{AclAsk, BucketAsk, ReserveAsk, START};
pub use error::CommandError;
pub use kinds::{ClientFilter, Command, Credentials, Hello, LibraryInfo, ReplyMode};
pub use lookup::CommandMatch;
pub use pairs::{Pairs, PricedOperation};
pub use question::Question;

#[cfg(test)]
mod tests;
