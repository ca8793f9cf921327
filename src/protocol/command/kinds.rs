//! What a client can ask, typed: one variant for each command. How a request is read is not here.

use super::ask::{BucketAsk, CountersAsk, LimitAsk, LimitsAsk, NamedRule, ReserveAsk};
use super::error::CommandError;
use super::integer::client_id;
use super::pairs::{Pairs, PricedOperation};
use super::question::Question;
use crate::protocol::resp::{Arguments, Version};

/// A request that names a known command and has valid arguments.
#[derive(Debug, Clone, Copy)]
pub enum Command<'a> {
    /// `DIVVY.HIT key=value… [COST n] [ID text]`: take credit.
    Hit(PricedOperation<'a>),
    /// `DIVVY.PEEK key=value… [COST n]`: what a hit would be answered.
    Peek(PricedOperation<'a>),
    /// `DIVVY.CHARGE key=value… [COST n] [ID text]`: count what was used already.
    Charge(PricedOperation<'a>),
    /// `DIVVY.REFUND key=value… [COST n] [ID text]`: give back.
    Refund(PricedOperation<'a>),
    /// `DIVVY.RESERVE key=value… AMOUNT n TTL seconds [ID text]`: set credit aside.
    Reserve(ReserveAsk<'a>),
    /// `DIVVY.COMMIT id COST n`: count what was used of what a reservation was for.
    Commit {
        id: &'a [u8],
        cost: u64,
    },
    /// `DIVVY.RELEASE id`: free what is reserved.
    Release(&'a [u8]),
    /// `DIVVY.RENEW id [TTL seconds]`: keep what is reserved.
    Renew {
        id: &'a [u8],
        ttl_seconds: Option<u32>,
    },
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
    /// `DIVVY.LIMIT SET rule actor credits [EX seconds]`: gives an actor a limit of its own.
    SetLimit {
        of: LimitAsk<'a>,
        credits: u64,
        seconds: Option<u64>,
    },
    /// `DIVVY.LIMIT GET rule actor`
    GetLimit(LimitAsk<'a>),
    /// `DIVVY.LIMIT DEL rule actor`
    RemoveLimit(LimitAsk<'a>),
    /// `DIVVY.LIMIT LIST …`: a page of actors' limits.
    ListLimits(LimitsAsk<'a>),
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
    /// `ROLE`: which part the server has in replication.
    Role,
    /// `COMMAND` and its subcommands, for [`super::describe::write`].
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
            Self::Ids(ids) => ids.iter().any(|listed| client_id(listed) == Some(id)),
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

impl Command<'_> {
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
            | Self::Charge(_)
            | Self::Refund(_)
            | Self::Reserve(_)
            | Self::Commit { .. }
            | Self::Release(_)
            | Self::Renew { .. }
            | Self::Forget(_)
            | Self::Explain(_)
            | Self::Tokens(_)
            | Self::Session(_)
            | Self::Throttle(_)
            | Self::Rules
            | Self::Counters(_)
            | Self::ForgetCounters(_)
            | Self::Backup(_)
            | Self::SetLimit { .. }
            | Self::GetLimit(_)
            | Self::RemoveLimit(_)
            | Self::ListLimits(_)
            | Self::Multi
            | Self::Exec
            | Self::Discard
            | Self::Watch
            | Self::ClientList(_)
            | Self::Info(_)
            | Self::ConfigGet(_)
            | Self::DbSize
            | Self::Time
            | Self::Role
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
            Self::Hit(PricedOperation { pairs, .. })
            | Self::Peek(PricedOperation { pairs, .. })
            | Self::Charge(PricedOperation { pairs, .. })
            | Self::Refund(PricedOperation { pairs, .. })
            | Self::Reserve(ReserveAsk { pairs, .. })
            | Self::Forget(pairs)
            | Self::Explain(pairs) => pairs.check_count(max_pairs),
            Self::Counters(ask) | Self::ForgetCounters(ask) => match ask.rule {
                NamedRule::Operation(pairs) => pairs.check_count(max_pairs),
                NamedRule::Label(_) => Ok(()),
            },
            _ => Ok(()),
        }
    }
}
