//! The commands of the RESP interface, typed.
//!
//! [`command_rows`] has their names and arity, and finds the row of a request. `connection_commands`, `hit_commands` and `bucket_commands` read their arguments.
//! [`describe`] answers `COMMAND` and its subcommands from the table. The server answers everything that needs counters,
//! client ids or settings.

mod bucket_commands;
pub mod command_rows;
mod connection_commands;
pub mod describe;
mod hit_commands;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fmt;

pub use self::bucket_commands::BucketAsk;
pub use self::describe::Question;
pub use self::hit_commands::{Pairs, PricedOperation};
use crate::protocol::resp::{Arguments, Version};
use divvy_access::Category;
use divvy_api::{ArgumentError, Endpoint, Kind};
use divvy_limiter::{Intent, Reserve, Settlement};

/// The cursor that begins a listing, and the one that ends it.
pub const START: &str = "0";
/// Maximum number of bytes of a name, and of all arguments, that an error repeats.
const MAX_ECHOED: usize = 128;

/// A request that names a known command and has valid arguments.
#[derive(Debug, Clone, Copy)]
pub enum Command<'a> {
    /// `DIVVY.HIT`, `DIVVY.PEEK`, `DIVVY.CHARGE` or `DIVVY.REFUND`, with `key=value… [COST n] [ID text] [REPLY JSON]`.
    Ask(Intent, PricedOperation<'a>),
    /// `DIVVY.RESERVE key=value… AMOUNT n TTL seconds [ID text]`: reserves credits.
    Reserve(Pairs<'a>, Reserve<'a>),
    /// `DIVVY.SHARE key=value… WANT n`: takes credits ahead.
    Share(Pairs<'a>, u64),
    /// `DIVVY.COMMIT id COST n`, `DIVVY.RELEASE id` or `DIVVY.RENEW id [TTL seconds]`, with the reservation's id as answered by
    /// `DIVVY.RESERVE`. Or `DIVVY.RETURN id CREDITS n`, with the share's id as answered by `DIVVY.SHARE`.
    Settle(&'a [u8], Settlement),
    /// `RL.REDUCE`, `RL.GET` and their variants. The reply has the tokens before the request.
    Tokens(BucketAsk<'a>),
    /// `RL.SESSIONIZE` and its variants. The reply has the tokens before, and the session's start (milliseconds since 1970).
    Session(BucketAsk<'a>),
    /// `CL.THROTTLE`. The reply has redis-cell's five numbers.
    Throttle(BucketAsk<'a>),
    /// `INCREX`. The reply has the counter's value, and the increment that was applied.
    Increment(BucketAsk<'a>),
    /// An operation of operators, with its words after the command's name.
    Operate(&'static Endpoint, Arguments<'a>),
    /// `PING [message]`: returns the message, or `PONG` without one.
    Ping(Option<&'a [u8]>),
    /// `ECHO message`
    Echo(&'a [u8]),
    /// `HELLO …`: may change the protocol's version, authenticate, and name the connection.
    Hello(Hello<'a>),
    /// `AUTH [user] password`
    Auth(Credentials<'a>),
    /// `SELECT 0`, `UNWATCH`, `CLIENT NO-EVICT` or `CLIENT NO-TOUCH`, which have no effect here.
    Okay,
    /// `QUIT`: answers, then closes the connection.
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
    /// `CLIENT ID`: returns the connection's number.
    ClientId,
    /// `CLIENT INFO`: describes this connection in a line.
    ClientInfo,
    /// `CLIENT LIST`: describes all connections, one a line.
    ClientList,
    /// `CLIENT REPLY ON | OFF | SKIP`
    ClientReply(ReplyMode),
    /// `CLIENT GETNAME`
    ClientGetName,
    /// A valid name by Redis's rules, or an empty one to remove the name.
    ClientSetName(&'a [u8]),
    /// `CLIENT SETINFO lib-name | lib-ver value`
    ClientSetInfo(LibraryInfo<'a>),
    /// The requested sections; empty for the usual ones.
    Info(Arguments<'a>),
    /// Glob patterns for names of settings.
    ConfigGet(Arguments<'a>),
    /// `DBSIZE`: returns the approximate number of counters in the store.
    DbSize,
    /// `TIME`: the server's clock, in seconds and microseconds.
    Time,
    /// `ROLE`: returns the server's role in replication.
    Role,
    /// `ACL` and its subcommands.
    Acl(AclAsk<'a>),
    /// `COMMAND` and its subcommands, for [`describe::write`].
    Describe(Question<'a>),
}

/// `HELLO [version [AUTH user password] [SETNAME name]]`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hello<'a> {
    /// The protocol to switch to; `None` to keep the current one.
    pub version: Option<Version>,
    /// From `AUTH`.
    pub credentials: Option<Credentials<'a>>,
    /// The connection's name, from `SETNAME`, valid by Redis's rules.
    pub name: Option<&'a [u8]>,
}

/// A user and a password. The debug format hides the password.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Credentials<'a> {
    /// `None` for the default user.
    pub user: Option<&'a [u8]>,
    /// Password as sent, not yet checked.
    pub password: &'a [u8],
}

impl fmt::Debug for Credentials<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The password must not appear in a log.
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

/// `CLIENT REPLY`: whether the client wants replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyMode {
    /// Replies to all commands, as at the start.
    On,
    /// No replies until `CLIENT REPLY ON`.
    Off,
    /// No replies to this command and the next one.
    Skip,
}

/// A client library's description of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LibraryInfo<'a> {
    /// `lib-name`: printable ASCII without spaces, may be empty.
    Name(&'a [u8]),
    /// `lib-ver`: printable ASCII without spaces, may be empty.
    Version(&'a [u8]),
}

/// A question about users.
#[derive(Debug, Clone, Copy)]
pub enum AclAsk<'a> {
    /// `ACL WHOAMI`: the name of the connection's user.
    WhoAmI,
    /// `ACL GETUSER name`
    GetUser(&'a [u8]),
    /// `ACL CAT`: the categories.
    Categories,
    /// `ACL CAT category`: the commands of a category.
    Commands(Category),
}

impl<'a> Command<'a> {
    /// Reads a request, which must have at least one argument: callers skip empty requests.
    ///
    /// # Errors
    /// [`CommandError`], with Redis's wording where Redis has one.
    pub fn parse(request: Arguments<'a>) -> Result<Self, CommandError> {
        command_rows::find_request(request)?.parse(request)
    }

    /// Returns whether the command is answered at once even after `MULTI`, as in Redis.
    pub fn is_never_queued(&self) -> bool {
        matches!(self, Self::Multi | Self::Exec | Self::Discard | Self::Watch | Self::Quit | Self::ResetConnection)
    }

    /// Returns whether the command gets a reply even if replies are off.
    pub fn ends_silence(&self) -> bool {
        matches!(self, Self::ClientReply(ReplyMode::On) | Self::ResetConnection)
    }

    /// Checks the bounds that do not require reading the arguments.
    ///
    /// # Errors
    /// There are too many pairs.
    pub fn check_count(&self, max_pairs: usize) -> Result<(), CommandError> {
        let pairs = match self {
            Self::Ask(_, PricedOperation { pairs, .. }) | Self::Reserve(pairs, _) | Self::Share(pairs, _) => {
                pairs.len()
            }
            Self::Operate(endpoint, words)
                if endpoint.fields.iter().any(|field| matches!(field.kind, Kind::Pairs | Kind::Rule)) =>
            {
                words.iter().take_while(|word| word.contains(&b'=')).count()
            }
            _ => 0,
        };
        if pairs > max_pairs { Err(CommandError::too_many_pairs(max_pairs)) } else { Ok(()) }
    }
}

/// The reply to a request that is not a command: a text that begins with an error code, in Redis's words where Redis has some. The
/// connection stays open.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct CommandError {
    /// The mistake in the request.
    pub mistake: Mistake,
    text: Cow<'static, str>,
}

/// A mistake in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mistake {
    /// No command or subcommand has this name, or divvy declines it.
    UnknownCommand,
    /// The number of arguments does not match the command's arity.
    WrongArity,
    /// The operation has more pairs than a request may have.
    TooManyPairs,
    /// The client has not logged in.
    Unauthenticated,
    /// The user lacks the right.
    Forbidden,
    /// Another problem of an argument. Redis finds it only when it executes a transaction.
    Argument,
}

impl CommandError {
    const SYNTAX: Self = Self::fixed("ERR syntax error");
    /// The reply to a client that has not logged in.
    pub const NO_AUTH: Self =
        Self { mistake: Mistake::Unauthenticated, text: Cow::Borrowed("NOAUTH Authentication required.") };
    const NOT_AN_INTEGER: Self = Self::fixed("ERR value is not an integer or out of range");

    /// Describes an argument with this text.
    pub const fn fixed(text: &'static str) -> Self {
        Self { mistake: Mistake::Argument, text: Cow::Borrowed(text) }
    }

    fn new(mistake: Mistake, text: String) -> Self {
        Self { mistake, text: Cow::Owned(text) }
    }

    /// Describes an argument with this text, which contains what [`echo`] returned.
    fn argument(text: String) -> Self {
        Self::new(Mistake::Argument, text)
    }

    fn wrong_arity(name: &str) -> Self {
        Self::new(Mistake::WrongArity, format!("ERR wrong number of arguments for '{name}' command"))
    }

    /// Returns the error for a user that lacks the right to a command.
    pub fn forbidden(user: &str, command: &str) -> Self {
        let text = format!("NOPERM User {user} has no permissions to run the '{command}' command");
        Self::new(Mistake::Forbidden, text)
    }

    fn too_many_pairs(max_pairs: usize) -> Self {
        Self::new(Mistake::TooManyPairs, format!("ERR more than {max_pairs} pairs"))
    }
}

impl From<ArgumentError> for CommandError {
    fn from(error: ArgumentError) -> Self {
        match error {
            ArgumentError::ManyPairs { max } => Self::too_many_pairs(max),
            error => Self::argument(format!("ERR {error}")),
        }
    }
}

/// Returns the beginning of the client's input as text.
fn echo(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes.get(..MAX_ECHOED).unwrap_or(bytes))
}
