//! Replies to commands about reservations.

use crate::protocol::resp::ReplyWriter;
use divvy_core::clock::ceil_seconds;
use divvy_limiter::{Settled, Verdict};

/// Writes the reply to a hit, and the id, or null if nothing is reserved.
pub fn write_reserved(verdict: &Verdict, id: Option<&str>, writer: &mut ReplyWriter) {
    writer.array(4);
    writer.integer(verdict.allowed.into());
    writer.unsigned(verdict.credit);
    writer.unsigned(ceil_seconds(verdict.reset_ns));
    match id {
        Some(id) => writer.bulk(id.as_bytes()),
        None => writer.null(),
    }
}

/// Writes the balance, the seconds until there are more credits, and the reservation's status.
pub fn write_committed(settled: &Settled, writer: &mut ReplyWriter) {
    writer.array(3);
    writer.integer(settled.verdict.balance());
    writer.unsigned(ceil_seconds(settled.verdict.reset_ns));
    writer.bulk(settled.word().as_bytes());
}
