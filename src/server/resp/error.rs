//! Error replies for what the limiter refuses.

use crate::limiter::LimiterError;
use crate::protocol::resp::ReplyWriter;
use crate::server::told;

/// Writes an error reply. Every class has Redis's general code.
pub fn write_limiter_error(error: &impl LimiterError, writer: &mut ReplyWriter) {
    writer.error(format_args!("ERR {}", told::text(error)));
}
