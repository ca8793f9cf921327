//! The table of commands: each row has a command's name, its arguments, and its purpose.
//!
//! Arity checks, `COMMAND`, parsing and the metrics use it.

use std::borrow::Cow;

use super::bucket_commands::{Verb, throttle, token_bucket};
use super::{
    AclAsk, Command, CommandError, MAX_ECHOED, Mistake, Pairs, Question, connection_commands, echo, hit_commands,
};
use crate::protocol::DEFAULT_MAX_PAIRS;
use crate::protocol::resp::Arguments;
use divvy_access::Category;
use divvy_api::{self as api, ENDPOINTS, Endpoint};
use divvy_core::clock::{NANOS_PER_MILLI, NANOS_PER_SECOND};
use divvy_core::suggestion::nearest;
use divvy_telemetry::metrics::RequestKind;

/// Parses the arguments after a command's name and its subcommand's. Their number has been checked.
type Parse = for<'a> fn(Arguments<'a>) -> Result<Command<'a>, CommandError>;

/// A row of the table.
#[derive(Debug, Clone, Copy)]
pub struct CommandRow {
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

impl CommandRow {
    /// Returns the row of a command about the connection.
    const fn connection(name: &'static str, arity: i64, parse: Parse) -> Self {
        Self {
            command: (name, ""),
            arity,
            flags: &["fast", "loading", "stale"],
            keys: [0; 3],
            kind: RequestKind::Connection,
            group: "connection",
            category: Category::Connection,
            since: "0.1.0",
            summary: "",
            support: Support::Full,
            has_subcommands: false,
            parse,
            endpoint: None,
        }
    }

    /// Returns the row of a command about the server.
    const fn server(name: &'static str, arity: i64, parse: Parse) -> Self {
        Self { kind: RequestKind::Server, group: "server", ..Self::connection(name, arity, parse) }
    }

    /// Returns the row of a command about the credits of an operation or a reservation.
    const fn credits(name: &'static str, arity: i64, kind: RequestKind, parse: Parse) -> Self {
        let usual = Self::connection(name, arity, parse);
        Self { kind, flags: TAKE, group: "divvy", category: Category::Hit, ..usual }
    }

    /// Returns the row of a command with its own token bucket.
    const fn token_bucket(name: &'static str, parse: Parse) -> Self {
        let usual = Self::credits(name, -4, RequestKind::Bucket, parse);
        Self { keys: [1, 1, 1], group: "token-bucket", ..usual }
    }

    /// Returns the row of a command about transactions.
    const fn transaction(name: &'static str, parse: Parse) -> Self {
        Self { flags: TRANSACTION, group: "transactions", ..Self::connection(name, 1, parse) }
    }

    /// Returns the row of a command that consists of its subcommands. Its arity forbids a request without one.
    const fn container(name: &'static str, group: &'static str) -> Self {
        Self { group, has_subcommands: true, ..Self::connection(name, -2, |_| Err(CommandError::SYNTAX)) }
    }

    /// Returns the row of a command that divvy does not have.
    const fn declined(name: &'static str) -> Self {
        Self { support: Support::Declined, ..Self::connection(name, -1, |_| Err(CommandError::SYNTAX)) }
    }

    /// Returns the row of the command that asks for an operation.
    const fn of(endpoint: &'static Endpoint) -> Self {
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
            summary: endpoint.summary,
            endpoint: Some(endpoint),
            ..Self::connection("", endpoint.arity(), |_| Err(CommandError::SYNTAX))
        }
    }

    const fn summary(self, summary: &'static str) -> Self {
        Self { summary, ..self }
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
        all_subcommands().filter(is_offered).filter(move |row| row.command.0 == name)
    }

    /// Finds the row of a subcommand in any case, even if divvy does not have it.
    fn find_subcommand(&self, name: &[u8]) -> Option<&'static Self> {
        let mut of_command = SUBCOMMANDS.iter().chain(&OPERATIONS).filter(|row| row.command.0 == self.command.0);
        of_command.find(|row| row.command.1.as_bytes().eq_ignore_ascii_case(name))
    }

    /// Returns the words after the command's name.
    pub fn words_of<'a>(&self, request: Arguments<'a>) -> Arguments<'a> {
        request.skip(if self.command.1.is_empty() { 1 } else { 2 })
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
        let words = self.words_of(request);
        match self.endpoint {
            Some(endpoint) => {
                // Mistakes are found now, and the words are read again when the operation is carried out.
                api::Arguments::from_words(endpoint, words.iter(), DEFAULT_MAX_PAIRS)?;
                Ok(Command::Operate(endpoint, words))
            }
            None => (self.parse)(words),
        }
    }
}

fn is_help(subcommand: &[u8]) -> bool {
    subcommand.eq_ignore_ascii_case(b"help")
}

fn is_offered(row: &&CommandRow) -> bool {
    row.support != Support::Declined
}

/// Returns the rows of all commands. A command that has a row of its own precedes the operation that it asks for.
pub(super) fn all_commands() -> impl Iterator<Item = &'static CommandRow> + Clone {
    COMMANDS.iter().chain(OPERATIONS.iter().filter(|row| row.command.1.is_empty() && !has_own_row(row, COMMANDS)))
}

/// Returns the rows of all subcommands, in the same order.
pub(super) fn all_subcommands() -> impl Iterator<Item = &'static CommandRow> + Clone {
    SUBCOMMANDS
        .iter()
        .chain(OPERATIONS.iter().filter(|row| !row.command.1.is_empty() && !has_own_row(row, SUBCOMMANDS)))
}

/// Returns whether the table has a row for the operation's command, or RESP has no such command.
fn has_own_row(operation: &CommandRow, table: &[CommandRow]) -> bool {
    operation.command.0.is_empty() || table.iter().any(|row| row.command == operation.command)
}

/// Returns the rows of the commands that divvy has, without their subcommands.
pub fn commands() -> impl Iterator<Item = &'static CommandRow> + Clone {
    all_commands().filter(is_offered)
}

/// Maximum length of a command's name (bytes).
const LONGEST_NAME: usize = 20;

/// Finds the row of a command in any case, even if divvy does not have it.
fn find_any(name: &[u8]) -> Option<&'static CommandRow> {
    // The case is folded once for all rows, in an array, which takes a few instructions.
    let mut folded = [0; LONGEST_NAME];
    let lower = folded.get_mut(..name.len())?;
    lower.copy_from_slice(name);
    folded.make_ascii_lowercase();
    let lower = folded.get(..name.len())?;
    // A row of its own precedes that of an operation, and an operation that is only over HTTP has no name.
    let operations = OPERATIONS.iter().filter(|row| row.command.1.is_empty() && !row.command.0.is_empty());
    COMMANDS.iter().chain(operations).find(|row| row.command.0.as_bytes() == lower)
}

/// Finds the row of a command in any case, if divvy has it.
pub fn find(name: &[u8]) -> Option<&'static CommandRow> {
    find_any(name).filter(|row| row.support != Support::Declined)
}

/// Finds the row of a command or of a subcommand, `command|subcommand`.
pub fn find_full(name: &[u8]) -> Option<&'static CommandRow> {
    let Some((command, subcommand)) =
        name.iter().position(|byte| *byte == b'|').and_then(|at| name.split_at_checked(at))
    else {
        return find(name);
    };
    let found = find(command)?.find_subcommand(subcommand.strip_prefix(b"|")?);
    found.filter(|row| row.support != Support::Declined)
}

/// Finds the row of a request.
///
/// # Errors
/// The command or its subcommand is unknown.
pub fn find_request(request: Arguments<'_>) -> Result<&'static CommandRow, CommandError> {
    let name = request.word(0);
    // The usual spellings of a hit. A look-up in the table takes two hundred instructions more.
    if name == b"DIVVY.HIT" || name == b"divvy.hit" {
        return Ok(&HIT);
    }
    let Some(row) = find(name) else { return Err(unknown_command(request)) };
    match request.get(1) {
        Some(subcommand) if row.has_subcommands && !is_help(subcommand) => {
            let found = row.find_subcommand(subcommand).filter(|found| found.support != Support::Declined);
            found.ok_or_else(|| {
                let (name, command) = (echo(subcommand), row.command.0.to_uppercase());
                let text = format!("ERR unknown subcommand '{name}'. Try {command} HELP.");
                CommandError::new(Mistake::UnknownCommand, text)
            })
        }
        _ => Ok(row),
    }
}

/// Returns whether clients send this request when they connect, and work even if it fails.
pub fn is_optional(request: Arguments<'_>) -> bool {
    let Some(row) = find_any(request.word(0)) else { return false };
    let subcommand = request.get(1).and_then(|name| row.find_subcommand(name));
    subcommand.unwrap_or(row).support != Support::Full
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
    let own: Vec<_> = all_commands().filter_map(|row| row.command.0.strip_prefix("divvy.")).collect();
    let meant = match name.strip_prefix("divvy") {
        Some(rest) => nearest(rest.trim_start_matches(['.', '_', '-', ':']), &own)?,
        None => own.into_iter().find(|known| *known == name)?,
    };
    find(format!("divvy.{meant}").as_bytes()).map(|row| row.command.0)
}

/// The most frequent command.
const HIT: CommandRow = CommandRow::credits("divvy.hit", -1, RequestKind::Hit, hit_commands::hit).summary(
    "Takes credits for an operation, n of them with COST n. Returns allowed (0 or 1), the credits left, and the \
         seconds until there are more. Requests with the same ID within a minute count once.",
);

/// All commands. The search for a name starts at the top, so frequent ones come first.
static COMMANDS: &[CommandRow] = &[
    HIT,
    CommandRow::credits("divvy.peek", -1, RequestKind::Peek, hit_commands::peek)
        .flagged(READ)
        .summary("Returns what DIVVY.HIT would return, without taking credit."),
    CommandRow::credits("divvy.charge", -1, RequestKind::Charge, hit_commands::charge).summary(
        "Counts credits that an operation has used already, n of them with COST n, even if fewer are left. Returns \
         the balance, which may be negative, and the seconds until there are more. Counts once with ID.",
    ),
    CommandRow::credits("divvy.refund", -1, RequestKind::Refund, hit_commands::refund).flagged(WRITE).summary(
        "Gives back credits of an operation, n of them with COST n, at most all that were used. Returns the \
         balance, and the seconds until there are more. Counts once with ID.",
    ),
    CommandRow::credits("divvy.reserve", -3, RequestKind::Reserve, hit_commands::reserve).summary(
        "Reserves n credits with AMOUNT n, for a number of seconds with TTL, under the client's own name with ID. \
         Leases last as long as their rule says. Returns allowed (0 or 1), the credits left, the seconds until \
         there are more, and the reservation's id.",
    ),
    CommandRow::credits("divvy.commit", 4, RequestKind::Commit, hit_commands::commit).summary(
        "Counts the used credits of a reservation, n of them with COST n, and releases the rest. Returns the \
         balance, the seconds until there are more, and settled, late or repeated.",
    ),
    CommandRow::credits("divvy.release", 2, RequestKind::Release, |words| Ok(Command::Release(words.word(0))))
        .flagged(WRITE)
        .summary("Releases a reservation. Returns 1, or 0 if nothing was reserved."),
    CommandRow::credits("divvy.renew", -2, RequestKind::Renew, hit_commands::renew).flagged(WRITE).summary(
        "Extends a reservation by the seconds of TTL from now, or by its original time. A lease lasts as long as its \
         rule says. Returns the seconds until it expires, or 0 if it does not exist anymore.",
    ),
    // Both have replies of their own over RESP, which are made of text.
    CommandRow {
        parse: |pairs| Ok(Command::Explain(Pairs(pairs))),
        endpoint: None,
        since: "0.1.0",
        ..CommandRow::of(&api::EXPLAIN)
    },
    CommandRow { parse: |_| Ok(Command::Rules), endpoint: None, since: "0.1.0", ..CommandRow::of(&api::LIST_RULES) },
    CommandRow::container("divvy.limit", "divvy").summary("Commands about limits of single actors."),
    CommandRow::container("divvy.block", "divvy").summary("Commands about blocks of single actors."),
    CommandRow::container("divvy.allow", "divvy").summary("Commands about allows of single actors."),
    CommandRow::token_bucket("rl.reduce", |words| token_bucket(words, NANOS_PER_SECOND, Verb::Reduce))
        .summary("Takes tokens, down to 0. Returns the number before. Times are in seconds."),
    CommandRow::token_bucket("rl.get", |words| token_bucket(words, NANOS_PER_SECOND, Verb::Get))
        .flagged(READ)
        .for_category(Category::Read)
        .summary("Returns the number of tokens. Times are in seconds."),
    CommandRow::token_bucket("rl.sessionize", |words| token_bucket(words, NANOS_PER_SECOND, Verb::Sessionize))
        .summary("Takes tokens. Returns the number before, and the start of the session. Times are in seconds."),
    CommandRow::token_bucket("rl.preduce", |words| token_bucket(words, NANOS_PER_MILLI, Verb::Reduce))
        .summary("Takes tokens, down to 0. Returns the number before. Times are in milliseconds."),
    CommandRow::token_bucket("rl.pget", |words| token_bucket(words, NANOS_PER_MILLI, Verb::Get))
        .flagged(READ)
        .for_category(Category::Read)
        .summary("Returns the number of tokens. Times are in milliseconds."),
    CommandRow::token_bucket("rl.psessionize", |words| token_bucket(words, NANOS_PER_MILLI, Verb::Sessionize))
        .summary("Takes tokens. Returns the number before, and the start of the session. Times are in milliseconds."),
    CommandRow { arity: -5, group: "leaky-bucket", ..CommandRow::token_bucket("cl.throttle", throttle) }.summary(
        "Takes evenly spaced credit. Returns limited (0 or 1), capacity, credits left, seconds to retry and reset.",
    ),
    CommandRow::connection("ping", -1, connection_commands::ping)
        .flagged(&["fast"])
        .summary("Returns PONG, or its argument."),
    CommandRow::connection("echo", 2, |words| Ok(Command::Echo(words.word(0)))).summary("Returns its argument."),
    CommandRow::connection("hello", -1, connection_commands::hello)
        .flagged(NO_AUTH)
        .summary("Selects the version of the protocol, and describes the server."),
    CommandRow::connection("auth", -2, connection_commands::auth)
        .flagged(NO_AUTH)
        .summary("Authenticates the connection."),
    CommandRow::connection("select", 2, connection_commands::select)
        .summary("Selects the database. There is only database 0."),
    CommandRow::connection("quit", -1, |_| Ok(Command::Quit)).flagged(NO_AUTH).summary("Closes the connection."),
    CommandRow::connection("reset", 1, |_| Ok(Command::ResetConnection))
        .flagged(NO_AUTH)
        .summary("Resets the connection to its initial state."),
    CommandRow::transaction("multi", |_| Ok(Command::Multi))
        .summary("Begins a transaction: the commands that follow are queued until EXEC."),
    CommandRow::transaction("exec", |_| Ok(Command::Exec))
        .flagged(&["noscript", "loading", "stale"])
        .summary("Executes the commands queued since MULTI. The hits are one batch, under the rules in force now."),
    CommandRow::transaction("discard", |_| Ok(Command::Discard)).summary("Discards the commands queued since MULTI."),
    CommandRow { arity: -2, keys: [1, -1, 1], ..CommandRow::transaction("watch", |_| Ok(Command::Watch)) }
        .summary("Always an error: there are no keys to watch."),
    CommandRow::transaction("unwatch", |_| Ok(Command::Unwatch)).summary("Does nothing: nothing is watched."),
    CommandRow::container("client", "connection").summary("Commands about client connections."),
    CommandRow {
        flags: LOADING,
        kind: RequestKind::Connection,
        has_subcommands: true,
        ..CommandRow::server("command", -1, |_| Ok(Command::Describe(Question::All))).summary("Describes the commands.")
    },
    CommandRow::container("acl", "server").summary("Commands about users."),
    CommandRow::server("info", -1, |words| Ok(Command::Info(words)))
        .flagged(LOADING)
        .for_category(Category::Info)
        .summary("Reports on the server, by section."),
    CommandRow::container("config", "server").summary("Commands about settings."),
    CommandRow::server("dbsize", 1, |_| Ok(Command::DbSize))
        .flagged(READ)
        .for_category(Category::Info)
        .summary("Returns the number of counters."),
    CommandRow::server("time", 1, |_| Ok(Command::Time))
        .summary("Returns the server's time: seconds since 1970, and microseconds."),
    CommandRow::server("role", 1, |_| Ok(Command::Role))
        .flagged(TRANSACTION)
        .summary("Returns the role in replication: always master, without replicas."),
    // StackExchange.Redis checks for a cluster and for sentinels.
    CommandRow::declined("cluster"),
    CommandRow::declined("sentinel"),
    // Rueidis sends it if it is configured to read from replicas.
    CommandRow::declined("readonly"),
];

/// The operations of operators.
#[expect(clippy::indexing_slicing, reason = "an index beyond the end does not compile")]
static OPERATIONS: [CommandRow; ENDPOINTS.len()] = {
    let mut rows = [CommandRow::of(&api::RELOAD); ENDPOINTS.len()];
    let mut index = 0;
    while index < rows.len() {
        rows[index] = CommandRow::of(ENDPOINTS[index]);
        index += 1;
    }
    rows
};

/// Subcommands with rows of their own.
static SUBCOMMANDS: &[CommandRow] = &[
    CommandRow::connection("setname", 3, connection_commands::client_set_name)
        .below("client")
        .summary("Names the connection."),
    CommandRow::connection("getname", 2, |_| Ok(Command::ClientGetName))
        .below("client")
        .summary("Returns the connection's name."),
    CommandRow {
        support: Support::Optional,
        ..CommandRow::connection("setinfo", 4, connection_commands::client_set_info)
    }
    .below("client")
    .summary("Sets the client library's name or version."),
    CommandRow::connection("id", 2, |_| Ok(Command::ClientId))
        .below("client")
        .summary("Returns the connection's number."),
    CommandRow::connection("info", 2, |_| Ok(Command::ClientInfo))
        .below("client")
        .summary("Reports on the connection."),
    CommandRow { group: "connection", ..CommandRow::server("list", -2, connection_commands::client_list) }
        .flagged(LOADING)
        .for_category(Category::Info)
        .below("client")
        .summary("Reports on all connections to this listener, or on those of a TYPE or with the given IDs."),
    CommandRow::connection("reply", 3, connection_commands::client_reply)
        .below("client")
        .summary("Turns replies ON or OFF, or SKIPs the next one."),
    CommandRow::connection("no-evict", 3, connection_commands::client_switch)
        .below("client")
        .summary("Does nothing: divvy never evicts clients."),
    CommandRow::connection("no-touch", 3, connection_commands::client_switch)
        .below("client")
        .summary("Does nothing: commands never change how recently a counter was used."),
    // redis-py, node-redis, go-redis and Lettuce subscribe to maintenance notifications.
    CommandRow::declined("maint_notifications").below("client"),
    // go-redis works without its cache.
    CommandRow::declined("tracking").below("client"),
    CommandRow::server("count", 2, |_| Ok(Command::Describe(Question::Count)))
        .below("command")
        .summary("Returns the number of commands."),
    CommandRow::server("docs", -2, |names| Ok(Command::Describe(Question::Docs(names))))
        .below("command")
        .summary("Documents the named commands, or all."),
    CommandRow::server("info", -2, connection_commands::command_info)
        .below("command")
        .summary("Describes the named commands, or all."),
    CommandRow::server("list", -2, connection_commands::command_list)
        .below("command")
        .summary("Lists the commands' names."),
    CommandRow::server("get", -3, |patterns| Ok(Command::ConfigGet(patterns)))
        .for_category(Category::Info)
        .below("config")
        .summary("Returns the settings whose names match a glob pattern."),
    CommandRow::server("whoami", 2, |_| Ok(Command::Acl(AclAsk::WhoAmI)))
        .below("acl")
        .summary("Returns the name of the connection's user."),
    CommandRow { group: "server", since: "0.1.0", ..CommandRow::of(&api::LIST_USERS) },
    CommandRow::server("getuser", 3, |words| Ok(Command::Acl(AclAsk::GetUser(words.word(0)))))
        .for_category(Category::Admin)
        .below("acl")
        .summary("Describes a user."),
    CommandRow::server("cat", -2, connection_commands::acl_categories)
        .below("acl")
        .summary("Lists the categories, or the commands of one."),
];
