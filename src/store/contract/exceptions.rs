//! Exceptions: what applies to a single actor in place of its rule's own decision, such as a limit of its own.
//!
//! A store keeps exceptions and reports changes. Hits find them in the memory of the [limiter](crate::limiter).

use std::fmt::Debug;
use std::sync::Arc;

use crate::clock::{NANOS_PER_SECOND, Timestamp};

/// An exception for a single actor.
///
/// Stores keep it as bytes or as text, and keep its end separately.
pub trait Exception: Debug + Clone + PartialEq + Send + Sync + 'static {
    /// The register that the exception is in.
    const REGISTER: Register;

    /// Returns the time until which stores keep the exception. `None` if they keep it until it is removed.
    fn expires(&self) -> Option<Timestamp>;

    /// Returns the time until which the exception is in force. An exception that has ended may still be remembered.
    fn ends(&self) -> Option<Timestamp> {
        self.expires()
    }

    /// Returns the exception as it is after the clock was set back by `nanos`, if its length counts and not the time of its end.
    fn set_back(&self, _nanos: u64) -> Option<Self> {
        None
    }

    /// Returns the length of the texts that the exception has besides its actor (bytes).
    fn text_bytes(&self) -> usize {
        0
    }

    /// Returns the exception without [`Exception::expires`], as bytes.
    fn to_bytes(&self) -> Vec<u8>;

    /// Reads what [`Exception::to_bytes`] returned. `None` for other bytes.
    fn from_bytes(bytes: &[u8], expires: Option<Timestamp>) -> Option<Self>;

    /// Returns the exception without [`Exception::expires`], as a text of at least one character.
    fn to_text(&self) -> String;

    /// Reads what [`Exception::to_text`] returned. `None` for another text.
    fn from_text(text: &str, expires: Option<Timestamp>) -> Option<Self>;

    /// Returns how the texts of exceptions begin that this one never replaces as long as they last. Empty if it replaces any.
    fn yields_to(&self) -> &'static str {
        ""
    }
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
    /// No change was made, because there is an exception that this one [yields to](Exception::yields_to).
    Kept,
}

/// A register of exceptions. Stores keep each register apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Register {
    /// Limits of single actors.
    Limits,
    /// Blocks and allows.
    Overrides,
}

/// The credits that one actor has in place of its rule's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ActorLimit {
    /// Credits. 0 denies every hit.
    pub credits: u64,
    /// The limit's end. `None` if it lasts until it is removed.
    pub expires: Option<Timestamp>,
}

impl Exception for ActorLimit {
    const REGISTER: Register = Register::Limits;

    fn expires(&self) -> Option<Timestamp> {
        self.expires
    }

    fn to_bytes(&self) -> Vec<u8> {
        self.credits.to_le_bytes().to_vec()
    }

    fn from_bytes(bytes: &[u8], expires: Option<Timestamp>) -> Option<Self> {
        Some(Self { credits: u64::from_le_bytes(bytes.try_into().ok()?), expires })
    }

    fn to_text(&self) -> String {
        self.credits.to_string()
    }

    fn from_text(text: &str, expires: Option<Timestamp>) -> Option<Self> {
        Some(Self { credits: text.parse().ok()?, expires })
    }
}

/// A block or an allow of one actor. Its owner says which.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Override {
    /// The reason that was given.
    pub reason: Option<Arc<str>>,
    /// The override's end. `None` if it lasts until it is removed.
    pub ends: Option<Timestamp>,
    /// The number of a block that a rule set. `None` for an override by an operator or a program.
    pub repetition: Option<Repetition>,
}

/// How often a rule has blocked an actor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repetition {
    /// Number of the latest block, from 1.
    pub number: u32,
    /// Seconds after the block's end until the blocks are forgotten.
    pub remembered_seconds: u64,
}

/// First word of the text of an override by an operator or a program: the version of its layout. The reason may follow.
const SET_BY_HAND: &str = "1";
/// First word of the text of a block that a rule set. The number of the block, the seconds from its end until it is forgotten,
/// and the reason follow.
const SET_BY_RULE: &str = "2";

impl Exception for Override {
    const REGISTER: Register = Register::Overrides;

    fn expires(&self) -> Option<Timestamp> {
        let remembered_ns = self.repetition.map_or(0, |repetition| repetition.remembered_seconds * NANOS_PER_SECOND);
        self.ends.map(|ends| ends.plus(remembered_ns))
    }

    fn ends(&self) -> Option<Timestamp> {
        self.ends
    }

    fn text_bytes(&self) -> usize {
        self.reason.as_ref().map_or(0, |reason| reason.len())
    }

    fn set_back(&self, nanos: u64) -> Option<Self> {
        self.repetition?;
        Some(Self { ends: Some(self.ends?.minus(nanos)), ..self.clone() })
    }

    fn to_bytes(&self) -> Vec<u8> {
        self.to_text().into_bytes()
    }

    fn from_bytes(bytes: &[u8], expires: Option<Timestamp>) -> Option<Self> {
        Self::from_text(std::str::from_utf8(bytes).ok()?, expires)
    }

    fn to_text(&self) -> String {
        let mut text = match self.repetition {
            Some(Repetition { number, remembered_seconds }) => format!("{SET_BY_RULE} {number} {remembered_seconds}"),
            None => SET_BY_HAND.to_owned(),
        };
        if let Some(reason) = &self.reason {
            text.push(' ');
            text.push_str(reason);
        }
        text
    }

    fn from_text(text: &str, expires: Option<Timestamp>) -> Option<Self> {
        let (version, rest) = split_word(text);
        let (ends, repetition, reason) = match version {
            SET_BY_HAND => (expires, None, rest),
            SET_BY_RULE => {
                let (number, rest) = split_word(rest?);
                let (remembered, reason) = split_word(rest?);
                let remembered_seconds: u64 = remembered.parse().ok()?;
                let ends = expires?.minus(remembered_seconds.checked_mul(NANOS_PER_SECOND)?);
                (Some(ends), Some(Repetition { number: number.parse().ok()?, remembered_seconds }), reason)
            }
            _ => return None,
        };
        Some(Self { reason: reason.map(Into::into), ends, repetition })
    }

    fn yields_to(&self) -> &'static str {
        if self.repetition.is_some() { SET_BY_HAND } else { "" }
    }
}

/// Splits the first word off. A space ends it.
fn split_word(text: &str) -> (&str, Option<&str>) {
    text.split_once(' ').map_or((text, None), |(word, rest)| (word, Some(rest)))
}

/// A change of an actor's exception.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExceptionChange<E> {
    /// The exception's owner, such as the rule's label: no spaces and no zero bytes. The store uses it as a part of the
    /// exception's key.
    pub owner: String,
    /// The actor, in the form that hits give it.
    pub actor: String,
    /// The new exception. `None` if it was removed.
    pub value: Option<E>,
}

/// A position in the changes of a register of a store. A server has followed all changes before it.
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
pub struct ExceptionPage<E> {
    /// The changed exceptions, at most [`EXCEPTIONS_PER_PAGE`].
    pub changes: Vec<ExceptionChange<E>>,
    /// The cursor after this page.
    pub known: ExceptionCursor,
    /// Whether all exceptions are reported, from this page to the last. Exceptions in memory that are not reported no
    /// longer exist.
    pub starts_over: bool,
    /// Whether the server has read all exceptions after this page.
    pub is_last: bool,
}

impl<E> ExceptionPage<E> {
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
    fn override_reads_back() {
        for reason in [None, Some("a reason with spaces"), Some(" ")] {
            let reason = reason.map(Arc::from);
            let by_hand = |ends| Override { reason: reason.clone(), ends, repetition: None };
            let repetition = Some(Repetition { number: 3, remembered_seconds: 30 });
            let by_rule = Override { reason: reason.clone(), ends: Some(at(60)), repetition };
            for kept in [by_hand(None), by_hand(Some(at(60))), by_rule] {
                assert_eq!(Override::from_text(&kept.to_text(), kept.expires()), Some(kept.clone()));
                assert_eq!(Override::from_bytes(&kept.to_bytes(), kept.expires()), Some(kept));
            }
        }
        assert_eq!(Override::from_text("1 scraping", Some(at(5))).unwrap().ends, Some(at(5)));
    }

    #[test]
    fn unknown_override_is_not_read() {
        for text in ["", "3", "2", "2 1", "2 x 5", "2 1 x", "10 reason"] {
            assert_eq!(Override::from_text(text, Some(at(5))), None, "{text:?}");
        }
        assert_eq!(Override::from_text("2 1 5", None), None, "a block by a rule is forgotten sometime");
    }
}
