//! Commands of operators: they list and forget a rule's counters, and back up the store.

use std::sync::Arc;

use super::error::write_limiter_error;
use super::rule_selector::RuleSelector;
use crate::clock::ceil_seconds;
use crate::limiter::counters::{CountersOf, DEFAULT_PAGE};
use crate::limiter::{Limiter, Policy, Scope};
use crate::protocol::command::{CommandError, CountersAsk, START};
use crate::protocol::resp::ReplyWriter;
use crate::rules::Operation;
use crate::server::changes::{Changes, Operator};

/// A request for a page of a rule's counters. The strings are owned, so that a task can keep them.
pub struct CounterQuery {
    rule: RuleSelector,
    actor: Option<String>,
    cursor: Option<String>,
    count: usize,
}

impl CounterQuery {
    /// Copies the request.
    ///
    /// # Errors
    /// The pairs that name the rule are invalid.
    pub fn new(ask: &CountersAsk<'_>, max_pairs: usize) -> Result<Self, CommandError> {
        Ok(Self {
            rule: RuleSelector::new(ask.rule, max_pairs)?,
            actor: ask.actor.map(str::to_owned),
            cursor: ask.cursor.map(str::to_owned),
            count: ask.count.unwrap_or(DEFAULT_PAGE),
        })
    }

    fn counters(&self) -> CountersOf<'_> {
        CountersOf {
            rule: self.rule.name(),
            actor: self.actor.as_deref(),
            cursor: self.cursor.as_deref(),
            count: self.count,
        }
    }
}

/// Writes the cursor of the next page. For each counter, writes its actor, the credits left and the seconds until its
/// reset.
pub async fn list(limiter: &Limiter, query: &CounterQuery, scope: &Scope, reply: &mut ReplyWriter<'_>) {
    match limiter.counters(query.counters(), scope).await {
        Err(error) => write_limiter_error(&error, reply),
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

/// Writes the cursor of the next page, and the number of forgotten counters.
pub async fn forget(changes: &Changes, operator: &Operator, query: &CounterQuery, reply: &mut ReplyWriter<'_>) {
    match changes.forget_counters(operator, query.counters()).await {
        Err(error) => write_limiter_error(&error, reply),
        Ok(page) => {
            reply.array(2);
            write_cursor(page.next.as_deref(), reply);
            reply.unsigned(page.forgotten);
        }
    }
}

/// Writes the number of forgotten counters of an operation.
pub async fn reset(
    changes: &Changes,
    operator: &Operator,
    operation: &Operation,
    policy: Option<Arc<Policy>>,
    reply: &mut ReplyWriter<'_>,
) {
    match changes.reset_counters(operator, operation, policy).await {
        Ok(forgotten) => reply.unsigned(forgotten),
        Err(error) => write_limiter_error(&error, reply),
    }
}

/// Writes the path of the backup.
pub async fn back_up(changes: &Changes, operator: &Operator, name: &str, reply: &mut ReplyWriter<'_>) {
    match changes.back_up(operator, name).await {
        Ok(path) => reply.bulk(path.to_string_lossy().as_bytes()),
        Err(error) => write_limiter_error(&error, reply),
    }
}

pub fn write_cursor(cursor: Option<&str>, reply: &mut ReplyWriter) {
    reply.bulk(cursor.unwrap_or(START).as_bytes());
}
