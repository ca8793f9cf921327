//! Exceptions for single actors in Redis, where several servers change and follow them: calls and replies.
//!
//! A hash holds the exceptions. A sorted set holds the actors by the times of their changes, so that each server can read
//! the changes after its last one. Another sorted set holds the actors whose exceptions expire. They stay for an hour after
//! that. A number identifies the history of changes. All keys are in one slot of a cluster.

use std::sync::LazyLock;

use super::section;
use crate::wire::{Call, Failure, Reply, Script};
use divvy_core::clock::{NANOS_PER_MILLI, Timestamp};
use divvy_store::{Changed, EXCEPTIONS_PER_PAGE, Exception, ExceptionChange, ExceptionCursor, ExceptionPage, Replaces};

const EXCEPTIONS: &str = "divvy.exceptions:{exceptions}";
const CHANGES: &str = "divvy.exceptions:{exceptions}:changes";
const ENDS: &str = "divvy.exceptions:{exceptions}:ends";
const BORN: &str = "divvy.exceptions:{exceptions}:born";

const TEXTS: &str = include_str!("lua/exceptions.lua");
static CHANGE: LazyLock<Script> = LazyLock::new(|| Script::new("exception-change", section(TEXTS, "change")));
static FOLLOW: LazyLock<Script> = LazyLock::new(|| Script::new("exception-changes", section(TEXTS, "follow")));

/// Returns the call that makes the change. The exception lasts as long after the change, by Redis's clock, as from `now`
/// to its end.
pub fn change(change: &ExceptionChange, replaces: &Replaces, now: Timestamp) -> Call {
    let of = format!("{} {}", change.owner, change.actor);
    let value = change.value.as_ref();
    let lasts_ms = value.and_then(Exception::expires).map(|expires| expires.since(now).div_ceil(NANOS_PER_MILLI));
    let lasts_ms = lasts_ms.map(|lasts_ms| lasts_ms.to_string()).unwrap_or_default();
    let text = value.map(Exception::to_text).unwrap_or_default();
    let mut arguments = vec![of, text, lasts_ms];
    arguments.extend(replaces.beginnings(change));
    call(&CHANGE, &[EXCEPTIONS, CHANGES, ENDS, BORN], arguments)
}

/// Returns the outcome of the change in this reply to [`change`].
pub fn changed(reply: &Reply) -> Result<Changed, Failure> {
    const WRONG: &str = "the reply to a changed exception is not in the format of divvy's script";
    let outcomes = [Changed::Added, Changed::Replaced, Changed::Kept];
    outcomes.into_iter().nth(reply.decode(WRONG)?).ok_or(Failure::Foreign(WRONG))
}

/// Returns the call that asks for the next page.
pub fn follow(known: &ExceptionCursor) -> Call {
    let (born, number, of) = match known {
        ExceptionCursor::Change { born, number, of } => (*born, *number, of.as_str()),
        ExceptionCursor::Nothing | ExceptionCursor::Key(_) | ExceptionCursor::All => (0, 0, ""),
    };
    let arguments = vec![born.to_string(), number.to_string(), of.to_owned(), EXCEPTIONS_PER_PAGE.to_string()];
    call(&FOLLOW, &[EXCEPTIONS, CHANGES, BORN], arguments)
}

fn call(script: &'static Script, keys: &[&str], arguments: Vec<String>) -> Call {
    let keys = keys.iter().map(|key| key.as_bytes().to_vec()).collect();
    Call::script(script, keys, arguments.into_iter().map(String::into_bytes).collect(), 1)
}

/// Returns the page in this reply to [`follow`]. The ends of exceptions are converted from Redis's clock to the server's, by
/// which it is `now`.
pub fn page(known: &ExceptionCursor, reply: &Reply, now: Timestamp) -> Result<ExceptionPage, Failure> {
    const WRONG: &str = "the limits or blocks of actors in Redis are not in divvy's format";
    type Changes = Vec<(u64, String, String)>;
    let (born, starts_over, is_last, changed, now_ms): (u64, bool, bool, Changes, u64) = reply.decode(WRONG)?;
    let of_server = |expires_ms: u64| match expires_ms.checked_sub(now_ms) {
        Some(left_ms) => now.plus(left_ms.saturating_mul(NANOS_PER_MILLI)),
        None => now.minus((now_ms - expires_ms).saturating_mul(NANOS_PER_MILLI)),
    };
    let changes: Option<_> = changed.iter().map(|(_, of, value)| read_change(of, value, of_server)).collect();
    let known = match changed.into_iter().next_back() {
        Some((number, of, _)) => ExceptionCursor::Change { born, number, of },
        None if starts_over => ExceptionCursor::Nothing,
        None => known.clone(),
    };
    Ok(ExceptionPage { changes: changes.ok_or(Failure::Foreign(WRONG))?, known, starts_over, is_last })
}

/// Reads the exception of this owner and actor from `exception expires`. Either may be missing. An empty text stands for a removed
/// exception.
fn read_change(of: &str, value: &str, of_server: impl Fn(u64) -> Timestamp) -> Option<ExceptionChange> {
    let (owner, actor) = of.split_once(' ')?;
    let value = match value.rsplit_once(' ')? {
        ("", _) => None,
        (exception, "") => Some(Exception::from_text(owner, exception, None)?),
        (exception, millis) => Some(Exception::from_text(owner, exception, Some(of_server(millis.parse().ok()?)))?),
    };
    Some(ExceptionChange { owner: owner.into(), actor: actor.into(), value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_is_read_in_full_or_refused() {
        let known = ExceptionCursor::Change { born: 3, number: 7, of: "limit:r a".into() };
        // It is 1 s by Redis's clock, and 5 s by the server's.
        let now = Timestamp::from_secs(5).unwrap();
        let reply = |head: [&str; 3], changes: &[&str]| {
            let line = |text: &str| format!("${}\r\n{text}\r\n", text.len());
            let [born, starts_over, is_last] = head.map(line);
            Reply::list(&[born, starts_over, is_last, Reply::of_texts(changes).to_line(), line("1000")])
        };
        let nothing = page(&known, &reply(["3", "0", "1"], &[]), now).unwrap();
        assert_eq!(nothing, ExceptionPage::nothing(known.clone()));
        let texts = ["8", "limit:r a b", "5 ", "9", "block:r c", " 77", "10", "block:r d", "1 spam 1500"];
        let ExceptionPage { changes, known, starts_over, is_last } =
            page(&known, &reply(["4", "1", "0"], &texts), now).unwrap();
        let change =
            |owner: &str, actor: &str, value| ExceptionChange { owner: owner.into(), actor: actor.into(), value };
        let ends = Some(now.plus(500 * NANOS_PER_MILLI));
        assert_eq!(
            changes,
            [
                change("limit:r", "a b", Some(Exception::limit(5, None))),
                change("block:r", "c", None),
                change("block:r", "d", Some(Exception::by_hand(Some("spam"), ends))),
            ]
        );
        assert_eq!(
            (known, starts_over, is_last),
            (ExceptionCursor::Change { born: 4, number: 10, of: "block:r d".into() }, true, false)
        );
        let head = ["3", "0", "1"];
        let foreign = [
            Reply::of_texts(&[]),
            Reply::of_texts(&["1"]),
            Reply::of_texts(&head),
            reply(head, &["x", "limit:r a", "5 "]),
            reply(head, &["8", "limit:ra", "5 "]),
            reply(head, &["8", "limit:r a", "x "]),
            reply(head, &["8", "limit:r a"]),
            reply(head, &["8", "r a", "5 "]),
            reply(head, &["8", "block:r a", "5 "]),
            reply(["x", "0", "1"], &[]),
            reply(["3", "2", "1"], &[]),
        ];
        for reply in foreign {
            assert!(page(&ExceptionCursor::Nothing, &reply, now).is_err(), "{reply:?}");
        }
    }
}
