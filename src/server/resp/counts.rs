//! Metrics of requests: their kind, and errors.

use crate::metrics::{Errors, RequestKind};
use crate::protocol::command::{Command, CommandError};
use crate::protocol::resp::Arguments;

pub fn kind(request: Arguments, command: &Result<Command, CommandError>) -> RequestKind {
    let Ok(command) = command else {
        return if Command::is_optional(request) { RequestKind::Connection } else { RequestKind::Invalid };
    };
    match command {
        Command::Hit(_) => RequestKind::Hit,
        Command::Peek(_) => RequestKind::Peek,
        Command::Charge(_) => RequestKind::Charge,
        Command::Refund(_) => RequestKind::Refund,
        Command::Reserve(_) => RequestKind::Reserve,
        Command::Commit { .. } => RequestKind::Commit,
        Command::Release(_) => RequestKind::Release,
        Command::Renew { .. } => RequestKind::Renew,
        Command::Forget(_) => RequestKind::Reset,
        Command::Explain(_) => RequestKind::Explain,
        Command::Rules => RequestKind::Rules,
        Command::Tokens(_) | Command::Session(_) | Command::Throttle(_) => RequestKind::Bucket,
        Command::Counters(_) | Command::ForgetCounters(_) => RequestKind::Counters,
        Command::Status(_) => RequestKind::Status,
        Command::SetLimit { .. } | Command::GetLimit(_) | Command::RemoveLimit(_) | Command::ListLimits(_) => {
            RequestKind::Limits
        }
        Command::Backup(_)
        | Command::Info(_)
        | Command::ConfigGet(_)
        | Command::DbSize
        | Command::ClientList(_)
        | Command::Time
        | Command::Role
        | Command::Describe(_) => RequestKind::Server,
        Command::Ping(_)
        | Command::Echo(_)
        | Command::Hello(_)
        | Command::Auth(_)
        | Command::Select
        | Command::Quit
        | Command::ResetConnection
        | Command::ClientId
        | Command::ClientInfo
        | Command::ClientGetName
        | Command::ClientSetName(_)
        | Command::ClientSetInfo(_)
        | Command::ClientReply(_)
        | Command::ClientSwitch
        | Command::Multi
        | Command::Exec
        | Command::Discard
        | Command::Watch
        | Command::Unwatch => RequestKind::Connection,
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
