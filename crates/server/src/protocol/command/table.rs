//! The table of commands: each row has a command's name, its arguments, and its purpose.
//!
//! Arity checks, `COMMAND`, parsing and the metrics use it.

use std::borrow::Cow;

use super::bucket::{Verb, throttle, token_bucket};
use super::{AclAsk, Command, CommandError, MAX_ECHOED, Mistake, Pairs, PricedOperation, Question, echo, pairs, parse};
use crate::protocol::resp::Arguments;
use divvy_access::Category;
use divvy_api::{self as api, Endpoint};
use divvy_core::clock::{NANOS_PER_MILLI, NANOS_PER_SECOND};
use divvy_core::suggestion::nearest;
use divvy_telemetry::metrics::RequestKind;

/// Parses the arguments after a command's name and its subcommand's. Their number has been checked.
type Parse = for<'a> fn(Arguments<'a>) -> Result<Command<'a>, CommandError>;

/// A row of the table.
#[derive(Debug)]
pub struct Spec {
    /// Names in lower case: the command, and the subcommand, which is empty for the command itself.
    pub command: (&'static str, &'static str),
    /// Number of arguments including the names, in Redis's notation: -2 stands for two or more.
    pub arity: i64,
    /// Redis's flags for clients: `write`, `readonly`, `fast`, `loading`, …
    pub flags: &'static [&'static str],
    /// Positions of the first and the last bucket key among the arguments, and the step between keys; zeros if there is no key.
    /// A negative position counts from the end. A pair is not a key.
    pub keys: [i64; 3],
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
    /// Whether the command has subcommands.
    pub has_subcommands: bool,
    parse: Parse,
    /// The operation that the command asks for, whose row says the rest.
    pub endpoint: Option<&'static Endpoint>,
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

const LOADING: &[&str] = &["loading", "stale"];
const NO_AUTH: &[&str] = &["noscript", "loading", "stale", "fast", "no_auth"];
const READ: &[&str] = &["readonly", "fast"];
const TRANSACTION: &[&str] = &["noscript", "loading", "stale", "fast"];
const TAKE: &[&str] = &["write", "denyoom", "fast"];
const WRITE: &[&str] = &["write", "fast"];

impl Spec {
    /// Returns the row of a command about the connection.
    const fn connection(name: &'static str, arity: i64, parse: Parse, summary: &'static str) -> Self {
        Self {
            command: (name, ""),
            arity,
            flags: &["fast", "loading", "stale"],
            keys: [0; 3],
            kind: RequestKind::Connection,
            group: "connection",
            category: Category::Connection,
            since: "0.1.0",
            summary,
            support: Support::Full,
            has_subcommands: false,
            parse,
            endpoint: None,
        }
    }

    /// Returns the row of a command about the server.
    const fn server(name: &'static str, arity: i64, parse: Parse, summary: &'static str) -> Self {
        Self { kind: RequestKind::Server, group: "server", ..Self::connection(name, arity, parse, summary) }
    }

    /// Returns the row of a command about the credits of an operation or a reservation.
    const fn credits(name: &'static str, arity: i64, kind: RequestKind, parse: Parse, summary: &'static str) -> Self {
        let usual = Self::connection(name, arity, parse, summary);
        Self { kind, flags: TAKE, group: "divvy", category: Category::Hit, ..usual }
    }

    /// Returns the row of a command with its own token bucket.
    const fn token_bucket(name: &'static str, parse: Parse, summary: &'static str) -> Self {
        let usual = Self::credits(name, -4, RequestKind::Bucket, parse, summary);
        Self { keys: [1, 1, 1], group: "token-bucket", ..usual }
    }

    /// Returns the row of a command about transactions.
    const fn transaction(name: &'static str, parse: Parse, summary: &'static str) -> Self {
        Self { flags: TRANSACTION, group: "transactions", ..Self::connection(name, 1, parse, summary) }
    }

    /// Returns the row of a command that consists of its subcommands. Its arity forbids a request without one.
    const fn container(name: &'static str, group: &'static str, summary: &'static str) -> Self {
        Self { group, has_subcommands: true, ..Self::connection(name, -2, |_| Err(CommandError::SYNTAX), summary) }
    }

    /// Returns the row of a command that divvy does not have.
    const fn declined(name: &'static str) -> Self {
        Self { support: Support::Declined, ..Self::connection(name, -1, |_| Err(CommandError::SYNTAX), "") }
    }

    /// Returns the row of the command that asks for an operation.
    const fn of(endpoint: &'static Endpoint) -> Self {
        let usual = Self::connection("", endpoint.arity(), |_| Err(CommandError::SYNTAX), endpoint.summary);
        Self {
            command: endpoint.command,
            flags: match (endpoint.action(), endpoint.category) {
                (_, Category::Admin | Category::Backup) => &["admin"],
                (Some(_), _) => &["write"],
                (None, _) => &["readonly"],
            },
            kind: endpoint.kind,
            group: "divvy",
            category: endpoint.category,
            since: "0.2.0",
            endpoint: Some(endpoint),
            ..usual
        }
    }

    const fn flagged(self, flags: &'static [&'static str]) -> Self {
        Self { flags, ..self }
    }

    const fn for_category(self, category: Category) -> Self {
        Self { category, ..self }
    }

    /// Makes it the row of a subcommand.
    const fn below(self, command: &'static str) -> Self {
        Self { command: (command, self.command.0), ..self }
    }

    /// Returns the name of the command, or of the subcommand without its command's name.
    pub fn name(&self) -> &'static str {
        let (command, subcommand) = self.command;
        if subcommand.is_empty() { command } else { subcommand }
    }

    /// Returns the name in Redis's lists: `command|subcommand` for a subcommand.
    pub fn full_name(&self) -> Cow<'static, str> {
        match self.command {
            (command, "") => command.into(),
            (command, subcommand) => format!("{command}|{subcommand}").into(),
        }
    }

    /// Returns the rows of the subcommands that divvy has.
    pub fn subcommands(&self) -> impl Iterator<Item = &'static Self> + Clone + use<> {
        let name = if self.has_subcommands { self.command.0 } else { "" };
        offered(SUBCOMMANDS).filter(move |spec| spec.command.0 == name)
    }

    /// Finds the row of a subcommand in any case, even if divvy does not have it.
    fn find_subcommand(&self, name: &[u8]) -> Option<&'static Self> {
        let mut of_command = SUBCOMMANDS.iter().filter(|spec| spec.command.0 == self.command.0);
        of_command.find(|spec| spec.command.1.as_bytes().eq_ignore_ascii_case(name))
    }

    /// Reads a request of this command.
    ///
    /// # Errors
    /// The number of arguments is wrong, or one of them.
    pub fn parse<'a>(&'static self, request: Arguments<'a>) -> Result<Command<'a>, CommandError> {
        if self.has_subcommands && request.get(1).is_some_and(is_help) {
            return Ok(Command::Describe(Question::Help(self)));
        }
        let stated = usize::try_from(self.arity.unsigned_abs()).unwrap_or(usize::MAX);
        let fits = if self.arity < 0 { request.len() >= stated } else { request.len() == stated };
        if !fits {
            return Err(CommandError::wrong_arity(&self.full_name()));
        }
        let words = request.skip(if self.command.1.is_empty() { 1 } else { 2 });
        match self.endpoint {
            Some(endpoint) => {
                // Mistakes are found now, and the words are read again when the operation is carried out.
                api::Arguments::from_words(endpoint, words.iter(), usize::MAX)?;
                Ok(Command::Operate(endpoint, words))
            }
            None => (self.parse)(words),
        }
    }
}

fn is_help(subcommand: &[u8]) -> bool {
    subcommand.eq_ignore_ascii_case(b"help")
}

fn offered(table: &'static [Spec]) -> impl Iterator<Item = &'static Spec> + Clone {
    table.iter().filter(|spec| spec.support != Support::Declined)
}

/// Returns the rows of the commands that divvy has, without their subcommands.
pub fn commands() -> impl Iterator<Item = &'static Spec> + Clone {
    offered(COMMANDS)
}

/// Maximum length of a command's name (bytes).
const LONGEST_NAME: usize = 20;

/// Finds the row of a command in any case, even if divvy does not have it.
fn find_any(name: &[u8]) -> Option<&'static Spec> {
    // The case is folded once for all rows, in an array, which takes a few instructions.
    let mut folded = [0; LONGEST_NAME];
    let lower = folded.get_mut(..name.len())?;
    lower.copy_from_slice(name);
    folded.make_ascii_lowercase();
    let lower = folded.get(..name.len())?;
    COMMANDS.iter().find(|spec| spec.command.0.as_bytes() == lower)
}

/// Finds the row of a command in any case, if divvy has it.
pub fn find(name: &[u8]) -> Option<&'static Spec> {
    find_any(name).filter(|spec| spec.support != Support::Declined)
}

/// Finds the row of a command or of a subcommand, `command|subcommand`.
pub fn find_full(name: &[u8]) -> Option<&'static Spec> {
    let Some((command, subcommand)) =
        name.iter().position(|byte| *byte == b'|').and_then(|at| name.split_at_checked(at))
    else {
        return find(name);
    };
    let found = find(command)?.find_subcommand(subcommand.strip_prefix(b"|")?);
    found.filter(|spec| spec.support != Support::Declined)
}

/// Finds the row of a request.
///
/// # Errors
/// The command or its subcommand is unknown.
pub fn find_request(request: Arguments<'_>) -> Result<&'static Spec, CommandError> {
    let name = request.word(0);
    // The usual spellings of a hit. A look-up in the table takes two hundred instructions more.
    if name == b"DIVVY.HIT" || name == b"divvy.hit" {
        return Ok(&HIT);
    }
    let Some(spec) = find(name) else { return Err(unknown_command(request)) };
    match request.get(1) {
        Some(subcommand) if spec.has_subcommands && !is_help(subcommand) => {
            let found = spec.find_subcommand(subcommand).filter(|found| found.support != Support::Declined);
            found.ok_or_else(|| {
                let (name, command) = (echo(subcommand), spec.command.0.to_uppercase());
                let text = format!("ERR unknown subcommand '{name}'. Try {command} HELP.");
                CommandError::new(Mistake::UnknownCommand, text)
            })
        }
        _ => Ok(spec),
    }
}

/// Returns whether clients send this request when they connect, and work even if it fails.
pub fn is_optional(request: Arguments<'_>) -> bool {
    let Some(spec) = find_any(request.word(0)) else { return false };
    let subcommand = request.get(1).and_then(|name| spec.find_subcommand(name));
    subcommand.unwrap_or(spec).support != Support::Full
}

/// Describes an unknown command: its name and arguments, cut, and perhaps a command with a similar name.
fn unknown_command(request: Arguments) -> CommandError {
    let mut arguments = String::new();
    for argument in request.skip(1).iter() {
        let Some(room) = MAX_ECHOED.checked_sub(arguments.len()).filter(|&room| room > 0) else { break };
        arguments.push_str(&format!("'{}' ", echo(argument.get(..room).unwrap_or(argument))));
    }
    let name = request.word(0);
    let hint = suggest(name).map(|meant| format!("(did you mean {}?)", meant.to_uppercase())).unwrap_or_default();
    let name = echo(name);
    let text = format!("ERR unknown command '{name}', with args beginning with: {arguments}{hint}");
    CommandError::new(Mistake::UnknownCommand, text)
}

/// Returns the divvy command that `name` probably stands for: `divvy.hit` for `HIT` or `DIVVY.HITS`. Names of Redis's commands
/// have no suggestion.
pub(super) fn suggest(name: &[u8]) -> Option<&'static str> {
    let name = std::str::from_utf8(name).ok()?.to_lowercase();
    let own: Vec<_> = COMMANDS.iter().filter_map(|spec| spec.command.0.strip_prefix("divvy.")).collect();
    let meant = match name.strip_prefix("divvy") {
        Some(rest) => nearest(rest.trim_start_matches(['.', '_', '-', ':']), &own)?,
        None => own.into_iter().find(|known| *known == name)?,
    };
    find(format!("divvy.{meant}").as_bytes()).map(|spec| spec.command.0)
}

/// The most frequent command.
const HIT: Spec = Spec::credits(
    "divvy.hit",
    -1,
    RequestKind::Hit,
    |words| PricedOperation::read(words).map(Command::Hit),
    "Takes credits for an operation, n of them with COST n. Returns allowed (0 or 1), the credits left, and the seconds \
     until there are more. Requests with the same ID within a minute count once.",
);

/// All commands. The search for a name starts at the top, so frequent ones come first.
pub(super) static COMMANDS: &[Spec] = &[
    HIT,
    Spec::credits(
        "divvy.peek",
        -1,
        RequestKind::Peek,
        pairs::peek,
        "Returns what DIVVY.HIT would return, without taking credit.",
    )
    .flagged(READ),
    Spec::credits(
        "divvy.charge",
        -1,
        RequestKind::Charge,
        |words| PricedOperation::read(words).map(Command::Charge),
        "Counts credits that an operation has used already, n of them with COST n, even if fewer are left. Returns \
         the balance, which may be negative, and the seconds until there are more. Counts once with ID.",
    ),
    Spec::credits(
        "divvy.refund",
        -1,
        RequestKind::Refund,
        |words| PricedOperation::read(words).map(Command::Refund),
        "Gives back credits of an operation, n of them with COST n, at most all that were used. Returns the \
         balance, and the seconds until there are more. Counts once with ID.",
    )
    .flagged(WRITE),
    Spec::credits(
        "divvy.reserve",
        -3,
        RequestKind::Reserve,
        pairs::reserve,
        "Reserves n credits with AMOUNT n, for a number of seconds with TTL, under the client's own name with ID. \
         Leases last as long as their rule says. Returns allowed (0 or 1), the credits left, the seconds until \
         there are more, and the reservation's id.",
    ),
    Spec::credits(
        "divvy.commit",
        4,
        RequestKind::Commit,
        pairs::commit,
        "Counts the used credits of a reservation, n of them with COST n, and releases the rest. Returns the \
         balance, the seconds until there are more, and settled, late or repeated.",
    ),
    Spec::credits(
        "divvy.release",
        2,
        RequestKind::Release,
        |words| Ok(Command::Release(words.word(0))),
        "Releases a reservation. Returns 1, or 0 if nothing was reserved.",
    )
    .flagged(WRITE),
    Spec::credits(
        "divvy.renew",
        -2,
        RequestKind::Renew,
        pairs::renew,
        "Extends a reservation by the seconds of TTL from now, or by its original time. A lease lasts as long as its \
             rule says. Returns the seconds until it expires, or 0 if it does not exist anymore.",
    )
    .flagged(WRITE),
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
    Spec::container("divvy.limit", "divvy", "Commands about limits of single actors."),
    Spec::container("divvy.block", "divvy", "Commands about blocks of single actors."),
    Spec::container("divvy.allow", "divvy", "Commands about allows of single actors."),
    Spec::of(&api::RELOAD),
    Spec::of(&api::BACK_UP),
    Spec::token_bucket(
        "rl.reduce",
        |words| token_bucket(words, NANOS_PER_SECOND, Verb::Reduce),
        "Takes tokens, down to 0. Returns the number before. Times are in seconds.",
    ),
    Spec::token_bucket(
        "rl.get",
        |words| token_bucket(words, NANOS_PER_SECOND, Verb::Get),
        "Returns the number of tokens. Times are in seconds.",
    )
    .flagged(READ)
    .for_category(Category::Read),
    Spec::token_bucket(
        "rl.sessionize",
        |words| token_bucket(words, NANOS_PER_SECOND, Verb::Sessionize),
        "Takes tokens. Returns the number before, and the start of the session. Times are in seconds.",
    ),
    Spec::token_bucket(
        "rl.preduce",
        |words| token_bucket(words, NANOS_PER_MILLI, Verb::Reduce),
        "Takes tokens, down to 0. Returns the number before. Times are in milliseconds.",
    ),
    Spec::token_bucket(
        "rl.pget",
        |words| token_bucket(words, NANOS_PER_MILLI, Verb::Get),
        "Returns the number of tokens. Times are in milliseconds.",
    )
    .flagged(READ)
    .for_category(Category::Read),
    Spec::token_bucket(
        "rl.psessionize",
        |words| token_bucket(words, NANOS_PER_MILLI, Verb::Sessionize),
        "Takes tokens. Returns the number before, and the start of the session. Times are in milliseconds.",
    ),
    Spec {
        arity: -5,
        group: "leaky-bucket",
        ..Spec::token_bucket(
            "cl.throttle",
            throttle,
            "Takes evenly spaced credit. Returns limited (0 or 1), capacity, credits left, seconds to retry and reset.",
        )
    },
    Spec::connection("ping", -1, parse::ping, "Returns PONG, or its argument.").flagged(&["fast"]),
    Spec::connection("echo", 2, |words| Ok(Command::Echo(words.word(0))), "Returns its argument."),
    Spec::connection("hello", -1, parse::hello, "Selects the version of the protocol, and describes the server.")
        .flagged(NO_AUTH),
    Spec::connection("auth", -2, parse::auth, "Authenticates the connection.").flagged(NO_AUTH),
    Spec::connection("select", 2, parse::select, "Selects the database. There is only database 0."),
    Spec::connection("quit", -1, |_| Ok(Command::Quit), "Closes the connection.").flagged(NO_AUTH),
    Spec::connection("reset", 1, |_| Ok(Command::ResetConnection), "Resets the connection to its initial state.")
        .flagged(NO_AUTH),
    Spec::transaction(
        "multi",
        |_| Ok(Command::Multi),
        "Begins a transaction: the commands that follow are queued until EXEC.",
    ),
    Spec::transaction(
        "exec",
        |_| Ok(Command::Exec),
        "Executes the commands queued since MULTI. The hits are one batch, under the rules in force now.",
    )
    .flagged(&["noscript", "loading", "stale"]),
    Spec::transaction("discard", |_| Ok(Command::Discard), "Discards the commands queued since MULTI."),
    Spec {
        arity: -2,
        keys: [1, -1, 1],
        ..Spec::transaction("watch", |_| Ok(Command::Watch), "Always an error: there are no keys to watch.")
    },
    Spec::transaction("unwatch", |_| Ok(Command::Unwatch), "Does nothing: nothing is watched."),
    Spec::container("client", "connection", "Commands about client connections."),
    Spec {
        flags: LOADING,
        kind: RequestKind::Connection,
        has_subcommands: true,
        ..Spec::server("command", -1, |_| Ok(Command::Describe(Question::All)), "Describes the commands.")
    },
    Spec::container("acl", "server", "Commands about users."),
    Spec::server("info", -1, |words| Ok(Command::Info(words)), "Reports on the server, by section.")
        .flagged(LOADING)
        .for_category(Category::Info),
    Spec::container("config", "server", "Commands about settings."),
    Spec::server("dbsize", 1, |_| Ok(Command::DbSize), "Returns the number of counters.")
        .flagged(READ)
        .for_category(Category::Info),
    Spec::server("time", 1, |_| Ok(Command::Time), "Returns the server's time: seconds since 1970, and microseconds."),
    Spec::server("role", 1, |_| Ok(Command::Role), "Returns the role in replication: always master, without replicas.")
        .flagged(TRANSACTION),
    // StackExchange.Redis checks for a cluster and for sentinels.
    Spec::declined("cluster"),
    Spec::declined("sentinel"),
    // Rueidis sends it if it is configured to read from replicas.
    Spec::declined("readonly"),
];

/// All subcommands.
pub(super) static SUBCOMMANDS: &[Spec] = &[
    Spec::of(&api::SET_LIMIT),
    Spec::of(&api::GET_LIMIT),
    Spec::of(&api::REMOVE_LIMIT),
    Spec::of(&api::FIND_LIMITS),
    Spec::of(&api::SET_BLOCK),
    Spec::of(&api::GET_BLOCK),
    Spec::of(&api::REMOVE_BLOCK),
    Spec::of(&api::FIND_BLOCKS),
    Spec::of(&api::SET_ALLOW),
    Spec::of(&api::GET_ALLOW),
    Spec::of(&api::REMOVE_ALLOW),
    Spec::of(&api::FIND_ALLOWS),
    Spec::connection("setname", 3, parse::client_set_name, "Names the connection.").below("client"),
    Spec::connection("getname", 2, |_| Ok(Command::ClientGetName), "Returns the connection's name.").below("client"),
    Spec {
        support: Support::Optional,
        ..Spec::connection("setinfo", 4, parse::client_set_info, "Sets the client library's name or version.")
    }
    .below("client"),
    Spec::connection("id", 2, |_| Ok(Command::ClientId), "Returns the connection's number.").below("client"),
    Spec::connection("info", 2, |_| Ok(Command::ClientInfo), "Reports on the connection.").below("client"),
    Spec {
        kind: RequestKind::Server,
        flags: LOADING,
        category: Category::Info,
        ..Spec::connection(
            "list",
            -2,
            parse::client_list,
            "Reports on all connections to this listener, or on those of a TYPE or with the given IDs.",
        )
    }
    .below("client"),
    Spec::connection("reply", 3, parse::client_reply, "Turns replies ON or OFF, or SKIPs the next one.")
        .below("client"),
    Spec::connection("no-evict", 3, parse::client_switch, "Does nothing: divvy never evicts clients.").below("client"),
    Spec::connection(
        "no-touch",
        3,
        parse::client_switch,
        "Does nothing: commands never change how recently a counter was used.",
    )
    .below("client"),
    // redis-py, node-redis, go-redis and Lettuce subscribe to maintenance notifications.
    Spec::declined("maint_notifications").below("client"),
    // go-redis works without its cache.
    Spec::declined("tracking").below("client"),
    Spec::server("count", 2, |_| Ok(Command::Describe(Question::Count)), "Returns the number of commands.")
        .below("command"),
    Spec::server(
        "docs",
        -2,
        |names| Ok(Command::Describe(Question::Docs(names))),
        "Documents the named commands, or all.",
    )
    .below("command"),
    Spec::server("info", -2, parse::command_info, "Describes the named commands, or all.").below("command"),
    Spec::server("list", -2, parse::command_list, "Lists the commands' names.").below("command"),
    Spec::server(
        "get",
        -3,
        |patterns| Ok(Command::ConfigGet(patterns)),
        "Returns the settings whose names match a glob pattern.",
    )
    .for_category(Category::Info)
    .below("config"),
    Spec::server("whoami", 2, |_| Ok(Command::Acl(AclAsk::WhoAmI)), "Returns the name of the connection's user.")
        .below("acl"),
    Spec { group: "server", since: "0.1.0", ..Spec::of(&api::LIST_USERS) },
    Spec {
        category: Category::Admin,
        ..Spec::server("getuser", 3, |words| Ok(Command::Acl(AclAsk::GetUser(words.word(0)))), "Describes a user.")
    }
    .below("acl"),
    Spec::server("cat", -2, parse::acl_categories, "Lists the categories, or the commands of one.").below("acl"),
];
