//! Metrics of requests: their kind, and errors.

use super::client::Client;
use crate::protocol::command::{Command, CommandError, CommandMatch};
use crate::protocol::resp::Arguments;
use divvy_limiter::Limiter;
use divvy_telemetry::metrics::{ErrorKind, RequestKind};

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
pub fn count_command_error(limiter: &Limiter, client: &Client, request: Arguments, error: &CommandError) {
    let kind = match error {
        _ if Command::is_optional(request) => return,
        CommandError::UnknownCommand { .. } | CommandError::UnknownSubcommand { .. } => ErrorKind::UnknownCommand,
        _ => ErrorKind::Unknown,
    };
    client.count_error(limiter, kind, error);
}

/// Counts the reply that begins at `start` if it is an error.
pub fn count_error_reply(limiter: &Limiter, client: &Client, output: &[u8], start: usize) {
    if let Some([b'-', error @ ..]) = output.get(start..) {
        let end = error.iter().position(|byte| *byte == b'\r').unwrap_or(error.len());
        client.count_error(limiter, ErrorKind::Unknown, String::from_utf8_lossy(error.get(..end).unwrap_or_default()));
    }
}
