//! The commands that a RESP request may name, typed.
//!
//! [`table`] says which there are; `parse` reads their arguments; [`describe`] answers `COMMAND` and its kin from the
//! table. Whatever else a reply needs (counters, client ids, settings) is the server's.

mod bucket;
mod counters;
pub mod describe;
mod error;
mod pairs;
mod parse;
pub mod table;

pub use bucket::BucketAsk;
pub use counters::{CountersAsk, Named, START};
pub use error::CommandError;
pub use pairs::Pairs;
use table::Spec;

use super::resp::{Arguments, Version};

/// A request that names a known command with arguments that it takes.
#[derive(Debug, Clone, Copy)]
pub enum Command<'a> {
    /// `DIVVY.HIT key=value…`: take credit.
    Hit(Pairs<'a>),
    /// `DIVVY.PEEK key=value…`: what a hit would be answered.
    Peek(Pairs<'a>),
    /// `DIVVY.RESET key=value…`: forget the counters that a hit would take from.
    Forget(Pairs<'a>),
    /// `DIVVY.EXPLAIN key=value…`: which rules match.
    Explain(Pairs<'a>),
    /// `RL.REDUCE`, `RL.GET` and their kin: answered with the tokens that were there before.
    Tokens(BucketAsk<'a>),
    /// `RL.SESSIONIZE` and its kin: with the tokens before, and the session's start (milliseconds since 1970).
    Session(BucketAsk<'a>),
    /// `CL.THROTTLE`: with redis-cell's five numbers.
    Throttle(BucketAsk<'a>),
    /// `DIVVY.RULES`
    Rules,
    /// `DIVVY.COUNTERS rule …`: a page of a rule's counters.
    Counters(CountersAsk<'a>),
    /// `DIVVY.FORGET rule …`: forget a page of a rule's counters.
    ForgetCounters(CountersAsk<'a>),
    /// `DIVVY.BACKUP name`
    Backup(&'a str),
    Ping(Option<&'a [u8]>),
    Echo(&'a [u8]),
    Hello(Hello<'a>),
    Auth(Credentials<'a>),
    /// `SELECT 0`: the only database.
    Select,
    Quit,
    /// `RESET`: the connection as it was when it was new.
    ResetConnection,
    ClientId,
    ClientInfo,
    ClientGetName,
    /// A name that follows Redis's rule for one; empty to have none.
    ClientSetName(&'a [u8]),
    ClientSetInfo(LibraryInfo<'a>),
    /// The sections asked for; none: the usual ones.
    Info(Arguments<'a>),
    /// Glob patterns of settings' names.
    ConfigGet(Arguments<'a>),
    DbSize,
    Time,
    /// `COMMAND` and its subcommands, for [`describe::write`].
    Describe(describe::Question<'a>),
}

/// `HELLO [version [AUTH user password] [SETNAME name]]`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hello<'a> {
    /// The protocol to go on with; `None`: the present one.
    pub version: Option<Version>,
    pub credentials: Option<Credentials<'a>>,
    pub name: Option<&'a [u8]>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Credentials<'a> {
    /// `None`: the default user.
    pub user: Option<&'a [u8]>,
    pub password: &'a [u8],
}

impl std::fmt::Debug for Credentials<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A password has no place in a log.
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

/// What a client library tells about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LibraryInfo<'a> {
    Name(&'a [u8]),
    Version(&'a [u8]),
}

impl<'a> Command<'a> {
    /// Reads a request. It has at least one argument: the others are to be passed over.
    ///
    /// # Errors
    /// [`CommandError`], in Redis's words where Redis has some.
    pub fn parse(request: Arguments<'a>) -> Result<Self, CommandError> {
        let name = request.get(0).unwrap_or_default();
        let spec = table::find(table::COMMANDS, name).ok_or_else(|| CommandError::unknown_command(request))?;
        match request.get(1) {
            Some(subcommand) if !spec.subcommands.is_empty() => Self::parse_subcommand(spec, subcommand, request),
            _ => Self::parse_as(spec, None, request),
        }
    }

    fn parse_subcommand(parent: &'static Spec, name: &[u8], request: Arguments<'a>) -> Result<Self, CommandError> {
        if name.eq_ignore_ascii_case(b"help") {
            return Ok(Self::Describe(describe::Question::Help(parent)));
        }
        let spec =
            table::find(parent.subcommands, name).ok_or_else(|| CommandError::unknown_subcommand(parent, name))?;
        Self::parse_as(spec, Some(parent), request)
    }

    fn parse_as(spec: &Spec, parent: Option<&Spec>, request: Arguments<'a>) -> Result<Self, CommandError> {
        if !spec.takes(request.len()) {
            return Err(CommandError::wrong_arity(spec, parent));
        }
        let named_by = if parent.is_some() { 2 } else { 1 };
        (spec.parse)(request.skip(named_by))
    }
}

#[cfg(test)]
mod tests;
