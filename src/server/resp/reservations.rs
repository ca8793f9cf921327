//! Replies to commands about reservations.

use crate::clock::ceil_seconds;
use crate::limiter::{Settled, Verdict};
use crate::protocol::resp::ReplyWriter;

/// As that to a hit, and the id; null when nothing is reserved.
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

/// The balance, when there is more, and what became of the reservation.
pub fn write_committed(settled: &Settled, writer: &mut ReplyWriter) {
    writer.array(3);
    writer.integer(settled.verdict.balance());
    writer.unsigned(ceil_seconds(settled.verdict.reset_ns));
    writer.bulk(settled.word().as_bytes());
}
