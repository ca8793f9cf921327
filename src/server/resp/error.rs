//! Error replies for what the limiter refuses.

use crate::limiter::LimiterError;
use crate::protocol::resp::ReplyWriter;
use crate::server::told::{self, Terms};

pub const TERMS: Terms = Terms {
    take_lease: Some("take a lease with DIVVY.RESERVE and AMOUNT 1, and release it when the work is done"),
    list_rules: Some("DIVVY.RULES lists them"),
};

/// Writes an error reply. Every class has Redis's general code.
pub fn write_limiter_error(error: &impl LimiterError, writer: &mut ReplyWriter) {
    writer.error(format_args!("ERR {}", told::text(error, &TERMS)));
}
