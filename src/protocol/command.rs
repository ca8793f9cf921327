//! The commands of the RESP interface, typed.
//!
//! [`table`] says which there are; `parse` reads their arguments; [`describe`] answers `COMMAND` and its kin from the
//! table. Whatever else a reply needs (counters, client ids, settings) is the server's.

mod bucket;
mod counters;
pub mod describe;
mod error;
mod pairs;
mod parse;
mod question;
pub mod table;

pub use bucket::BucketAsk;
pub use counters::{CountersAsk, Named, START};
pub use error::CommandError;
pub use pairs::{Pairs, Priced};
pub use question::Question;
use table::Spec;

use super::resp::{Arguments, Version};

/// A request that names a known command and has valid arguments.
#[derive(Debug, Clone, Copy)]
pub enum Command<'a> {
    /// `DIVVY.HIT key=value… [COST n]`: take credit.
    Hit(Priced<'a>),
    /// `DIVVY.PEEK key=value… [COST n]`: what a hit would be answered.
    Peek(Priced<'a>),
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
    /// `RESET`: resets the connection to its initial state.
    ResetConnection,
    /// `MULTI`: queues the commands that follow.
    Multi,
    /// `EXEC`: executes the queued commands.
    Exec,
    /// `DISCARD`: discards the queued commands.
    Discard,
    /// `WATCH key…`, which is not supported.
    Watch,
    Unwatch,
    ClientId,
    ClientInfo,
    ClientList(ClientFilter<'a>),
    ClientReply(ReplyMode),
    /// `CLIENT NO-EVICT` and `CLIENT NO-TOUCH`, `ON` or `OFF`: no client is evicted here, and no key is touched.
    ClientSwitch,
    ClientGetName,
    /// A name that follows Redis's rule for one; empty to have none.
    ClientSetName(&'a [u8]),
    ClientSetInfo(LibraryInfo<'a>),
    /// The requested sections. Empty: the usual ones.
    Info(Arguments<'a>),
    /// Glob patterns of settings' names.
    ConfigGet(Arguments<'a>),
    DbSize,
    Time,
    /// `COMMAND` and its subcommands, for [`describe::write`].
    Describe(Question<'a>),
}

/// `HELLO [version [AUTH user password] [SETNAME name]]`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hello<'a> {
    /// The protocol to switch to. `None`: no change.
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

/// Which clients `CLIENT LIST` lists.
#[derive(Debug, Clone, Copy)]
pub enum ClientFilter<'a> {
    All,
    /// A type that no client has.
    None,
    /// Those with these numbers.
    Ids(Arguments<'a>),
}

impl ClientFilter<'_> {
    /// Whether the client with this number is listed.
    pub fn lists(&self, id: u64) -> bool {
        match self {
            Self::All => true,
            Self::None => false,
            Self::Ids(ids) => ids.iter().any(|listed| parse::client_id(listed) == Some(id)),
        }
    }
}

/// `CLIENT REPLY`: whether the client wants replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyMode {
    On,
    Off,
    /// No replies to this command and the next one.
    Skip,
}

/// What a client library tells about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LibraryInfo<'a> {
    Name(&'a [u8]),
    Version(&'a [u8]),
}

/// A command's row in the table, and its parent's if it is a subcommand.
#[derive(Debug, Clone, Copy)]
pub struct Found {
    pub parent: Option<&'static Spec>,
    pub spec: &'static Spec,
}

impl Found {
    /// As Redis lists it: `parent|name` for a subcommand.
    pub fn full_name(&self) -> String {
        self.spec.full_name(self.parent)
    }
}

impl<'a> Command<'a> {
    /// Reads a request, which must have at least one argument: callers skip empty requests.
    ///
    /// # Errors
    /// [`CommandError`], with Redis's wording where Redis has one.
    pub fn parse(request: Arguments<'a>) -> Result<Self, CommandError> {
        Self::parse_as(Self::find(request)?, request)
    }

    /// The command that a request names.
    ///
    /// # Errors
    /// There is none, or its subcommand is unknown.
    pub fn find(request: Arguments<'_>) -> Result<Found, CommandError> {
        let name = request.get(0).unwrap_or_default();
        let spec = table::find(table::COMMANDS, name).ok_or_else(|| CommandError::unknown_command(request))?;
        match request.get(1) {
            Some(subcommand) if !spec.subcommands.is_empty() && !is_help(subcommand) => {
                let found = table::find(spec.subcommands, subcommand);
                let found = found.ok_or_else(|| CommandError::unknown_subcommand(spec.name, subcommand))?;
                Ok(Found { parent: Some(spec), spec: found })
            }
            _ => Ok(Found { parent: None, spec }),
        }
    }

    /// Reads a request of the command that [`Command::find`] found in it.
    ///
    /// # Errors
    /// As [`Command::parse`].
    pub fn parse_as(found: Found, request: Arguments<'a>) -> Result<Self, CommandError> {
        let Found { parent, spec } = found;
        if !spec.subcommands.is_empty() && request.get(1).is_some_and(is_help) {
            return Ok(Self::Describe(Question::Help(spec.name)));
        }
        if !spec.takes(request.len()) {
            return Err(CommandError::wrong_arity(found.full_name()));
        }
        let named_by = if parent.is_some() { 2 } else { 1 };
        (spec.parse)(request.skip(named_by))
    }

    /// Whether it concerns only the connection: it neither reads counters nor takes long.
    pub fn is_about_connection(&self) -> bool {
        match self {
            Self::Ping(_)
            | Self::Echo(_)
            | Self::Hello(_)
            | Self::Auth(_)
            | Self::Select
            | Self::Unwatch
            | Self::ClientId
            | Self::ClientInfo
            | Self::ClientGetName
            | Self::ClientSetName(_)
            | Self::ClientSetInfo(_)
            | Self::ClientReply(_)
            | Self::ClientSwitch
            | Self::Quit
            | Self::ResetConnection => true,
            Self::Hit(_)
            | Self::Peek(_)
            | Self::Forget(_)
            | Self::Explain(_)
            | Self::Tokens(_)
            | Self::Session(_)
            | Self::Throttle(_)
            | Self::Rules
            | Self::Counters(_)
            | Self::ForgetCounters(_)
            | Self::Backup(_)
            | Self::Multi
            | Self::Exec
            | Self::Discard
            | Self::Watch
            | Self::ClientList(_)
            | Self::Info(_)
            | Self::ConfigGet(_)
            | Self::DbSize
            | Self::Time
            | Self::Describe(_) => false,
        }
    }

    /// Whether it is answered at once even after `MULTI`, as in Redis.
    pub fn is_never_queued(&self) -> bool {
        matches!(self, Self::Multi | Self::Exec | Self::Discard | Self::Watch | Self::Quit | Self::ResetConnection)
    }

    /// Whether it gets a reply even if replies are off.
    pub fn ends_silence(&self) -> bool {
        matches!(self, Self::ClientReply(ReplyMode::On) | Self::ResetConnection)
    }

    /// Checks the bounds that do not require reading the arguments.
    ///
    /// # Errors
    /// It has too many pairs.
    pub fn check_count(&self, max_pairs: usize) -> Result<(), CommandError> {
        match self {
            Self::Hit(Priced { pairs, .. })
            | Self::Peek(Priced { pairs, .. })
            | Self::Forget(pairs)
            | Self::Explain(pairs) => pairs.check_count(max_pairs),
            Self::Counters(ask) | Self::ForgetCounters(ask) => match ask.rule {
                Named::Operation(pairs) => pairs.check_count(max_pairs),
                Named::Label(_) => Ok(()),
            },
            _ => Ok(()),
        }
    }
}

fn is_help(subcommand: &[u8]) -> bool {
    subcommand.eq_ignore_ascii_case(b"help")
}

#[cfg(test)]
mod tests;
