//! Limits of single actors: `DIVVY.LIMIT` and its subcommands.

use std::time::Duration;

use super::error::write_limiter_error;
use super::operate::write_cursor;
use crate::clock::ceil_seconds;
use crate::limiter::counters::{DEFAULT_PAGE, MAX_PAGE};
use crate::limiter::exceptions::{ExceptionFilter, ExceptionKind, ExceptionTarget, ListedException};
use crate::limiter::{Limiter, Scope};
use crate::protocol::command::{LimitAsk, LimitsAsk};
use crate::protocol::resp::ReplyWriter;
use crate::server::changes::{Changes, Operator};

/// Redis's TTL of a key that does not expire.
pub(super) const NEVER: i64 = -1;

/// The rule and actor of a limit, a block or an allow. The strings are owned, so that a task can keep them.
pub struct LimitTarget {
    pub rule: String,
    pub actor: String,
}

impl From<LimitAsk<'_>> for LimitTarget {
    fn from(LimitAsk { rule, actor }: LimitAsk<'_>) -> Self {
        Self { rule: rule.to_owned(), actor: actor.to_owned() }
    }
}

/// A request for a page of limits, blocks or allows. The strings are owned, so that a task can keep them.
pub struct LimitQuery {
    pub rule: Option<String>,
    pub cursor: Option<String>,
    pub count: usize,
}

impl From<LimitsAsk<'_>> for LimitQuery {
    fn from(LimitsAsk { rule, cursor, count }: LimitsAsk<'_>) -> Self {
        let count = count.unwrap_or(DEFAULT_PAGE).min(MAX_PAGE);
        Self { rule: rule.map(str::to_owned), cursor: cursor.map(str::to_owned), count }
    }
}

pub async fn set(
    changes: &Changes,
    operator: &Operator,
    of: &LimitTarget,
    credits: u64,
    seconds: Option<u64>,
    reply: &mut ReplyWriter<'_>,
) {
    match changes.set_limit(operator, &of.rule, &of.actor, credits, seconds.map(Duration::from_secs)).await {
        Ok(()) => reply.simple("OK"),
        Err(error) => write_limiter_error(&error, reply),
    }
}

/// Writes a limit's credits and the seconds until it expires, or -1 for never. Writes null if there is no limit.
pub fn get(limiter: &Limiter, of: &LimitTarget, scope: &Scope, reply: &mut ReplyWriter<'_>) {
    match limiter.exception_of(ExceptionTarget::limit(&of.rule, &of.actor), scope) {
        Ok(None) => reply.null(),
        Ok(Some(limit)) => {
            reply.array(2);
            reply.unsigned(limit.credits.unwrap_or_default());
            write_end(&limit, reply);
        }
        Err(error) => write_limiter_error(&error, reply),
    }
}

/// Removes a limit. Writes 1, or 0 if there was no limit.
pub async fn remove(changes: &Changes, operator: &Operator, of: &LimitTarget, reply: &mut ReplyWriter<'_>) {
    match changes.remove_limit(operator, &of.rule, &of.actor).await {
        Ok(was_there) => reply.unsigned(u64::from(was_there)),
        Err(error) => write_limiter_error(&error, reply),
    }
}

/// Writes the cursor of the next page. For each limit, writes its rule, actor, credits, the seconds until it expires,
/// and whether it is an orphan.
pub fn list(limiter: &Limiter, query: &LimitQuery, scope: &Scope, reply: &mut ReplyWriter<'_>) {
    let of = ExceptionFilter { owner: query.rule.as_deref(), actor: None };
    match limiter.exceptions(ExceptionKind::Limit, of, query.cursor.as_deref(), query.count, scope) {
        Err(error) => write_limiter_error(&error, reply),
        Ok(page) => {
            reply.array(2);
            write_cursor(page.next.as_deref(), reply);
            reply.array(page.exceptions.len());
            for limit in &page.exceptions {
                reply.array(5);
                reply.bulk(limit.rule.as_bytes());
                reply.bulk(limit.actor.as_bytes());
                reply.unsigned(limit.credits.unwrap_or_default());
                write_end(limit, reply);
                reply.unsigned(u64::from(limit.is_orphan));
            }
        }
    }
}

fn write_end(limit: &ListedException, reply: &mut ReplyWriter<'_>) {
    match limit.ends_ns {
        Some(nanos) => reply.unsigned(ceil_seconds(nanos)),
        None => reply.integer(NEVER),
    }
}
