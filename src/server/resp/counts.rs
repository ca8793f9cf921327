//! Metrics of requests: their kind, and errors.

use crate::metrics::{Errors, RequestKind};
use crate::protocol::command::{Command, CommandError, CommandMatch};
use crate::protocol::resp::Arguments;

/// Returns the kind of a request. `found` is its command.
pub fn kind(request: Arguments, found: Option<CommandMatch>, command: &Result<Command, CommandError>) -> RequestKind {
    match (command, found) {
        // `HELP`, which every command with subcommands has.
        (Ok(Command::Describe(_)), _) => RequestKind::Server,
        (Ok(_), Some(found)) => found.spec.kind,
        _ if Command::is_optional(request) => RequestKind::Connection,
        _ => RequestKind::Invalid,
    }
}

/// Counts a request that is not a command, unless clients work without it.
pub fn count_command_error(errors: &Errors, request: Arguments, error: &CommandError) {
    match error {
        _ if Command::is_optional(request) => {}
        CommandError::UnknownCommand { .. } | CommandError::UnknownSubcommand { .. } => errors.unknown_command.inc(),
        _ => errors.unknown.inc(),
    }
}

/// Counts the reply that begins at `start` if it is an error.
pub fn count_error_reply(errors: &Errors, output: &[u8], start: usize) {
    if output.get(start) == Some(&b'-') {
        errors.unknown.inc();
    }
}
