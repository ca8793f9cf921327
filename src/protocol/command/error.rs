//! Errors of requests that are not commands: texts that begin with an error code, as in RESP, in Redis's words.

use crate::protocol::resp::Arguments;

/// Maximum number of bytes of a name, and of all arguments, that an error repeats.
const MAX_ECHOED: usize = 128;

/// The reply to a request that is not a command. The connection stays open.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// The name, and the first arguments, each quoted and followed by a space. `hint` may suggest another command.
    #[error("ERR unknown command '{name}', with args beginning with: {arguments}{hint}")]
    UnknownCommand { name: String, arguments: String, hint: String },
    #[error("ERR unknown subcommand '{name}'. Try {parent} HELP.")]
    UnknownSubcommand { name: String, parent: String },
    #[error("ERR wrong number of arguments for '{name}' command")]
    WrongArity { name: String },
    #[error("ERR expected key=value, got '{argument}'")]
    NotAPair { argument: String },
    #[error(
        "ERR COST comes once, after all pairs, and is followed by a number; only DIVVY.HIT, PEEK, CHARGE and REFUND take it"
    )]
    MisplacedCost,
    #[error(
        "ERR ID comes once, after all pairs, and is followed by an id; only DIVVY.HIT, CHARGE, REFUND and RESERVE take it"
    )]
    MisplacedId,
    #[error("ERR COST is '{argument}', but must be a whole number from 0 to {}", i64::MAX)]
    NotACost { argument: String },
    #[error("ERR '{argument}' is not valid UTF-8")]
    NotUtf8 { argument: String },
    #[error("ERR more than {max_pairs} pairs")]
    TooManyPairs { max_pairs: usize },
    #[error(
        "ERR '{argument}' is not an option here; give a rule's label or pairs, then ACTOR, CURSOR, or COUNT, each once"
    )]
    NotAnOption { argument: String },
    #[error(
        "ERR '{argument}' is not an option here; DIVVY.LIMIT SET takes EX, and LIST takes RULE, CURSOR and COUNT, each once"
    )]
    NotALimitOption { argument: String },
    #[error(
        "ERR '{argument}' is not an option here; DIVVY.RESERVE takes key=value pairs, then AMOUNT, and TTL and ID if wanted, \
         each once and with its value"
    )]
    NotAReserveOption { argument: String },
    #[error("ERR DIVVY.RESERVE needs AMOUNT n after all pairs")]
    NoAmount,
    /// `usage` describes the command's arguments.
    #[error("ERR '{argument}' is not an option here; the command is {usage}")]
    NotASettlingOption { argument: String, usage: &'static str },
    /// `what` is the option.
    #[error("ERR {what} is '{argument}', but must be a whole number from 1 to {}", i64::MAX)]
    NotPositive { what: &'static str, argument: String },
    #[error("ERR syntax error")]
    Syntax,
    #[error("ERR value is not an integer or out of range")]
    NotAnInteger,
    #[error("ERR DB index is out of range")]
    NoSuchDatabase,
    #[error("ERR Invalid client ID")]
    NotAClientId,
    #[error("ERR Unknown client type '{name}'")]
    UnknownClientType { name: String },
    #[error("NOPROTO unsupported protocol version")]
    UnsupportedVersion,
    #[error("ERR Protocol version is not an integer or out of range")]
    VersionNotAnInteger,
    #[error("ERR Syntax error in HELLO option '{option}'")]
    HelloOption { option: String },
    /// `what` starts the sentence: "Client names", "lib-name", …
    #[error("ERR {what} cannot contain spaces, newlines or special characters.")]
    SpecialCharacters { what: &'static str },
    #[error("ERR Unrecognized option '{option}'")]
    UnknownOption { option: String },
}

impl CommandError {
    /// `meant` is a command with a similar name.
    pub(super) fn unknown_command(request: Arguments, meant: Option<&str>) -> Self {
        let mut arguments = String::new();
        for argument in request.skip(1).iter() {
            let Some(room) = MAX_ECHOED.checked_sub(arguments.len()).filter(|&room| room > 0) else {
                break;
            };
            arguments.push_str(&format!("'{}' ", echo(argument, room)));
        }
        let hint = meant.map(|meant| format!("(did you mean {}?)", meant.to_uppercase())).unwrap_or_default();
        Self::UnknownCommand { name: echo(request.get(0).unwrap_or_default(), MAX_ECHOED), arguments, hint }
    }

    pub(super) fn unknown_subcommand(parent: &str, name: &[u8]) -> Self {
        Self::UnknownSubcommand { name: echo(name, MAX_ECHOED), parent: parent.to_uppercase() }
    }

    pub(super) fn wrong_arity(name: String) -> Self {
        Self::WrongArity { name }
    }

    pub(super) fn not_a_pair(argument: &[u8]) -> Self {
        Self::NotAPair { argument: echo(argument, MAX_ECHOED) }
    }

    pub(super) fn not_a_cost(argument: &[u8]) -> Self {
        Self::NotACost { argument: echo(argument, MAX_ECHOED) }
    }

    pub(super) fn unknown_client_type(name: &[u8]) -> Self {
        Self::UnknownClientType { name: echo(name, MAX_ECHOED) }
    }

    pub(super) fn not_an_option(argument: &[u8]) -> Self {
        Self::NotAnOption { argument: echo(argument, MAX_ECHOED) }
    }

    pub(super) fn not_a_limit_option(argument: &[u8]) -> Self {
        Self::NotALimitOption { argument: echo(argument, MAX_ECHOED) }
    }

    pub(super) fn not_a_reserve_option(argument: &[u8]) -> Self {
        Self::NotAReserveOption { argument: echo(argument, MAX_ECHOED) }
    }

    pub(super) fn not_a_settling_option(argument: &[u8], usage: &'static str) -> Self {
        Self::NotASettlingOption { argument: echo(argument, MAX_ECHOED), usage }
    }

    pub(super) fn not_positive(what: &'static str, argument: &[u8]) -> Self {
        Self::NotPositive { what, argument: echo(argument, MAX_ECHOED) }
    }

    pub(super) fn not_utf8(argument: &[u8]) -> Self {
        Self::NotUtf8 { argument: echo(argument, MAX_ECHOED) }
    }

    pub(super) fn hello_option(option: &[u8]) -> Self {
        Self::HelloOption { option: echo(option, MAX_ECHOED) }
    }

    pub(super) fn unknown_option(option: &[u8]) -> Self {
        Self::UnknownOption { option: echo(option, MAX_ECHOED) }
    }
}

impl CommandError {
    /// Returns whether Redis would find this error before it queues the command, and then discard the transaction. It looks at
    /// the arguments only when it executes the transaction. (Too many pairs are refused before they are queued.)
    pub fn aborts_transaction(&self) -> bool {
        matches!(
            self,
            Self::UnknownCommand { .. }
                | Self::UnknownSubcommand { .. }
                | Self::WrongArity { .. }
                | Self::TooManyPairs { .. }
        )
    }
}

/// Returns at most `max` bytes of the client's input as text.
fn echo(bytes: &[u8], max: usize) -> String {
    String::from_utf8_lossy(bytes.get(..max).unwrap_or(bytes)).into_owned()
}
