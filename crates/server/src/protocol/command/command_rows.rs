//! The table of commands: each row has a command's name, its arguments, and its purpose.
//!
//! Arity checks, `COMMAND`, parsing and the metrics use it.

use std::borrow::Cow;
use std::sync::LazyLock;

use super::bucket_commands::{Verb, increment, throttle, token_bucket};
use super::connection_commands::{
    acl_categories, auth, client_reply, client_set_info, client_set_name, client_switch, hello, ping, select,
};
use super::hit_commands::{ask, commit, give_back, renew, reserve, share};
use super::{AclAsk, Command, CommandError, Mistake, Question, echo};
use crate::protocol::DEFAULT_MAX_PAIRS;
use crate::protocol::resp::Arguments;
use divvy_access::Category;
use divvy_api::{self as api, ENDPOINTS, Endpoint, Inspection, Task};
use divvy_core::clock::{NANOS_PER_MILLI, NANOS_PER_SECOND};
use divvy_limiter::{Intent, Settlement};
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
    /// Whether the first argument is the key of a bucket. A pair is not a key.
    pub has_key: bool,
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

const READ: &[&str] = &["readonly", "fast"];
const WRITE: &[&str] = &["write", "fast"];

/// Names of a command, as [`CommandRow::command`] has them.
type Names = (&'static str, &'static str);

/// Returns the row of a command about the connection.
const fn connection(command: Names, arity: i64, parse: Parse) -> CommandRow {
    CommandRow {
        command,
        arity,
        flags: &["fast", "loading", "stale"],
        has_key: false,
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

/// Returns the row of a command that needs no login.
const fn public(name: &'static str, arity: i64, parse: Parse) -> CommandRow {
    CommandRow { flags: &["noscript", "loading", "stale", "fast", "no_auth"], ..connection((name, ""), arity, parse) }
}

/// Returns the row of a command about transactions.
const fn transaction(name: &'static str, arity: i64, parse: Parse) -> CommandRow {
    let usual = connection((name, ""), arity, parse);
    CommandRow { flags: &["noscript", "loading", "stale", "fast"], group: "transactions", ..usual }
}

/// Returns the row of a command about the server.
const fn server(command: Names, arity: i64, parse: Parse) -> CommandRow {
    CommandRow { kind: RequestKind::Server, group: "server", ..connection(command, arity, parse) }
}

/// Returns the row of a command that reports on the server.
const fn report(command: Names, arity: i64, parse: Parse) -> CommandRow {
    CommandRow { category: Category::Info, ..server(command, arity, parse) }
}

/// Returns the row of a command about the credits of an operation or a reservation.
const fn credits(name: &'static str, arity: i64, kind: RequestKind, parse: Parse) -> CommandRow {
    let usual = connection((name, ""), arity, parse);
    CommandRow { kind, flags: WRITE, group: "divvy", category: Category::Hit, ..usual }
}

/// Returns the row of a command with its own limit.
const fn bucket(name: &'static str, arity: i64, parse: Parse) -> CommandRow {
    CommandRow { has_key: true, group: "buckets", ..credits(name, arity, RequestKind::Bucket, parse) }
}

/// Returns the row of a command that shows the state of a bucket.
const fn bucket_state(name: &'static str, arity: i64, parse: Parse) -> CommandRow {
    CommandRow { flags: READ, category: Category::Read, ..bucket(name, arity, parse) }
}

/// Returns the row of a command that consists of its subcommands. Its arity forbids a request without one.
const fn container(name: &'static str, group: &'static str) -> CommandRow {
    CommandRow { group, has_subcommands: true, ..connection((name, ""), -2, |_| Err(CommandError::SYNTAX)) }
}

/// Returns the row of a command that divvy does not have.
const fn declined(command: Names) -> CommandRow {
    CommandRow { support: Support::Declined, ..connection(command, -1, |_| Err(CommandError::SYNTAX)) }
}

/// Returns the row of the command that asks for an operation.
fn operation(endpoint: &'static Endpoint) -> CommandRow {
    CommandRow {
        flags: match (endpoint.action(), endpoint.category) {
            (_, Category::Admin | Category::Backup) => &["admin"],
            (Some(_), _) => &["write"],
            (None, _) => &["readonly"],
        },
        kind: endpoint.kind,
        group: "divvy",
        category: endpoint.category,
        since: match endpoint.task {
            Task::Read(Inspection::Rules | Inspection::Explanation | Inspection::Users) => "0.1.0",
            _ => "0.2.0",
        },
        summary: endpoint.summary,
        endpoint: Some(endpoint),
        ..connection(endpoint.command, endpoint.arity(), |_| Err(CommandError::SYNTAX))
    }
}

impl CommandRow {
    const fn summary(self, summary: &'static str) -> Self {
        Self { summary, ..self }
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
        let (name, has_some) = (self.command.0, self.has_subcommands);
        rows().filter(move |row| has_some && row.command.0 == name && !row.command.1.is_empty() && row.is_offered())
    }

    /// Finds the row of a subcommand in any case, even if divvy does not have it.
    fn find_subcommand(&self, name: &[u8]) -> Option<&'static Self> {
        let mut of_command = rows().filter(|row| row.command.0 == self.command.0 && !row.command.1.is_empty());
        of_command.find(|row| row.command.1.as_bytes().eq_ignore_ascii_case(name))
    }

    /// Returns whether the command needs no login.
    pub fn is_public(&self) -> bool {
        self.flags.contains(&"no_auth")
    }

    /// Returns whether divvy has the command.
    fn is_offered(&self) -> bool {
        self.support != Support::Declined
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

/// Returns all rows. An operation that is only over HTTP has none, and `INFO` answers in Redis's format instead.
pub(super) fn rows() -> impl Iterator<Item = &'static CommandRow> + Clone {
    COMMANDS.iter().chain(OPERATIONS.iter())
}

/// Returns the rows of the commands that divvy has, without their subcommands.
pub fn commands() -> impl Iterator<Item = &'static CommandRow> + Clone {
    rows().filter(|row| row.command.1.is_empty() && row.is_offered())
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
    rows().find(|row| row.command.0.as_bytes() == lower && row.command.1.is_empty())
}

/// Finds the row of a command in any case, if divvy has it.
pub fn find(name: &[u8]) -> Option<&'static CommandRow> {
    find_any(name).filter(|row| row.is_offered())
}

/// Finds the row of a command or of a subcommand, `command|subcommand`.
pub fn find_full(name: &[u8]) -> Option<&'static CommandRow> {
    let name = std::str::from_utf8(name).ok()?;
    match name.split_once('|') {
        None => find(name.as_bytes()),
        Some((command, subcommand)) => {
            find(command.as_bytes())?.find_subcommand(subcommand.as_bytes()).filter(|row| row.is_offered())
        }
    }
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
    let Some(row) = find(name) else {
        let text = format!("ERR unknown command '{}'", echo(name));
        return Err(CommandError::new(Mistake::UnknownCommand, text));
    };
    match request.get(1) {
        Some(subcommand) if row.has_subcommands => {
            row.find_subcommand(subcommand).filter(|found| found.is_offered()).ok_or_else(|| {
                let text = format!("ERR unknown subcommand '{}' of {}", echo(subcommand), row.command.0.to_uppercase());
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

/// The most frequent command.
const HIT: CommandRow = credits("divvy.hit", -1, RequestKind::Hit, |words| ask(Intent::Hit, words))
    .summary("Takes credits. Returns allowed (0 or 1), the credits left, and the seconds until there are more.");

/// All commands that are no operations of operators. The search for a name starts at the top, so frequent ones come first.
static COMMANDS: &[CommandRow] = &[
    HIT,
    CommandRow { flags: READ, ..credits("divvy.peek", -1, RequestKind::Peek, |words| ask(Intent::Peek, words)) }
        .summary("Returns what DIVVY.HIT would return, without taking credit."),
    credits("divvy.charge", -1, RequestKind::Charge, |words| ask(Intent::Charge, words))
        .summary("Counts credits that were used already. Returns the balance, and the seconds until there are more."),
    credits("divvy.refund", -1, RequestKind::Refund, |words| ask(Intent::Refund, words))
        .summary("Gives credits back. Returns the balance, and the seconds until there are more."),
    credits("divvy.reserve", -3, RequestKind::Reserve, reserve)
        .summary("Reserves credits. Returns what DIVVY.HIT returns, and the reservation's id."),
    credits("divvy.commit", 4, RequestKind::Commit, commit).summary(
        "Counts the used credits of a reservation, and releases the rest. Returns the balance and the status.",
    ),
    credits("divvy.release", 2, RequestKind::Release, |words| Ok(Command::Settle(words.word(0), Settlement::Release)))
        .summary("Releases a reservation. Returns 1, or 0 if nothing was reserved."),
    credits("divvy.renew", -2, RequestKind::Renew, renew)
        .summary("Extends a reservation. Returns the seconds until it expires, or 0 if it does not exist anymore."),
    credits("divvy.share", -3, RequestKind::Share, share).summary(
        "Takes a share of a counter. Returns its credits, the milliseconds for which they may be granted, and its id.",
    ),
    credits("divvy.return", 4, RequestKind::Return, give_back)
        .summary("Gives back unused credits of a share. Returns 1, or 0 if the share is over."),
    container("divvy.limit", "divvy").summary("Commands about limits of single actors."),
    container("divvy.block", "divvy").summary("Commands about blocks of single actors."),
    container("divvy.allow", "divvy").summary("Commands about allows of single actors."),
    bucket("rl.reduce", -4, |words| token_bucket(words, NANOS_PER_SECOND, Verb::Reduce))
        .summary("Takes tokens, down to 0. Returns the number before. Times are in seconds."),
    bucket_state("rl.get", -4, |words| token_bucket(words, NANOS_PER_SECOND, Verb::Get))
        .summary("Returns the number of tokens. Times are in seconds."),
    bucket("rl.sessionize", -4, |words| token_bucket(words, NANOS_PER_SECOND, Verb::Sessionize))
        .summary("Takes tokens. Returns the number before, and the start of the session. Times are in seconds."),
    bucket("rl.preduce", -4, |words| token_bucket(words, NANOS_PER_MILLI, Verb::Reduce))
        .summary("RL.REDUCE with times in milliseconds."),
    bucket_state("rl.pget", -4, |words| token_bucket(words, NANOS_PER_MILLI, Verb::Get))
        .summary("RL.GET with times in milliseconds."),
    bucket("rl.psessionize", -4, |words| token_bucket(words, NANOS_PER_MILLI, Verb::Sessionize))
        .summary("RL.SESSIONIZE with times in milliseconds."),
    bucket("cl.throttle", -5, throttle).summary(
        "Takes evenly spaced credit. Returns limited (0 or 1), capacity, credits left, seconds to retry and reset.",
    ),
    CommandRow { since: "0.2.0", ..bucket("increx", -2, increment) }.summary(
        "Adds to a counter between bounds, and sets its expiry. Returns its value, and the increment applied.",
    ),
    connection(("ping", ""), -1, ping).summary("Returns PONG, or its argument."),
    connection(("echo", ""), 2, |words| Ok(Command::Echo(words.word(0)))).summary("Returns its argument."),
    public("hello", -1, hello).summary("Selects the version of the protocol, and describes the server."),
    public("auth", -2, auth).summary("Authenticates the connection."),
    connection(("select", ""), 2, select).summary("Selects the database. There is only database 0."),
    public("quit", -1, |_| Ok(Command::Quit)).summary("Closes the connection."),
    public("reset", 1, |_| Ok(Command::ResetConnection)).summary("Resets the connection to its initial state."),
    transaction("multi", 1, |_| Ok(Command::Multi)).summary("Queues the commands that follow until EXEC."),
    transaction("exec", 1, |_| Ok(Command::Exec))
        .summary("Executes the queued commands, under the rules in force now."),
    transaction("discard", 1, |_| Ok(Command::Discard)).summary("Discards the commands queued since MULTI."),
    transaction("watch", -2, |_| Ok(Command::Watch)).summary("Always an error: there are no keys to watch."),
    transaction("unwatch", 1, |_| Ok(Command::Okay)).summary("Does nothing: nothing is watched."),
    container("client", "connection").summary("Commands about client connections."),
    connection(("client", "setname"), 3, client_set_name).summary("Names the connection."),
    connection(("client", "getname"), 2, |_| Ok(Command::ClientGetName)).summary("Returns the connection's name."),
    CommandRow { support: Support::Optional, ..connection(("client", "setinfo"), 4, client_set_info) }
        .summary("Sets the client library's name or version."),
    connection(("client", "id"), 2, |_| Ok(Command::ClientId)).summary("Returns the connection's number."),
    connection(("client", "info"), 2, |_| Ok(Command::ClientInfo)).summary("Reports on the connection."),
    report(("client", "list"), 2, |_| Ok(Command::ClientList)).summary("Reports on all connections to this listener."),
    connection(("client", "reply"), 3, client_reply).summary("Turns replies ON or OFF, or SKIPs the next one."),
    connection(("client", "no-evict"), 3, client_switch).summary("Does nothing: divvy never evicts clients."),
    connection(("client", "no-touch"), 3, client_switch).summary("Does nothing: there is no order of use to change."),
    // redis-py, node-redis, go-redis and Lettuce subscribe to maintenance notifications.
    declined(("client", "maint_notifications")),
    // go-redis works without its cache.
    declined(("client", "tracking")),
    CommandRow {
        has_subcommands: true,
        ..server(("command", ""), -1, |names| Ok(Command::Describe(Question::Info(names))))
            .summary("Describes the commands.")
    },
    server(("command", "count"), 2, |_| Ok(Command::Describe(Question::Count)))
        .summary("Returns the number of commands."),
    server(("command", "docs"), -2, |names| Ok(Command::Describe(Question::Docs(names))))
        .summary("Documents the named commands, or all."),
    server(("command", "info"), -2, |names| Ok(Command::Describe(Question::Info(names))))
        .summary("Describes the named commands, or all."),
    server(("command", "list"), 2, |_| Ok(Command::Describe(Question::List))).summary("Lists the commands' names."),
    container("acl", "server").summary("Commands about users."),
    server(("acl", "whoami"), 2, |_| Ok(Command::Acl(AclAsk::WhoAmI))).summary("Returns the user of the connection."),
    CommandRow {
        category: Category::Admin,
        ..server(("acl", "getuser"), 3, |words| Ok(Command::Acl(AclAsk::GetUser(words.word(0)))))
    }
    .summary("Describes a user."),
    server(("acl", "cat"), -2, acl_categories).summary("Lists the categories, or the commands of one."),
    report(("info", ""), -1, |words| Ok(Command::Info(words))).summary("Reports on the server, by section."),
    container("config", "server").summary("Commands about settings."),
    report(("config", "get"), -3, |patterns| Ok(Command::ConfigGet(patterns)))
        .summary("Returns the settings whose names match a glob pattern."),
    report(("dbsize", ""), 1, |_| Ok(Command::DbSize)).summary("Returns the number of counters."),
    server(("time", ""), 1, |_| Ok(Command::Time)).summary("Returns the seconds since 1970, and the microseconds."),
    server(("role", ""), 1, |_| Ok(Command::Role)).summary("Returns the role in replication: always master."),
    // StackExchange.Redis checks for a cluster and for sentinels.
    declined(("cluster", "")),
    declined(("sentinel", "")),
    // Rueidis sends it if it is configured to read from replicas.
    declined(("readonly", "")),
];

/// The rows of operations, but for those that another row has: `INFO` has sections, and edits of blocks are for HTTP.
static OPERATIONS: LazyLock<Vec<CommandRow>> = LazyLock::new(|| {
    let is_here = |endpoint: &&&Endpoint| !matches!(endpoint.command.0, "" | "info");
    ENDPOINTS.iter().filter(is_here).map(|endpoint| operation(endpoint)).collect()
});
