//! Exceptions: what applies to a single actor in place of its rule's own decision, such as a limit of its own.
//!
//! A store keeps exceptions and reports changes. Hits find them in the memory of the [limiter](crate::limiter).

use std::fmt::Debug;
use std::sync::Arc;

use crate::clock::Timestamp;

/// An exception for a single actor.
///
/// Stores keep it as bytes or as text, and keep its end separately.
pub trait Exception: Debug + Clone + PartialEq + Send + Sync + 'static {
    /// The register that the exception is in.
    const REGISTER: Register;

    /// Returns the exception's end. `None` if it lasts until it is removed.
    fn expires(&self) -> Option<Timestamp>;

    /// Returns the exception without its end, as bytes.
    fn to_bytes(&self) -> Vec<u8>;

    /// Reads what [`Exception::to_bytes`] returned. `None` for other bytes.
    fn from_bytes(bytes: &[u8], expires: Option<Timestamp>) -> Option<Self>;

    /// Returns the exception without its end, as a text of at least one character.
    fn to_text(&self) -> String;

    /// Reads what [`Exception::to_text`] returned. `None` for another text.
    fn from_text(text: &str, expires: Option<Timestamp>) -> Option<Self>;
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
    /// The operator's reason.
    pub reason: Option<Arc<str>>,
    /// The override's end. `None` if it lasts until it is removed.
    pub expires: Option<Timestamp>,
}

/// First word of an override's text: the version of its layout.
const OVERRIDE_VERSION: &str = "1";

impl Exception for Override {
    const REGISTER: Register = Register::Overrides;

    fn expires(&self) -> Option<Timestamp> {
        self.expires
    }

    fn to_bytes(&self) -> Vec<u8> {
        self.to_text().into_bytes()
    }

    fn from_bytes(bytes: &[u8], expires: Option<Timestamp>) -> Option<Self> {
        Self::from_text(std::str::from_utf8(bytes).ok()?, expires)
    }

    fn to_text(&self) -> String {
        self.reason.as_ref().map_or(OVERRIDE_VERSION.to_owned(), |reason| format!("{OVERRIDE_VERSION} {reason}"))
    }

    fn from_text(text: &str, expires: Option<Timestamp>) -> Option<Self> {
        let reason = match text.split_once(' ') {
            None if text == OVERRIDE_VERSION => None,
            Some((OVERRIDE_VERSION, reason)) => Some(reason.into()),
            _ => return None,
        };
        Some(Self { reason, expires })
    }
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
