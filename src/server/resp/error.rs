//! Error replies.

use crate::limiter::{Limiter, LimiterError};
use crate::metrics::Limit;
use crate::protocol::resp::{ProtocolError, ReplyWriter, Version};
use crate::server::error_text::{self, Terms};

pub const TERMS: Terms = Terms {
    take_lease: Some("take a lease with DIVVY.RESERVE and AMOUNT 1, and release it when the work is done"),
    list_rules: Some("DIVVY.RULES lists them"),
};

/// Writes an error of the limiter. All classes have Redis's general code.
pub fn write_limiter_error(error: &impl LimiterError, writer: &mut ReplyWriter) {
    writer.error(format_args!("ERR {}", error_text::describe(error, &TERMS)));
}

/// Counts an error, and writes it unless the client wants no reply.
pub fn refuse(limiter: &Limiter, version: Version, error: &str, is_muted: bool, output: &mut Vec<u8>) {
    limiter.metrics().errors.unknown.inc();
    if !is_muted {
        ReplyWriter::new(output, version).error(error);
    }
}

/// Returns the limit that a request exceeded, if any. A length that is not a number counts, too.
pub fn exceeded_limit(error: &ProtocolError) -> Option<Limit> {
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
