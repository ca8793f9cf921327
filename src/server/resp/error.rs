//! Error replies for what the limiter refuses.

use super::counts;
use crate::limiter::{Limiter, LimiterError};
use crate::metrics::Limit;
use crate::protocol::command::CommandError;
use crate::protocol::resp::{Arguments, ProtocolError, ReplyWriter, Version};
use crate::server::error_text::{self, Terms};

pub const TERMS: Terms = Terms {
    take_lease: Some("take a lease with DIVVY.RESERVE and AMOUNT 1, and release it when the work is done"),
    list_rules: Some("DIVVY.RULES lists them"),
};

/// Writes an error reply. Every class has Redis's general code.
pub fn write_limiter_error(error: &impl LimiterError, writer: &mut ReplyWriter) {
    writer.error(format_args!("ERR {}", error_text::describe(error, &TERMS)));
}

/// Tells the client an error in words of this front.
pub fn refuse(limiter: &Limiter, version: Version, error: &str, is_muted: bool, output: &mut Vec<u8>) {
    limiter.metrics().errors.unknown.inc();
    if !is_muted {
        ReplyWriter::new(output, version).error(error);
    }
}

/// Tells the client what is wrong with a request.
pub fn write_error(limiter: &Limiter, version: Version, request: Arguments, error: CommandError, output: &mut Vec<u8>) {
    if let CommandError::TooManyPairs { .. } = error {
        count_limit(limiter, Some(Limit::Pairs));
    }
    counts::count_command_error(&limiter.metrics().errors, request, &error);
    ReplyWriter::new(output, version).error(error);
}

/// The limit that a request ran into, if that is what is wrong with it: a length that is no number counts, too.
pub fn limit_of(error: &ProtocolError) -> Option<Limit> {
    match error {
        ProtocolError::ArrayLength | ProtocolError::UnauthenticatedArrayLength => Some(Limit::Arguments),
        ProtocolError::BulkLength | ProtocolError::UnauthenticatedBulkLength => Some(Limit::Argument),
        ProtocolError::RequestTooBig | ProtocolError::InlineTooBig => Some(Limit::Request),
        _ => None,
    }
}

pub fn count_limit(limiter: &Limiter, limit: Option<Limit>) {
    if let Some(limit) = limit {
        limiter.metrics().limits.reached(limit);
    }
}
