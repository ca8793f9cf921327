//! The table of commands: each row has a command's name, its arguments, and its purpose.
//!
//! Arity checks, `COMMAND`, parsing and the metrics use it.

use super::ask::AclAsk;
use super::error::CommandError;
use super::kinds::Command;
use super::pairs::Pairs;
use super::{acl, bucket, parse, reservations};
use crate::protocol::resp::Arguments;
use divvy_access::Category;
use divvy_api::{self as api, Endpoint};
use divvy_telemetry::metrics::RequestKind;

/// Parses the arguments after a command's name and its subcommand's. Their number has been checked.
pub(super) type Parse = for<'a> fn(Arguments<'a>) -> Result<Command<'a>, CommandError>;

/// A row of the table.
#[derive(Debug)]
pub struct Spec {
    /// Name in lower case, for a subcommand without its parent's.
    pub name: &'static str,
    /// Number of arguments including the names, in Redis's notation: -2 stands for two or more.
    pub arity: i64,
    /// Redis's flags for clients: `write`, `readonly`, `fast`, `loading`, …
    pub flags: &'static [&'static str],
    /// Positions of bucket keys among the arguments. A pair is not a key.
    pub keys: Keys,
    /// The kind of its requests in the metrics.
    pub kind: RequestKind,
    /// Group that the command is listed under.
    pub group: &'static str,
    /// Category that a user needs for the command.
    pub category: Category,
    /// First version of divvy with the command.
    pub since: &'static str,
    /// Summary in one line.
    pub summary: &'static str,
    /// Whether divvy has the command, and whether clients need it.
    pub support: Support,
    pub(super) parse: Parse,
    /// The operation that the command asks for, whose row says the rest.
    pub endpoint: Option<&'static Endpoint>,
    /// Rows of the subcommands. Empty for a command without any.
    pub subcommands: &'static [Spec],
}

/// Whether divvy has a command, and whether clients need it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Support {
    /// divvy has the command, and an error is a client's mistake.
    Full,
    /// divvy has the command. Clients send it when they connect, and work even if it fails, so errors are not counted.
    Optional,
    /// divvy does not have the command: it is answered like an unknown one, and `COMMAND` does not list it. Clients send
    /// it when they connect, and work without it, so errors are not counted.
    Declined,
}

/// Positions of the first and the last key among the arguments (0 if there is no key), and the step between keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keys {
    /// Position of the first key. The command's name is at 0.
    pub first: i64,
    /// Position of the last key. Negative positions count from the end, as in Redis.
    pub last: i64,
    /// Distance from one key to the next.
    pub step: i64,
}

impl Spec {
    /// Columns that most rows share. Each row names its category.
    const fn usual(category: Category) -> Self {
        Self {
            name: "",
            arity: 1,
            flags: &["fast", "loading", "stale"],
            keys: Keys { first: 0, last: 0, step: 0 },
            kind: RequestKind::Connection,
            group: "connection",
            category,
            since: "0.1.0",
            summary: "",
            support: Support::Full,
            // The parser of a container, which is reached only without a subcommand, and its arity forbids that.
            parse: |_| Err(CommandError::Syntax),
            endpoint: None,
            subcommands: &[],
        }
    }

    /// Columns of the command that asks for an operation.
    const fn of(endpoint: &'static Endpoint) -> Self {
        let (name, subcommand) = endpoint.command;
        Self {
            name: if subcommand.is_empty() { name } else { subcommand },
            arity: endpoint.arity(),
            flags: match (endpoint.action, endpoint.category) {
                (_, Category::Admin | Category::Backup) => &["admin"],
                (Some(_), _) => &["write"],
                (None, _) => &["readonly"],
            },
            kind: endpoint.kind,
            group: "divvy",
            since: "0.2.0",
            summary: endpoint.summary,
            endpoint: Some(endpoint),
            ..Self::usual(endpoint.category)
        }
    }

    /// Columns of commands with their own token bucket.
    const TOKEN_BUCKET: Self = Self {
        arity: -4,
        flags: &["write", "denyoom", "fast"],
        keys: Keys { first: 1, last: 1, step: 1 },
        kind: RequestKind::Bucket,
        group: "token-bucket",
        ..Self::usual(Category::Hit)
    };

    /// Columns of commands that read a token bucket.
    const TOKENS: Self = Self { flags: &["readonly", "fast"], category: Category::Read, ..Self::TOKEN_BUCKET };

    /// Columns of commands about transactions.
    const TRANSACTION: Self = Self {
        flags: &["noscript", "loading", "stale", "fast"],
        group: "transactions",
        ..Self::usual(Category::Connection)
    };

    /// Columns of commands that divvy does not have.
    const DECLINED: Self = Self { arity: -1, support: Support::Declined, ..Self::usual(Category::Connection) };

    /// Returns whether clients work even if the command fails.
    pub fn is_optional(&self) -> bool {
        self.support != Support::Full
    }

    /// Returns whether the command takes `count` arguments, including names.
    pub fn takes(&self, count: usize) -> bool {
        let stated = usize::try_from(self.arity.unsigned_abs()).unwrap_or(usize::MAX);
        if self.arity < 0 { count >= stated } else { count == stated }
    }

    /// Returns the name in Redis's lists: `parent|name` for a subcommand.
    pub fn full_name(&self, parent: Option<&Spec>) -> String {
        match parent {
            Some(parent) => format!("{}|{}", parent.name, self.name),
            None => self.name.to_owned(),
        }
    }
}

/// Maximum length of a name (bytes).
const LONGEST_NAME: usize = 20;

/// Returns the rows of the commands that divvy has.
pub fn offered(table: &[Spec]) -> impl Iterator<Item = &Spec> + Clone {
    table.iter().filter(|spec| spec.support != Support::Declined)
}

/// Finds the row of `name`, in any case, if divvy has the command.
pub fn find<'t>(table: &'t [Spec], name: &[u8]) -> Option<&'t Spec> {
    find_any(table, name).filter(|spec| spec.support != Support::Declined)
}

/// Finds the row of `name`, in any case, even if divvy does not have the command.
pub(super) fn find_any<'t>(table: &'t [Spec], name: &[u8]) -> Option<&'t Spec> {
    // The case is folded once for all rows, in an array, which takes a few instructions.
    let mut folded = [0; LONGEST_NAME];
    let lower = folded.get_mut(..name.len())?;
    lower.copy_from_slice(name);
    folded.make_ascii_lowercase();
    let lower = folded.get(..name.len())?;
    table.iter().find(|spec| spec.name.as_bytes() == lower)
}

/// The most frequent command.
pub const HIT: Spec = Spec {
    name: "divvy.hit",
    kind: RequestKind::Hit,
    arity: -1,
    flags: &["write", "denyoom", "fast"],
    group: "divvy",
    summary: "Takes credits for an operation, n of them with COST n. Returns allowed (0 or 1), the credits left, and the \
              seconds until there are more. Requests with the same ID within a minute count once.",
    parse: parse::hit,
    ..Spec::usual(Category::Hit)
};

/// Returns whether `name` is the usual spelling of a hit. A look-up in the table takes two hundred instructions more.
#[inline]
pub fn is_usual_hit(name: &[u8]) -> bool {
    name == b"DIVVY.HIT" || name == b"divvy.hit"
}

/// All commands. The search for a name starts at the top, so frequent ones come first.
pub static COMMANDS: &[Spec] = &[
    HIT,
    Spec {
        name: "divvy.peek",
        kind: RequestKind::Peek,
        arity: -1,
        flags: &["readonly", "fast"],
        group: "divvy",
        summary: "Returns what DIVVY.HIT would return, without taking credit.",
        parse: parse::peek,
        ..Spec::usual(Category::Hit)
    },
    Spec {
        name: "divvy.charge",
        kind: RequestKind::Charge,
        arity: -1,
        flags: &["write", "denyoom", "fast"],
        group: "divvy",
        summary: "Counts credits that an operation has used already, n of them with COST n, even if fewer are left. Returns \
                  the balance, which may be negative, and the seconds until there are more. Counts once with ID.",
        parse: parse::charge,
        ..Spec::usual(Category::Hit)
    },
    Spec {
        name: "divvy.refund",
        kind: RequestKind::Refund,
        arity: -1,
        flags: &["write", "fast"],
        group: "divvy",
        summary: "Gives back credits of an operation, n of them with COST n, at most all that were used. Returns the balance, and the seconds \
                  until there are more. Counts once with ID.",
        parse: parse::refund,
        ..Spec::usual(Category::Hit)
    },
    Spec {
        name: "divvy.reserve",
        kind: RequestKind::Reserve,
        arity: -3,
        flags: &["write", "denyoom", "fast"],
        group: "divvy",
        summary: "Reserves n credits with AMOUNT n, for a number of seconds with TTL, under the client's own name with ID. \
                  Leases last as long as their rule says. Returns allowed (0 or 1), the credits left, the seconds until \
                  there are more, and the reservation's id.",
        parse: reservations::reserve,
        ..Spec::usual(Category::Hit)
    },
    Spec {
        name: "divvy.commit",
        kind: RequestKind::Commit,
        arity: 4,
        flags: &["write", "denyoom", "fast"],
        group: "divvy",
        summary: "Counts the used credits of a reservation, n of them with COST n, and releases the rest. Returns the \
                  balance, the seconds until there are more, and settled, late or repeated.",
        parse: reservations::commit,
        ..Spec::usual(Category::Hit)
    },
    Spec {
        name: "divvy.release",
        kind: RequestKind::Release,
        arity: 2,
        flags: &["write", "fast"],
        group: "divvy",
        summary: "Releases a reservation. Returns 1, or 0 if nothing was reserved.",
        parse: reservations::release,
        ..Spec::usual(Category::Hit)
    },
    Spec {
        name: "divvy.renew",
        kind: RequestKind::Renew,
        arity: -2,
        flags: &["write", "fast"],
        group: "divvy",
        summary: "Extends a reservation by the seconds of TTL from now, or by its original time. A lease lasts as long as its \
                  rule says. Returns the seconds until it expires, or 0 if it does not exist anymore.",
        parse: reservations::renew,
        ..Spec::usual(Category::Hit)
    },
    Spec::of(&api::RESET_COUNTERS),
    // Both have replies of their own over RESP, which are made of text.
    Spec {
        parse: |pairs| Ok(Command::Explain(Pairs(pairs))),
        endpoint: None,
        since: "0.1.0",
        ..Spec::of(&api::EXPLAIN)
    },
    Spec { parse: |_| Ok(Command::Rules), endpoint: None, since: "0.1.0", ..Spec::of(&api::LIST_RULES) },
    Spec::of(&api::LIST_COUNTERS),
    Spec::of(&api::FORGET_COUNTERS),
    Spec::of(&api::RANK),
    Spec::of(&api::SHOW_STATUS),
    Spec {
        name: "divvy.limit",
        arity: -2,
        group: "divvy",
        summary: "Commands about limits of single actors.",
        subcommands: LIMIT,
        ..Spec::usual(Category::Connection)
    },
    Spec {
        name: "divvy.block",
        arity: -2,
        group: "divvy",
        summary: "Commands about blocks of single actors.",
        subcommands: BLOCK,
        ..Spec::usual(Category::Connection)
    },
    Spec {
        name: "divvy.allow",
        arity: -2,
        group: "divvy",
        summary: "Commands about allows of single actors.",
        subcommands: ALLOW,
        ..Spec::usual(Category::Connection)
    },
    Spec::of(&api::RELOAD),
    Spec::of(&api::BACK_UP),
    Spec {
        name: "rl.reduce",
        summary: "Takes tokens, down to 0. Returns the number before. Times are in seconds.",
        parse: bucket::reduce,
        ..Spec::TOKEN_BUCKET
    },
    Spec {
        name: "rl.get",
        summary: "Returns the number of tokens. Times are in seconds.",
        parse: bucket::get,
        ..Spec::TOKENS
    },
    Spec {
        name: "rl.sessionize",
        summary: "Takes tokens. Returns the number before, and the start of the session. Times are in seconds.",
        parse: bucket::sessionize,
        ..Spec::TOKEN_BUCKET
    },
    Spec {
        name: "rl.preduce",
        summary: "Takes tokens, down to 0. Returns the number before. Times are in milliseconds.",
        parse: bucket::reduce_millis,
        ..Spec::TOKEN_BUCKET
    },
    Spec {
        name: "rl.pget",
        summary: "Returns the number of tokens. Times are in milliseconds.",
        parse: bucket::get_millis,
        ..Spec::TOKENS
    },
    Spec {
        name: "rl.psessionize",
        summary: "Takes tokens. Returns the number before, and the start of the session. Times are in milliseconds.",
        parse: bucket::sessionize_millis,
        ..Spec::TOKEN_BUCKET
    },
    Spec {
        name: "cl.throttle",
        arity: -5,
        group: "leaky-bucket",
        summary: "Takes evenly spaced credit. Returns limited (0 or 1), capacity, credits left, seconds to retry and \
                  reset.",
        parse: bucket::throttle,
        ..Spec::TOKEN_BUCKET
    },
    Spec {
        name: "ping",
        arity: -1,
        flags: &["fast"],
        summary: "Returns PONG, or its argument.",
        parse: parse::ping,
        ..Spec::usual(Category::Connection)
    },
    Spec {
        name: "echo",
        arity: 2,
        summary: "Returns its argument.",
        parse: parse::echo,
        ..Spec::usual(Category::Connection)
    },
    Spec {
        name: "hello",
        arity: -1,
        flags: &["noscript", "loading", "stale", "fast", "no_auth"],
        summary: "Selects the version of the protocol, and describes the server.",
        parse: parse::hello,
        ..Spec::usual(Category::Connection)
    },
    Spec {
        name: "auth",
        arity: -2,
        flags: &["noscript", "loading", "stale", "fast", "no_auth"],
        summary: "Authenticates the connection.",
        parse: parse::auth,
        ..Spec::usual(Category::Connection)
    },
    Spec {
        name: "select",
        arity: 2,
        summary: "Selects the database. There is only database 0.",
        parse: parse::select,
        ..Spec::usual(Category::Connection)
    },
    Spec {
        name: "quit",
        arity: -1,
        flags: &["noscript", "loading", "stale", "fast", "no_auth"],
        summary: "Closes the connection.",
        parse: |_| Ok(Command::Quit),
        ..Spec::usual(Category::Connection)
    },
    Spec {
        name: "reset",
        flags: &["noscript", "loading", "stale", "fast", "no_auth"],
        summary: "Resets the connection to its initial state.",
        parse: |_| Ok(Command::ResetConnection),
        ..Spec::usual(Category::Connection)
    },
    Spec {
        name: "multi",
        summary: "Begins a transaction: the commands that follow are queued until EXEC.",
        parse: |_| Ok(Command::Multi),
        ..Spec::TRANSACTION
    },
    Spec {
        name: "exec",
        flags: &["noscript", "loading", "stale"],
        summary: "Executes the commands queued since MULTI. The hits are one batch, under the rules in force now.",
        parse: |_| Ok(Command::Exec),
        ..Spec::TRANSACTION
    },
    Spec {
        name: "discard",
        summary: "Discards the commands queued since MULTI.",
        parse: |_| Ok(Command::Discard),
        ..Spec::TRANSACTION
    },
    Spec {
        name: "watch",
        arity: -2,
        keys: Keys { first: 1, last: -1, step: 1 },
        summary: "Always an error: there are no keys to watch.",
        parse: |_| Ok(Command::Watch),
        ..Spec::TRANSACTION
    },
    Spec {
        name: "unwatch",
        summary: "Does nothing: nothing is watched.",
        parse: |_| Ok(Command::Unwatch),
        ..Spec::TRANSACTION
    },
    Spec {
        name: "client",
        arity: -2,
        summary: "Commands about client connections.",
        subcommands: CLIENT,
        ..Spec::usual(Category::Connection)
    },
    Spec {
        name: "command",
        arity: -1,
        flags: &["loading", "stale"],
        group: "server",
        summary: "Describes the commands.",
        parse: parse::command,
        subcommands: COMMAND,
        ..Spec::usual(Category::Connection)
    },
    Spec {
        name: "acl",
        arity: -2,
        group: "server",
        summary: "Commands about users.",
        subcommands: ACL,
        ..Spec::usual(Category::Connection)
    },
    Spec {
        name: "info",
        kind: RequestKind::Server,
        arity: -1,
        flags: &["loading", "stale"],
        group: "server",
        summary: "Reports on the server, by section.",
        parse: parse::info,
        ..Spec::usual(Category::Info)
    },
    Spec {
        name: "config",
        arity: -2,
        group: "server",
        summary: "Commands about settings.",
        subcommands: CONFIG,
        ..Spec::usual(Category::Connection)
    },
    Spec {
        name: "dbsize",
        kind: RequestKind::Server,
        flags: &["readonly", "fast"],
        group: "server",
        summary: "Returns the number of counters.",
        parse: |_| Ok(Command::DbSize),
        ..Spec::usual(Category::Info)
    },
    Spec {
        name: "time",
        kind: RequestKind::Server,
        group: "server",
        summary: "Returns the server's time: seconds since 1970, and microseconds.",
        parse: |_| Ok(Command::Time),
        ..Spec::usual(Category::Connection)
    },
    Spec {
        name: "role",
        kind: RequestKind::Server,
        flags: &["noscript", "loading", "stale", "fast"],
        group: "server",
        summary: "Returns the role in replication: always master, without replicas.",
        parse: |_| Ok(Command::Role),
        ..Spec::usual(Category::Connection)
    },
    // StackExchange.Redis checks for a cluster and for sentinels.
    Spec { name: "cluster", ..Spec::DECLINED },
    Spec { name: "sentinel", ..Spec::DECLINED },
    // Rueidis sends it if it is configured to read from replicas.
    Spec { name: "readonly", ..Spec::DECLINED },
];

static LIMIT: &[Spec] =
    &[Spec::of(&api::SET_LIMIT), Spec::of(&api::GET_LIMIT), Spec::of(&api::REMOVE_LIMIT), Spec::of(&api::FIND_LIMITS)];

static BLOCK: &[Spec] =
    &[Spec::of(&api::SET_BLOCK), Spec::of(&api::GET_BLOCK), Spec::of(&api::REMOVE_BLOCK), Spec::of(&api::FIND_BLOCKS)];

static ALLOW: &[Spec] =
    &[Spec::of(&api::SET_ALLOW), Spec::of(&api::GET_ALLOW), Spec::of(&api::REMOVE_ALLOW), Spec::of(&api::FIND_ALLOWS)];

static CLIENT: &[Spec] = &[
    Spec {
        name: "setname",
        arity: 3,
        summary: "Names the connection.",
        parse: parse::client_set_name,
        ..Spec::usual(Category::Connection)
    },
    Spec {
        name: "getname",
        arity: 2,
        summary: "Returns the connection's name.",
        parse: |_| Ok(Command::ClientGetName),
        ..Spec::usual(Category::Connection)
    },
    Spec {
        name: "setinfo",
        arity: 4,
        summary: "Sets the client library's name or version.",
        support: Support::Optional,
        parse: parse::client_set_info,
        ..Spec::usual(Category::Connection)
    },
    Spec {
        name: "id",
        arity: 2,
        summary: "Returns the connection's number.",
        parse: |_| Ok(Command::ClientId),
        ..Spec::usual(Category::Connection)
    },
    Spec {
        name: "info",
        arity: 2,
        summary: "Reports on the connection.",
        parse: |_| Ok(Command::ClientInfo),
        ..Spec::usual(Category::Connection)
    },
    Spec {
        name: "list",
        kind: RequestKind::Server,
        arity: -2,
        flags: &["loading", "stale"],
        summary: "Reports on all connections to this listener, or on those of a TYPE or with the given IDs.",
        parse: parse::client_list,
        ..Spec::usual(Category::Info)
    },
    Spec {
        name: "reply",
        arity: 3,
        summary: "Turns replies ON or OFF, or SKIPs the next one.",
        parse: parse::client_reply,
        ..Spec::usual(Category::Connection)
    },
    Spec {
        name: "no-evict",
        arity: 3,
        summary: "Does nothing: divvy never evicts clients.",
        parse: parse::client_switch,
        ..Spec::usual(Category::Connection)
    },
    Spec {
        name: "no-touch",
        arity: 3,
        summary: "Does nothing: commands never change how recently a counter was used.",
        parse: parse::client_switch,
        ..Spec::usual(Category::Connection)
    },
    // redis-py, node-redis, go-redis and Lettuce subscribe to maintenance notifications.
    Spec { name: "maint_notifications", ..Spec::DECLINED },
    // go-redis works without its cache.
    Spec { name: "tracking", ..Spec::DECLINED },
];

static COMMAND: &[Spec] = &[
    Spec {
        name: "count",
        kind: RequestKind::Server,
        arity: 2,
        group: "server",
        summary: "Returns the number of commands.",
        parse: parse::command_count,
        ..Spec::usual(Category::Connection)
    },
    Spec {
        name: "docs",
        kind: RequestKind::Server,
        arity: -2,
        group: "server",
        summary: "Documents the named commands, or all.",
        parse: parse::command_docs,
        ..Spec::usual(Category::Connection)
    },
    Spec {
        name: "info",
        kind: RequestKind::Server,
        arity: -2,
        group: "server",
        summary: "Describes the named commands, or all.",
        parse: parse::command_info,
        ..Spec::usual(Category::Connection)
    },
    Spec {
        name: "list",
        kind: RequestKind::Server,
        arity: -2,
        group: "server",
        summary: "Lists the commands' names.",
        parse: parse::command_list,
        ..Spec::usual(Category::Connection)
    },
];

static CONFIG: &[Spec] = &[Spec {
    name: "get",
    kind: RequestKind::Server,
    arity: -3,
    group: "server",
    summary: "Returns the settings whose names match a glob pattern.",
    parse: parse::config_get,
    ..Spec::usual(Category::Info)
}];

static ACL: &[Spec] = &[
    Spec {
        name: "whoami",
        kind: RequestKind::Server,
        arity: 2,
        group: "server",
        summary: "Returns the name of the connection's user.",
        parse: |_| Ok(Command::Acl(AclAsk::WhoAmI)),
        ..Spec::usual(Category::Connection)
    },
    Spec { group: "server", since: "0.1.0", ..Spec::of(&api::LIST_USERS) },
    Spec {
        name: "getuser",
        kind: RequestKind::Server,
        arity: 3,
        group: "server",
        summary: "Describes a user.",
        parse: acl::get_user,
        ..Spec::usual(Category::Admin)
    },
    Spec {
        name: "cat",
        kind: RequestKind::Server,
        arity: -2,
        group: "server",
        summary: "Lists the categories, or the commands of one.",
        parse: acl::categories,
        ..Spec::usual(Category::Connection)
    },
];
