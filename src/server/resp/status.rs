//! The status of one actor: `DIVVY.STATUS`.

use super::error::write_limiter_error;
use super::limit::NEVER;
use super::operate::write_cursor;
use crate::clock::ceil_seconds;
use crate::limiter::counters::DEFAULT_PAGE;
use crate::limiter::status::RuleStatus;
use crate::limiter::{Limiter, Scope};
use crate::protocol::command::{CommandError, StatusAsk};
use crate::protocol::resp::ReplyWriter;
use crate::rules::Operation;
use crate::rules::explain::ActorOverride;

/// A request for a page of an actor's status, owned, so that a task can keep it.
pub struct StatusQuery {
    actor: Operation,
    cursor: Option<String>,
    count: usize,
}

impl StatusQuery {
    /// Copies the request.
    ///
    /// # Errors
    /// The pairs are invalid.
    pub fn new(ask: &StatusAsk<'_>, max_pairs: usize) -> Result<Self, CommandError> {
        let mut actor = Operation::new();
        ask.actor.read_into(&mut actor, max_pairs)?;
        Ok(Self { actor, cursor: ask.cursor.map(str::to_owned), count: ask.count.unwrap_or(DEFAULT_PAGE) })
    }
}

/// Writes the cursor of the next page, and a map for each rule in scope under which the actor is known.
pub async fn show(limiter: &Limiter, query: &StatusQuery, scope: &Scope, reply: &mut ReplyWriter<'_>) {
    match limiter.status(&query.actor, query.cursor.as_deref(), query.count, scope).await {
        Err(error) => write_limiter_error(&error, reply),
        Ok(page) => {
            reply.array(2);
            write_cursor(page.next.as_deref(), reply);
            reply.array(page.rules.len());
            page.rules.iter().for_each(|status| write_rule(status, reply));
        }
    }
}

fn write_rule(status: &RuleStatus, reply: &mut ReplyWriter<'_>) {
    reply.map(10);
    reply.bulk(b"rule");
    reply.bulk(status.rule.as_bytes());
    for (name, number) in [
        ("limit", status.limit),
        ("used", status.used),
        ("reserved", status.reserved),
        ("inFlight", status.in_flight),
        ("remaining", status.verdict.credit),
        ("reset", ceil_seconds(status.verdict.reset_ns)),
    ] {
        reply.bulk(name.as_bytes());
        reply.unsigned(number);
    }
    reply.bulk(b"balance");
    reply.integer(status.verdict.balance());
    reply.bulk(b"ownLimit");
    match status.own_limit {
        Some(credits) => reply.unsigned(credits),
        None => reply.null(),
    }
    reply.bulk(b"override");
    match &status.actor_override {
        Some(actor_override) => write_override(actor_override, reply),
        None => reply.null(),
    }
}

fn write_override(actor_override: &ActorOverride, reply: &mut ReplyWriter<'_>) {
    reply.map(4);
    reply.bulk(b"kind");
    reply.bulk(actor_override.kind.name().as_bytes());
    reply.bulk(b"endsIn");
    match actor_override.ends_in {
        Some(seconds) => reply.unsigned(seconds),
        None => reply.integer(NEVER),
    }
    for (name, text) in [("reason", &actor_override.reason), ("entry", &actor_override.entry)] {
        reply.bulk(name.as_bytes());
        match text {
            Some(text) => reply.bulk(text.as_bytes()),
            None => reply.null(),
        }
    }
}
