//! Limits of single actors in Redis, where several servers change and follow them: calls and replies.
//!
//! A hash holds the limits. A sorted set holds the actors by the times of their changes, so that each server can read
//! the changes after its last one. Another sorted set holds the actors whose limits expire. They stay for an hour after
//! that. A number identifies the history of changes. All keys are in one slot of a cluster.

use std::sync::LazyLock;

use crate::clock::{NANOS_PER_MILLI, Timestamp};
use crate::store::contract::{ActorLimit, LIMITS_PER_PAGE, LimitChange, LimitCursor, LimitPage};
use crate::store::redis::wire::{Call, Failure, Reply, Script};

const LIMITS: &str = "divvy.limits:{limits}";
const CHANGES: &str = "divvy.limits:{limits}:changes";
const ENDS: &str = "divvy.limits:{limits}:ends";
const BORN: &str = "divvy.limits:{limits}:born";

static CHANGE: LazyLock<Script> = LazyLock::new(|| Script::new("limit-change", include_str!("lua/limit_change.lua")));
static FOLLOW: LazyLock<Script> = LazyLock::new(|| Script::new("limit-changes", include_str!("lua/limit_changes.lua")));

/// Returns the call that makes the change. The limit lasts as long after the change, by Redis's clock, as from `now` to
/// its end.
pub fn change(change: &LimitChange, now: Timestamp) -> Call {
    let of = format!("{} {}", change.rule, change.actor);
    let expires = change.limit.and_then(|limit| limit.expires);
    let lasts_ms = expires.map(|expires| expires.since(now).div_ceil(NANOS_PER_MILLI));
    let text = |number: Option<u64>| number.map(|number| number.to_string()).unwrap_or_default();
    call(&CHANGE, &[LIMITS, CHANGES, ENDS, BORN], [of, text(change.limit.map(|limit| limit.credits)), text(lasts_ms)])
}

/// Returns whether the actor had a limit before, according to this reply to [`change`].
pub fn was_there(reply: &Reply) -> Result<bool, Failure> {
    reply.decode("the reply to a changed limit is not in the format of divvy's script")
}

/// Returns the call that asks for the next page.
pub fn follow(known: &LimitCursor) -> Call {
    let (born, number, of) = match known {
        LimitCursor::Change { born, number, of } => (*born, *number, of.as_str()),
        LimitCursor::Nothing | LimitCursor::Key(_) | LimitCursor::All => (0, 0, ""),
    };
    let arguments = [born.to_string(), number.to_string(), of.to_owned(), LIMITS_PER_PAGE.to_string()];
    call(&FOLLOW, &[LIMITS, CHANGES, BORN], arguments)
}

fn call<const N: usize>(script: &'static Script, keys: &[&str], arguments: [String; N]) -> Call {
    let keys = keys.iter().map(|key| key.as_bytes().to_vec()).collect();
    Call::script(script, keys, arguments.map(String::into_bytes).into(), 1)
}

/// Returns the page in this reply to [`follow`].
pub fn page(known: &LimitCursor, reply: &Reply) -> Result<LimitPage, Failure> {
    const WRONG: &str = "the limits of actors in Redis are not in divvy's format";
    let (born, starts_over, is_last, changed): (u64, bool, bool, Vec<(u64, String, String)>) = reply.decode(WRONG)?;
    let changes: Option<_> = changed.iter().map(|(_, of, limit)| read_change(of, limit)).collect();
    let known = match changed.into_iter().next_back() {
        Some((number, of, _)) => LimitCursor::Change { born, number, of },
        None if starts_over => LimitCursor::Nothing,
        None => known.clone(),
    };
    Ok(LimitPage { changes: changes.ok_or(Failure::Foreign(WRONG))?, known, starts_over, is_last })
}

fn read_change(of: &str, limit: &str) -> Option<LimitChange> {
    let (rule, actor) = of.split_once(' ')?;
    Some(LimitChange { rule: rule.into(), actor: actor.into(), limit: limit_of(limit)? })
}

/// Reads `credits expires`. Either may be missing. Without credits, there is no limit.
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
    fn page_is_read_in_full_or_refused() {
        let known = LimitCursor::Change { born: 3, number: 7, of: "r a".into() };
        let reply = |head: [&str; 3], changes: &[&str]| {
            let [born, starts_over, is_last] = head.map(|text| format!("${}\r\n{text}\r\n", text.len()));
            Reply::list(&[born, starts_over, is_last, Reply::of_texts(changes).to_line()])
        };
        let nothing = page(&known, &reply(["3", "0", "1"], &[])).unwrap();
        assert_eq!(nothing, LimitPage::nothing(known.clone()));
        let texts = ["8", "r a b", "5 ", "9", "r c", " 77", "10", "r d", "0 1500"];
        let LimitPage { changes, known, starts_over, is_last } = page(&known, &reply(["4", "1", "0"], &texts)).unwrap();
        let change = |rule: &str, actor: &str, limit| LimitChange { rule: rule.into(), actor: actor.into(), limit };
        let ends = Some(Timestamp::from_nanos(1_500 * NANOS_PER_MILLI));
        assert_eq!(
            changes,
            [
                change("r", "a b", Some(ActorLimit { credits: 5, expires: None })),
                change("r", "c", None),
                change("r", "d", Some(ActorLimit { credits: 0, expires: ends })),
            ]
        );
        assert_eq!(
            (known, starts_over, is_last),
            (LimitCursor::Change { born: 4, number: 10, of: "r d".into() }, true, false)
        );
        let head = ["3", "0", "1"];
        let foreign = [
            Reply::of_texts(&[]),
            Reply::of_texts(&["1"]),
            Reply::of_texts(&head),
            reply(head, &["x", "r a", "5 "]),
            reply(head, &["8", "ra", "5 "]),
            reply(head, &["8", "r a", "x "]),
            reply(head, &["8", "r a"]),
            reply(["x", "0", "1"], &[]),
            reply(["3", "2", "1"], &[]),
        ];
        for reply in foreign {
            assert!(page(&LimitCursor::Nothing, &reply).is_err(), "{reply:?}");
        }
    }
}
