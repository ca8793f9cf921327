//! Error replies of RESP, and how they are counted.

use super::client::Client;
use crate::errors::{self, Terms};
use crate::protocol::command::command_rows::is_optional;
use crate::protocol::command::{CommandError, Mistake};
use crate::protocol::resp::{Arguments, ProtocolError, ReplyWriter, Version};
use divvy_limiter::{ErrorClass, Limiter, LimiterError};
use divvy_telemetry::metrics::{Bound, ErrorKind};

pub const TERMS: Terms = Terms {
    take_lease: Some("take a lease with DIVVY.RESERVE and AMOUNT 1, and release it when the work is done"),
    list_rules: Some("DIVVY.RULES lists them"),
};

/// Writes an error of the limiter, under Redis's code for a lack of permission or its general code.
pub fn write_limiter_error(error: &impl LimiterError, writer: &mut ReplyWriter) {
    let code = match error.class() {
        ErrorClass::Forbidden => "NOPERM",
        ErrorClass::RulesMistake
        | ErrorClass::BadRequest
        | ErrorClass::UnsuitableRule
        | ErrorClass::UnnamedLease
        | ErrorClass::NotFound
        | ErrorClass::ReusedName
        | ErrorClass::Full
        | ErrorClass::StoreFailure => "ERR",
    };
    writer.error(format_args!("{code} {}", errors::describe(error, &TERMS)));
}

/// Writes an error, because there is no memory for the reply.
pub fn refuse_for_memory(version: Version, output: &mut Vec<u8>) {
    ReplyWriter::new(output, version)
        .error("ERR the server has no memory left for a reply of this size: try again later");
}

/// Returns the limit that a request exceeded, if any. A length that is not a number counts, too.
pub fn exceeded_limit(error: &ProtocolError) -> Option<Bound> {
    match error {
        ProtocolError::ArrayLength | ProtocolError::UnauthenticatedArrayLength => Some(Bound::Arguments),
        ProtocolError::BulkLength | ProtocolError::UnauthenticatedBulkLength => Some(Bound::Argument),
        ProtocolError::RequestTooBig | ProtocolError::InlineTooBig => Some(Bound::Request),
        _ => None,
    }
}

pub fn count_limit(limiter: &Limiter, limit: Option<Bound>) {
    if let Some(limit) = limit {
        limiter.metrics().limits.reached(limit);
    }
}

/// Counts a request that is not a command, unless clients work without it.
pub fn count_command_error(limiter: &Limiter, client: &Client, request: Arguments, error: &CommandError) {
    let kind = match error.mistake {
        _ if is_optional(request) => return,
        Mistake::UnknownCommand => ErrorKind::UnknownCommand,
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
