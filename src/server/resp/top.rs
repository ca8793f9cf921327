//! The actors of a rule that take the most: `DIVVY.TOP`.

use super::error::write_limiter_error;
use super::rule_selector::RuleSelector;
use crate::limiter::top::{DEFAULT_COUNT, MAX_COUNT, Order, Ranked, RuleRanking, TopOf, Window};
use crate::limiter::{Limiter, Scope};
use crate::protocol::command::{CommandError, MAX_TOP, TopAsk, TopOrder, TopWindow};
use crate::protocol::resp::ReplyWriter;

// The parser refuses what the limiter would not return.
const _: () = assert!(MAX_TOP == MAX_COUNT);

/// A request for the actors of a rule, owned, so that a task can keep it.
pub struct TopQuery {
    rule: RuleSelector,
    order: Order,
    window: Window,
    count: usize,
}

impl TopQuery {
    /// Copies the request.
    ///
    /// # Errors
    /// The pairs that name the rule are invalid.
    pub fn new(ask: &TopAsk<'_>, max_pairs: usize) -> Result<Self, CommandError> {
        Ok(Self {
            rule: RuleSelector::new(ask.rule, max_pairs)?,
            order: match ask.order {
                TopOrder::Denied => Order::Denied,
                TopOrder::Taken => Order::Taken,
            },
            window: match ask.window {
                TopWindow::Minute => Window::Minute,
                TopWindow::Hour => Window::Hour,
            },
            count: ask.count.unwrap_or(DEFAULT_COUNT),
        })
    }
}

/// Writes a map: the facts about the ranking, and the actors in descending order.
pub fn show(limiter: &Limiter, query: &TopQuery, scope: &Scope, reply: &mut ReplyWriter<'_>) {
    let TopQuery { rule, order, window, count } = query;
    let of = TopOf { rule: rule.name(), order: *order, window: *window, count: *count };
    match limiter.top(of, scope) {
        Err(error) => write_limiter_error(&error, reply),
        Ok(RuleRanking { rule, is_canary, is_of_one_actor, ranking }) => {
            reply.map(8);
            for (name, text) in [("rule", rule.as_str()), ("order", order.name())] {
                reply.bulk(name.as_bytes());
                reply.bulk(text.as_bytes());
            }
            for (name, number) in [
                ("last", window.seconds()),
                ("canary", is_canary.into()),
                ("sampled", ranking.is_sampled.into()),
                ("hasRoom", ranking.has_room.into()),
            ] {
                reply.bulk(name.as_bytes());
                reply.unsigned(number);
            }
            reply.bulk(b"total");
            if is_of_one_actor {
                reply.null()
            } else {
                reply.unsigned(ranking.total)
            }
            reply.bulk(b"top");
            reply.array(ranking.actors.len());
            ranking.actors.iter().for_each(|ranked| write_actor(ranked, reply));
        }
    }
}

fn write_actor(Ranked { actor, is_cut, count, error }: &Ranked, reply: &mut ReplyWriter<'_>) {
    reply.array(4);
    reply.bulk(actor);
    reply.unsigned(*count);
    reply.unsigned(*error);
    reply.unsigned((*is_cut).into());
}
