//! Errors of requests that are not commands: texts that begin with an error code, as in RESP, in Redis's words.

use crate::protocol::resp::Arguments;
use divvy_api::ArgumentError;

/// Maximum number of bytes of a name, and of all arguments, that an error repeats.
const MAX_ECHOED: usize = 128;

/// The reply to a request that is not a command. The connection stays open.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// No command has this name, or divvy declines it. The name and arguments are cut to [`MAX_ECHOED`] bytes each.
    #[error("ERR unknown command '{name}', with args beginning with: {arguments}{hint}")]
    UnknownCommand {
        /// First argument of the request.
        name: String,
        /// The arguments that follow, each quoted and followed by a space.
        arguments: String,
        /// A command with a similar name, as a question in parentheses. May be empty.
        hint: String,
    },
    /// The command exists, but has no subcommand of this name.
    #[error("ERR unknown subcommand '{name}'. Try {parent} HELP.")]
    UnknownSubcommand {
        /// Second argument of the request.
        name: String,
        /// The command, in upper case.
        parent: String,
    },
    /// The number of arguments does not match the command's arity.
    #[error("ERR wrong number of arguments for '{name}' command")]
    WrongArity {
        /// Full name of the command: `parent|name` for a subcommand.
        name: String,
    },
    /// An argument among the pairs has no `=`.
    #[error("ERR expected key=value, got '{argument}'")]
    NotAPair {
        /// The argument, truncated.
        argument: String,
    },
    /// `COST` stands where a pair is expected: it is repeated, precedes a pair, or the command has no cost.
    #[error(
        "ERR COST comes once, after all pairs, and is followed by a number; only DIVVY.HIT, PEEK, CHARGE and REFUND take it"
    )]
    MisplacedCost,
    /// `ID` stands where a pair is expected: it is repeated, precedes a pair, or the command has no id.
    #[error(
        "ERR ID comes once, after all pairs, and is followed by an id; only DIVVY.HIT, CHARGE, REFUND and RESERVE take it"
    )]
    MisplacedId,
    /// `REPLY` stands where a pair is expected, or is followed by something else than `JSON`.
    #[error(
        "ERR REPLY comes once, after all pairs, and is followed by JSON; only DIVVY.HIT, PEEK, CHARGE and REFUND take it"
    )]
    MisplacedReply,
    /// The value after `COST` is negative, too large, or not a number.
    #[error("ERR COST is '{argument}', but must be a whole number from 0 to {}", i64::MAX)]
    NotACost {
        /// The value, truncated.
        argument: String,
    },
    /// An argument that has to be text is not UTF-8.
    #[error("ERR '{argument}' is not valid UTF-8")]
    NotUtf8 {
        /// The argument, truncated, with invalid bytes as U+FFFD.
        argument: String,
    },
    /// The operation has a field twice.
    #[error("ERR the field '{field}' is given twice")]
    Repeated {
        /// Its name, truncated.
        field: String,
    },
    /// The operation has more pairs than a request may have.
    #[error("ERR more than {max_pairs} pairs")]
    TooManyPairs {
        /// The configured maximum.
        max_pairs: usize,
    },
    /// `DIVVY.RESERVE` has an unknown or repeated option, or one without a value.
    #[error(
        "ERR '{argument}' is not an option here; DIVVY.RESERVE takes key=value pairs, then AMOUNT, and TTL and ID if wanted, \
         each once and with its value"
    )]
    NotAReserveOption {
        /// The option, truncated.
        argument: String,
    },
    /// `DIVVY.RESERVE` does not say how many credits to set aside.
    #[error("ERR DIVVY.RESERVE needs AMOUNT n after all pairs")]
    NoAmount,
    /// `DIVVY.COMMIT` or `DIVVY.RENEW` has an option that it does not take.
    #[error("ERR '{argument}' is not an option here; the command is {usage}")]
    NotASettlingOption {
        /// The option, truncated.
        argument: String,
        /// Syntax of the command, for the message.
        usage: &'static str,
    },
    /// The value of an option is 0, negative, or not a number.
    #[error("ERR {what} is '{argument}', but must be a whole number from 1 to {}", i64::MAX)]
    NotPositive {
        /// Name of the option.
        what: &'static str,
        /// The value, truncated.
        argument: String,
    },
    /// A word of an operator's command is wrong.
    #[error("ERR {0}")]
    Argument(ArgumentError),
    /// An option or its value is missing, repeated, or unknown, in a command with Redis's generic error.
    #[error("ERR syntax error")]
    Syntax,
    /// A number is not an integer, or outside the range that makes sense for it.
    #[error("ERR value is not an integer or out of range")]
    NotAnInteger,
    /// `SELECT` names a database other than 0.
    #[error("ERR DB index is out of range")]
    NoSuchDatabase,
    /// `CLIENT LIST ID` has an argument that is not a client id.
    #[error("ERR Invalid client ID")]
    NotAClientId,
    /// `CLIENT LIST TYPE` names a type that Redis does not have.
    #[error("ERR Unknown client type '{name}'")]
    UnknownClientType {
        /// The type, truncated.
        name: String,
    },
    /// `HELLO` asks for a version other than 2 and 3.
    #[error("NOPROTO unsupported protocol version")]
    UnsupportedVersion,
    /// The first argument of `HELLO` is not a number.
    #[error("ERR Protocol version is not an integer or out of range")]
    VersionNotAnInteger,
    /// `HELLO` has an unknown option, or one without its arguments.
    #[error("ERR Syntax error in HELLO option '{option}'")]
    HelloOption {
        /// The option, truncated.
        option: String,
    },
    /// `ACL CAT` names a category that does not exist.
    #[error("ERR Unknown category '{name}'")]
    UnknownCategory {
        /// The category, truncated.
        name: String,
    },
    /// A connection's name or a library's attribute could break a line of `CLIENT LIST`.
    #[error("ERR {what} cannot contain spaces, newlines or special characters.")]
    SpecialCharacters {
        /// Start of the sentence: "Client names", "lib-name", …
        what: &'static str,
    },
    /// `CLIENT SETINFO` names an attribute other than `lib-name` and `lib-ver`.
    #[error("ERR Unrecognized option '{option}'")]
    UnknownOption {
        /// The attribute, truncated.
        option: String,
    },
}

impl CommandError {
    /// Returns the error for an unknown command. `meant` is a command with a similar name.
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

    pub(super) fn repeated(field: &[u8]) -> Self {
        Self::Repeated { field: echo(field, MAX_ECHOED) }
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

    pub(super) fn unknown_category(name: &[u8]) -> Self {
        Self::UnknownCategory { name: echo(name, MAX_ECHOED) }
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

impl From<ArgumentError> for CommandError {
    fn from(error: ArgumentError) -> Self {
        match error {
            ArgumentError::ManyPairs { max } => Self::TooManyPairs { max_pairs: max },
            error => Self::Argument(error),
        }
    }
}
