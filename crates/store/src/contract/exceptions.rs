//! Exceptions: what applies to a single actor in place of its rule's own decision: a limit, a block or an allow.
//!
//! A store keeps exceptions and reports changes. Hits find them in the memory of the limiter.

use std::sync::Arc;

use divvy_core::clock::{NANOS_PER_SECOND, Timestamp};
use divvy_telemetry::metrics::named_values;

named_values! {
    /// The kind of an exception. Its name begins the owners of such exceptions.
    ExceptionKind {
        /// The actor has its own credits in place of its rule's.
        Limit = "limit",
        /// The actor is always denied.
        Block = "block",
        /// The actor is never denied.
        Allow = "allow",
    }
}

impl ExceptionKind {
    /// Splits an owner, such as `limit:LABEL`, into the kind of its exceptions and the rest.
    pub fn split_owner(owner: &str) -> Option<(Self, &str)> {
        let (name, rest) = owner.split_once(':')?;
        Some((Self::ALL.into_iter().find(|kind| kind.name() == name)?, rest))
    }
}

/// An exception for a single actor.
///
/// Stores keep it as a text, and keep its expiry separately.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exception {
    /// What applies to the actor.
    pub effect: Effect,
    /// The exception's end. `None` if it lasts until it is removed. One that has ended may still be remembered.
    pub ends: Option<Timestamp>,
}

/// What applies to an actor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// A limit of its own.
    Limit {
        /// Credits in place of the rule's. 0 denies every hit.
        credits: u64,
    },
    /// A block or an allow. The owner says which.
    Override {
        /// The reason that was given.
        reason: Option<Arc<str>>,
        /// The operator, program or rule that set it.
        setter: Setter,
    },
}

/// The source of a block or an allow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Setter {
    /// An operator, by hand.
    Operator,
    /// The program with this name, which keeps its blocks up to date. Its name has no spaces.
    Program(Arc<str>),
    /// A rule.
    Rule(Repetition),
}

/// How often a rule has blocked an actor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repetition {
    /// Number of the latest block, from 1.
    pub number: u32,
    /// Seconds after the block's end until the blocks are forgotten.
    pub remembered_seconds: u64,
}

/// First word of the text of a block or an allow by an operator: the version of its layout. The reason may follow.
const SET_BY_HAND: &str = "1";
/// First word of the text of a block that a rule set. The number of the block, the seconds from its end until it is forgotten,
/// and the reason follow.
const SET_BY_RULE: &str = "2";
/// First word of the text of a block or an allow by a program. The program's name follows, and the reason may follow it.
const SET_BY_PROGRAM: &str = "3";

impl Exception {
    /// Returns a limit.
    pub fn limit(credits: u64, ends: Option<Timestamp>) -> Self {
        Self { effect: Effect::Limit { credits }, ends }
    }

    /// Returns a block or an allow that an operator sets.
    pub fn by_hand(reason: Option<&str>, ends: Option<Timestamp>) -> Self {
        Self { effect: Effect::Override { reason: reason.map(Into::into), setter: Setter::Operator }, ends }
    }

    /// Returns the credits of a limit.
    #[inline]
    pub fn credits(&self) -> Option<u64> {
        if let Effect::Limit { credits } = self.effect { Some(credits) } else { None }
    }

    /// Returns the reason of a block or an allow.
    pub fn reason(&self) -> Option<&Arc<str>> {
        if let Effect::Override { reason, .. } = &self.effect { reason.as_ref() } else { None }
    }

    /// Returns the number of a block that a rule set.
    pub fn repetition(&self) -> Option<Repetition> {
        let Effect::Override { setter: Setter::Rule(repetition), .. } = self.effect else { return None };
        Some(repetition)
    }

    /// Returns the name of the program that set a block or an allow.
    pub fn program(&self) -> Option<&Arc<str>> {
        if let Effect::Override { setter: Setter::Program(name), .. } = &self.effect { Some(name) } else { None }
    }

    /// Returns the time until which stores keep the exception. `None` if they keep it until it is removed.
    pub fn expires(&self) -> Option<Timestamp> {
        let remembered_ns = self.repetition().map_or(0, |repetition| repetition.remembered_seconds * NANOS_PER_SECOND);
        self.ends.map(|ends| ends.plus(remembered_ns))
    }

    /// Returns the exception as it is after the clock was set back by `nanos`, if its length counts and not the time of its end.
    pub fn set_back(&self, nanos: u64) -> Option<Self> {
        self.repetition()?;
        Some(Self { ends: Some(self.ends?.minus(nanos)), ..self.clone() })
    }

    /// Returns the exception without [`Exception::expires`], as a text of at least one character.
    pub fn to_text(&self) -> String {
        let (mut text, reason) = match &self.effect {
            Effect::Limit { credits } => return credits.to_string(),
            Effect::Override { reason, setter: Setter::Operator } => (SET_BY_HAND.to_owned(), reason),
            Effect::Override { reason, setter: Setter::Program(name) } => (format!("{SET_BY_PROGRAM} {name}"), reason),
            Effect::Override { reason, setter: Setter::Rule(Repetition { number, remembered_seconds }) } => {
                (format!("{SET_BY_RULE} {number} {remembered_seconds}"), reason)
            }
        };
        if let Some(reason) = reason {
            text.push(' ');
            text.push_str(reason);
        }
        text
    }

    /// Reads what [`Exception::to_text`] returned for an exception of this owner. `None` for another text.
    pub fn from_text(owner: &str, text: &str, expires: Option<Timestamp>) -> Option<Self> {
        let (kind, _) = ExceptionKind::split_owner(owner)?;
        if kind == ExceptionKind::Limit {
            return Some(Self::limit(text.parse().ok()?, expires));
        }
        let (version, rest) = split_word(text);
        let (ends, setter, reason) = match version {
            SET_BY_HAND => (expires, Setter::Operator, rest),
            SET_BY_PROGRAM => {
                let (name, reason) = split_word(rest.filter(|rest| !rest.is_empty())?);
                (expires, Setter::Program(name.into()), reason)
            }
            SET_BY_RULE => {
                let (number, rest) = split_word(rest?);
                let (remembered, reason) = split_word(rest?);
                let remembered_seconds: u64 = remembered.parse().ok()?;
                let ends = expires?.minus(remembered_seconds.checked_mul(NANOS_PER_SECOND)?);
                (Some(ends), Setter::Rule(Repetition { number: number.parse().ok()?, remembered_seconds }), reason)
            }
            _ => return None,
        };
        Some(Self { effect: Effect::Override { reason: reason.map(Into::into), setter }, ends })
    }
}

/// The exceptions that a change replaces or removes. Any other one stays as long as it lasts, and the change is not made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Replaces {
    /// All.
    All,
    /// Blocks that a rule set.
    OfRules,
    /// Those that the program with this name set. A new one also replaces a block that a rule set.
    OfProgram(Arc<str>),
}

impl Replaces {
    /// Returns how the texts of the exceptions that this change replaces begin. None if it replaces all.
    pub fn beginnings(&self, change: &ExceptionChange) -> Vec<String> {
        let of_rules = || format!("{SET_BY_RULE} ");
        match self {
            Self::All => Vec::new(),
            Self::OfRules => vec![of_rules()],
            Self::OfProgram(name) => {
                let own = format!("{SET_BY_PROGRAM} {name} ");
                if change.value.is_some() { vec![own, of_rules()] } else { vec![own] }
            }
        }
    }

    /// Returns whether this change replaces or removes an exception.
    pub fn covers(&self, known: &Exception, change: &ExceptionChange) -> bool {
        // Each word ends with a space, the last one, too.
        let (beginnings, text) = (self.beginnings(change), known.to_text() + " ");
        beginnings.is_empty() || beginnings.iter().any(|beginning| text.starts_with(beginning))
    }
}

/// Splits the first word off. A space ends it.
fn split_word(text: &str) -> (&str, Option<&str>) {
    text.split_once(' ').map_or((text, None), |(word, rest)| (word, Some(rest)))
}

/// The outcome of a change of an actor's exception.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changed {
    /// The change was made. There was an exception before.
    Replaced,
    /// The change was made. The actor had no exception before.
    Added,
    /// The change was made. The store does not know whether there was one before.
    Made,
    /// No change was made, because there is an exception that it does not [replace](Replaces).
    Kept,
}

/// A change of an actor's exception.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExceptionChange {
    /// The exception's owner, without spaces and zero bytes. It begins with the exception's kind, as in `limit:LABEL`. The
    /// store uses it as a part of the exception's key.
    pub owner: String,
    /// The actor, in the form that hits give it.
    pub actor: String,
    /// The new exception. `None` if it was removed.
    pub value: Option<Exception>,
}

/// A position in the changes of a store's exceptions. A server has followed all changes before it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ExceptionCursor {
    /// The server has read none.
    #[default]
    Nothing,
    /// The server has read all exceptions up to this key, in a store that reports them in the order of keys.
    Key(Box<[u8]>),
    /// The server has read all changes up to this one, in a store that other servers change, too.
    Change {
        /// Distinguishes one history of changes from another.
        born: u64,
        /// Number of the change in its history.
        number: u64,
        /// Owner and actor of the change.
        of: String,
    },
    /// The server has read all exceptions, in a store that no other server changes.
    All,
}

/// A page of changed exceptions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExceptionPage {
    /// The changed exceptions, at most [`EXCEPTIONS_PER_PAGE`].
    pub changes: Vec<ExceptionChange>,
    /// The cursor after this page.
    pub known: ExceptionCursor,
    /// Whether all exceptions are reported, from this page to the last. Exceptions in memory that are not reported no
    /// longer exist.
    pub starts_over: bool,
    /// Whether the server has read all exceptions after this page.
    pub is_last: bool,
}

impl ExceptionPage {
    /// Returns the last page, without changes.
    pub fn nothing(known: ExceptionCursor) -> Self {
        Self { changes: Vec::new(), known, starts_over: false, is_last: true }
    }
}

/// Maximum number of exceptions in a page.
pub const EXCEPTIONS_PER_PAGE: usize = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_secs(seconds).unwrap()
    }

    #[test]
    fn exception_reads_back() {
        for reason in [None, Some("a reason with spaces"), Some(" ")] {
            let by = |setter| Exception {
                effect: Effect::Override { reason: reason.map(Arc::from), setter },
                ends: Some(at(60)),
            };
            let by_rule = by(Setter::Rule(Repetition { number: 3, remembered_seconds: 30 }));
            let by_program = by(Setter::Program("crowdsec".into()));
            for kept in [Exception::by_hand(reason, None), by(Setter::Operator), by_program, by_rule] {
                assert_eq!(Exception::from_text("block:r", &kept.to_text(), kept.expires()), Some(kept));
            }
        }
        for limit in [Exception::limit(0, None), Exception::limit(u64::MAX, Some(at(60)))] {
            assert_eq!(Exception::from_text("limit:r", &limit.to_text(), limit.expires()), Some(limit));
        }
        assert_eq!(Exception::from_text("block:r", "1 scraping", Some(at(5))).unwrap().ends, Some(at(5)));
    }

    #[test]
    fn unknown_exception_is_not_read() {
        for text in ["", "3", "3 ", "4", "2", "2 1", "2 x 5", "2 1 x", "10 reason"] {
            assert_eq!(Exception::from_text("allow:r", text, Some(at(5))), None, "{text:?}");
        }
        assert_eq!(Exception::from_text("block:r", "2 1 5", None), None, "a block by a rule is forgotten sometime");
        for (owner, text) in [("limit:r", "1 reason"), ("limit:r", ""), ("limit:r", "-1"), ("r", "5"), ("deny:r", "1")]
        {
            assert_eq!(Exception::from_text(owner, text, None), None, "{owner} {text}");
        }
    }

    #[test]
    fn program_replaces_its_own_exceptions_and_those_of_rules() {
        let by = |setter| Exception { effect: Effect::Override { reason: None, setter }, ends: Some(at(60)) };
        let program = |name: &str| by(Setter::Program(name.into()));
        let by_rule = by(Setter::Rule(Repetition { number: 1, remembered_seconds: 30 }));
        let known = [by(Setter::Operator), program("crowdsec"), program("crowdsec-2"), by_rule];
        for (replaces, sets, removes) in [
            (Replaces::All, [true; 4], [true; 4]),
            (Replaces::OfRules, [false, false, false, true], [false, false, false, true]),
            (Replaces::OfProgram("crowdsec".into()), [false, true, false, true], [false, true, false, false]),
        ] {
            let covers = |value: Option<Exception>| {
                let change = ExceptionChange { owner: "block:r".into(), actor: "a".into(), value };
                known.each_ref().map(|known| replaces.covers(known, &change))
            };
            assert_eq!((covers(Some(program("crowdsec"))), covers(None)), (sets, removes), "{replaces:?}");
        }
    }
}
