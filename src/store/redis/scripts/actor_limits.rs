//! Limits of single actors in Redis, where several servers change and follow them: what is asked, and what the answers say.
//!
//! A hash has the limits; a sorted set has whose limit changed when, so that each server asks for what came after the change
//! that it knows; another one has those that end, which stay for an hour. A number tells one history of changes from another.
//! All are in one slot of a cluster.

use std::sync::LazyLock;

use crate::clock::{NANOS_PER_MILLI, Timestamp};
use crate::store::contract::{ActorLimit, LIMITS_PER_PAGE, LimitChange, LimitCursor, LimitPage};
use crate::store::redis::wire::{Arguments, Call, Elements, Failure, Reply, Script};

const LIMITS: &str = "divvy.limits:{limits}";
const CHANGES: &str = "divvy.limits:{limits}:changes";
const ENDS: &str = "divvy.limits:{limits}:ends";
const BORN: &str = "divvy.limits:{limits}:born";

static CHANGE: LazyLock<Script> = LazyLock::new(|| Script::new("limit-change", include_str!("lua/limit_change.lua")));
static FOLLOW: LazyLock<Script> = LazyLock::new(|| Script::new("limit-changes", include_str!("lua/limit_changes.lua")));

/// The call that makes the change; a limit that ends does so as long after it as its end is after `now`.
pub fn change(change: &LimitChange, now: Timestamp) -> Call {
    let mut arguments = Arguments::with_capacity(3);
    arguments.push(&format!("{} {}", change.rule, change.actor));
    match change.limit {
        Some(limit) => {
            arguments.push_number(limit.credits);
            match limit.expires {
                Some(expires) => arguments.push_number(expires.since(now).div_ceil(NANOS_PER_MILLI)),
                None => arguments.push(""),
            }
        }
        None => {
            arguments.push("");
            arguments.push("");
        }
    }
    call(&CHANGE, &[CHANGES, ENDS, BORN], arguments)
}

/// Whether the actor had a limit before, as this reply to [`change`] says.
pub fn was_there(reply: &Reply) -> Result<bool, Failure> {
    let answer = reply.elements().and_then(|mut elements| Some(elements.text()? == "1"));
    answer.ok_or(Failure::Foreign("the answer to a changed limit is not as divvy's script has it"))
}

/// The call that asks for the next page.
pub fn follow(known: &LimitCursor) -> Call {
    let mut arguments = Arguments::with_capacity(4);
    let (born, number, of) = match known {
        LimitCursor::Change { born, number, of } => (*born, *number, of.as_str()),
        LimitCursor::Nothing | LimitCursor::Key(_) | LimitCursor::All => (0, 0, ""),
    };
    arguments.push_number(born);
    arguments.push_number(number);
    arguments.push(of);
    arguments.push_number(LIMITS_PER_PAGE as u64);
    call(&FOLLOW, &[CHANGES, BORN], arguments)
}

fn call(script: &'static Script, others: &[&str], arguments: Arguments) -> Call {
    let other_keys = others.iter().map(|key| key.as_bytes().to_vec()).collect();
    Call::Script { script, brings_text: false, key: LIMITS.into(), other_keys, arguments, actions: 1 }
}

/// The page that this reply to [`follow`] is.
pub fn page(known: &LimitCursor, reply: &Reply) -> Result<LimitPage, Failure> {
    let foreign = Failure::Foreign("the limits of actors in Redis are not as divvy stores them");
    reply.elements().and_then(|mut elements| read(known, &mut elements)).ok_or(foreign)
}

fn read(known: &LimitCursor, elements: &mut Elements<'_>) -> Option<LimitPage> {
    let born = elements.text()?.parse().ok()?;
    let starts_over = elements.text()? == "1";
    let is_last = elements.text()? == "1";
    let mut known = if starts_over { LimitCursor::Nothing } else { known.clone() };
    let mut changes = Vec::new();
    while elements.len() > 0 {
        let (number, of, limit) = (elements.text()?.parse().ok()?, elements.text()?, elements.text()?);
        let (rule, actor) = of.split_once(' ')?;
        changes.push(LimitChange { rule: rule.into(), actor: actor.into(), limit: limit_of(limit)? });
        known = LimitCursor::Change { born, number, of: of.into() };
    }
    Some(LimitPage { changes, known, starts_over, is_last })
}

/// Reads `credits expires`, where either may be missing; without credits it is none.
fn limit_of(text: &str) -> Option<Option<ActorLimit>> {
    let (credits, expires) = text.split_once(' ')?;
    if credits.is_empty() {
        return Some(None);
    }
    let expires = match expires {
        "" => None,
        millis => Some(Timestamp::from_nanos(millis.parse::<u64>().ok()?.saturating_mul(NANOS_PER_MILLI))),
    };
    Some(Some(ActorLimit { credits: credits.parse().ok()?, expires }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_read_and_what_is_no_page_is_refused() {
        let known = LimitCursor::Change { born: 3, number: 7, of: "r a".into() };
        let nothing = page(&known, &Reply::texts(&["3", "0", "1"])).unwrap();
        assert_eq!(nothing, LimitPage::nothing(known.clone()));
        let texts = ["4", "1", "0", "8", "r a b", "5 ", "9", "r c", " 77", "10", "r d", "0 1500"];
        let LimitPage { changes, known, starts_over, is_last } = page(&known, &Reply::texts(&texts)).unwrap();
        let told = |rule: &str, actor: &str, limit| LimitChange { rule: rule.into(), actor: actor.into(), limit };
        let ends = Some(Timestamp::from_nanos(1_500 * NANOS_PER_MILLI));
        assert_eq!(
            changes,
            [
                told("r", "a b", Some(ActorLimit { credits: 5, expires: None })),
                told("r", "c", None),
                told("r", "d", Some(ActorLimit { credits: 0, expires: ends })),
            ]
        );
        assert_eq!(
            (known, starts_over, is_last),
            (LimitCursor::Change { born: 4, number: 10, of: "r d".into() }, true, false)
        );
        let foreign: [&[&str]; 6] = [
            &[],
            &["1"],
            &["3", "0", "1", "x", "r a", "5 "],
            &["3", "0", "1", "8", "ra", "5 "],
            &["3", "0", "1", "8", "r a", "x "],
            &["x", "0", "1"],
        ];
        for texts in foreign {
            assert!(page(&LimitCursor::Nothing, &Reply::texts(texts)).is_err(), "{texts:?}");
        }
    }
}
