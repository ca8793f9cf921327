//! What operators do to the counters of a rule, or to all of them: list, forget, back up.

use super::Shared;
use super::batch::Batch;
use crate::clock::ceil_seconds;
use crate::limiter::Limiter;
use crate::limiter::counters::{CountersError, CountersOf, DEFAULT_PAGE, RuleName};
use crate::protocol::command::{CommandError, CountersAsk, Named, START};
use crate::protocol::resp::ReplyWriter;

/// The cursor of the next page, and for each counter its actor, the credits left and the seconds to its reset.
pub async fn list(shared: &Shared, batch: &mut Batch, ask: CountersAsk<'_>, reply: &mut ReplyWriter<'_>) {
    let of = match counters_of(shared, batch, ask) {
        Ok(of) => of,
        Err(error) => return reply.error(error),
    };
    match shared.limiter.counters(of).await {
        Err(error) => write_error(&error, reply),
        Ok(page) => {
            reply.array(2);
            write_cursor(page.next.as_deref(), reply);
            reply.array(page.counters.len());
            for counter in &page.counters {
                reply.array(3);
                reply.bulk(counter.actor.as_bytes());
                reply.unsigned(counter.credit);
                reply.unsigned(ceil_seconds(counter.reset_ns));
            }
        }
    }
}

/// The cursor of the next page, and how many counters were forgotten.
pub async fn forget(shared: &Shared, batch: &mut Batch, ask: CountersAsk<'_>, reply: &mut ReplyWriter<'_>) {
    let of = match counters_of(shared, batch, ask) {
        Ok(of) => of,
        Err(error) => return reply.error(error),
    };
    match shared.limiter.forget_counters(of).await {
        Err(error) => write_error(&error, reply),
        Ok(page) => {
            reply.array(2);
            write_cursor(page.next.as_deref(), reply);
            reply.unsigned(page.forgotten);
        }
    }
}

/// The path of the backup.
pub async fn back_up(limiter: &Limiter, name: &str, reply: &mut ReplyWriter<'_>) {
    match limiter.store().backup(name).await {
        Ok(path) => reply.bulk(path.to_string_lossy().as_bytes()),
        Err(error) => reply.error(format_args!("ERR {error}")),
    }
}

fn counters_of<'a>(
    shared: &Shared,
    batch: &'a mut Batch,
    ask: CountersAsk<'a>,
) -> Result<CountersOf<'a>, CommandError> {
    let rule = match ask.rule {
        Named::Label(label) => RuleName::Label(label),
        Named::Operation(pairs) => {
            pairs.read_into(&mut batch.operation, shared.limits.max_pairs)?;
            RuleName::Operation(&batch.operation)
        }
    };
    Ok(CountersOf { rule, actor: ask.actor, cursor: ask.cursor, count: ask.count.unwrap_or(DEFAULT_PAGE) })
}

fn write_cursor(cursor: Option<&str>, reply: &mut ReplyWriter) {
    reply.bulk(cursor.unwrap_or(START).as_bytes());
}

fn write_error(error: &CountersError, reply: &mut ReplyWriter) {
    reply.error(format_args!("ERR {error}"));
}
