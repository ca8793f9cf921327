//! Blocks and allows of single actors: `DIVVY.BLOCK`, `DIVVY.ALLOW` and their subcommands.

use std::time::Duration;

use super::error::write_limiter_error;
use super::limit::{LimitQuery, LimitTarget, NEVER};
use super::operate::write_cursor;
use crate::clock::ceil_seconds;
use crate::limiter::exceptions::{ExceptionFilter, ListedException};
use crate::limiter::{Limiter, OverrideKind, Scope};
use crate::protocol::resp::ReplyWriter;
use crate::server::changes::{Changes, Operator, OverrideTarget};

fn target(kind: OverrideKind, of: &LimitTarget) -> OverrideTarget<'_> {
    OverrideTarget { kind, rule: &of.rule, actor: &of.actor }
}

pub async fn set(
    changes: &Changes,
    operator: &Operator,
    (kind, of): (OverrideKind, &LimitTarget),
    reason: Option<&str>,
    seconds: Option<u64>,
    reply: &mut ReplyWriter<'_>,
) {
    match changes.set_override(operator, target(kind, of), reason, seconds.map(Duration::from_secs)).await {
        Ok(()) => reply.simple("OK"),
        Err(error) => write_limiter_error(&error, reply),
    }
}

/// Writes the seconds until the entry ends, or -1 for never, and its reason. Writes null if there is no entry.
pub fn get(limiter: &Limiter, kind: OverrideKind, of: &LimitTarget, scope: &Scope, reply: &mut ReplyWriter<'_>) {
    match limiter.exception_of(target(kind, of).into(), scope) {
        Ok(None) => reply.null(),
        Ok(Some(entry)) => {
            reply.array(2);
            write_end_and_reason(&entry, reply);
        }
        Err(error) => write_limiter_error(&error, reply),
    }
}

/// Removes an entry. Writes 1, or 0 if the actor had no entry.
pub async fn remove(
    changes: &Changes,
    operator: &Operator,
    kind: OverrideKind,
    of: &LimitTarget,
    reply: &mut ReplyWriter<'_>,
) {
    match changes.remove_override(operator, target(kind, of)).await {
        Ok(was_there) => reply.unsigned(u64::from(was_there)),
        Err(error) => write_limiter_error(&error, reply),
    }
}

/// Writes the cursor of the next page. For each entry, writes its rule, actor, the seconds until it ends, its reason, and
/// whether it is an orphan.
pub fn list(limiter: &Limiter, kind: OverrideKind, query: &LimitQuery, scope: &Scope, reply: &mut ReplyWriter<'_>) {
    let of = ExceptionFilter { owner: query.rule.as_deref(), actor: None };
    match limiter.exceptions(kind.into(), of, query.cursor.as_deref(), query.count, scope) {
        Err(error) => write_limiter_error(&error, reply),
        Ok(page) => {
            reply.array(2);
            write_cursor(page.next.as_deref(), reply);
            reply.array(page.exceptions.len());
            for entry in &page.exceptions {
                reply.array(5);
                reply.bulk(entry.rule.as_bytes());
                reply.bulk(entry.actor.as_bytes());
                write_end_and_reason(entry, reply);
                reply.unsigned(u64::from(entry.is_orphan));
            }
        }
    }
}

fn write_end_and_reason(entry: &ListedException, reply: &mut ReplyWriter<'_>) {
    match entry.ends_ns {
        Some(nanos) => reply.unsigned(ceil_seconds(nanos)),
        None => reply.integer(NEVER),
    }
    match &entry.reason {
        Some(reason) => reply.bulk(reason.as_bytes()),
        None => reply.null(),
    }
}
