//! The fields of requests: their names, their places in each front, and their values.

use std::fmt;

use super::hits;
use super::shape::{Member, Shape};
use divvy_core::rules::MAX_RESET_SECONDS;

/// A field of a request.
#[derive(Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name in JSON, in a URL's query, and in RESP's usage.
    pub name: &'static str,
    /// Where RESP commands have it.
    pub place: Place,
    /// Whether it is in the body of an HTTP request instead of the query.
    pub is_in_body: bool,
    /// Whether it must be given.
    pub is_required: bool,
    /// Its values.
    pub kind: Kind,
    /// What it means, in one sentence.
    pub about: &'static str,
}

/// Where a RESP command has a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// At its position among the others.
    Position,
    /// After this word, in any order.
    Option(&'static str),
    /// As a word of its own, which is the value.
    Word,
    /// Nowhere: only HTTP has it.
    Nowhere,
}

/// The values of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Any text.
    Text,
    /// A whole number in this range.
    Number {
        /// The smallest.
        min: u64,
        /// The largest.
        max: u64,
    },
    /// How long something lasts, in whole seconds.
    Seconds,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A rule: its name, or its operation, which over RESP is a word for each pair.
    Rule,
    /// Pairs of field and value.
    Pairs,
    /// The name of a program that owns blocks.
    Owner,
    /// A list of objects with these fields, in a body.
    List {
        /// The fields of each.
        of: &'static [&'static Field],
        /// The largest number of objects.
        max: usize,
    },
}

impl Kind {
    /// Returns whether the values are numbers in JSON.
    pub fn is_number(self) -> bool {
        matches!(self, Self::Number { .. } | Self::Seconds)
    }

    /// Returns the smallest and the largest number.
    pub fn range(self) -> (u64, u64) {
        match self {
            Self::Number { min, max } => (min, max),
            _ => (1, MAX_RESET_SECONDS),
        }
    }
}

impl fmt::Display for Kind {
    /// Describes the values, for "must be".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text => f.write_str("text"),
            Self::Rule => f.write_str("the name of a rule, or its operation as in the rules file"),
            Self::Number { min, max } => write!(f, "a whole number from {min} to {max}"),
            Self::Seconds => {
                write!(f, "a whole number of seconds from 1 to {MAX_RESET_SECONDS}, which is 100 years")
            }
            Self::Choice(words) => f.write_str(&words.join(" or ")),
            Self::Pairs => f.write_str("field=value pairs"),
            Self::Owner => f.write_str("1 to 64 printable ASCII characters without spaces"),
            Self::List { max, .. } => write!(f, "a list of at most {max}"),
        }
    }
}

impl Field {
    /// Creates a field that must be given, at its position.
    pub(super) const fn new(name: &'static str, kind: Kind, about: &'static str) -> Self {
        Self { name, place: Place::Position, is_in_body: false, is_required: true, kind, about }
    }

    /// Creates a field that may be missing, after `word`.
    pub(super) const fn option(word: &'static str, name: &'static str, kind: Kind, about: &'static str) -> Self {
        Self { place: Place::Option(word), is_required: false, ..Self::new(name, kind, about) }
    }

    /// Returns the field for HTTP requests alone.
    pub(super) const fn only_over_http(self) -> Self {
        Self { place: Place::Nowhere, ..self }
    }

    /// Returns the field in the body of HTTP requests.
    pub(super) const fn in_body(self) -> Self {
        Self { is_in_body: true, ..self }
    }

    /// Returns the field as a member of HTTP requests.
    pub(super) fn member(&self) -> Member {
        let shape = match self.kind {
            // A cursor is only valid as the server has made it; 0 is the first page.
            Kind::Text if self.place == Place::Option("CURSOR") => Shape::Pattern("^(0|[^ ]+ .*)$"),
            Kind::Text | Kind::Rule => Shape::Text,
            Kind::Choice(words) => Shape::Word(words),
            Kind::Owner => Shape::Pattern("^[!-~]{1,64}$"),
            Kind::List { .. } => Shape::List(&Shape::Object),
            Kind::Pairs if self.is_in_body => hits::OPERATION.shape,
            Kind::Pairs => Shape::Length(&Shape::Texts, 1, u64::MAX),
            Kind::Number { .. } | Kind::Seconds => {
                let (min, max) = self.kind.range();
                Shape::Range(min, max)
            }
        };
        // There may be no words for an operation, but in JSON it is an object in any case.
        let is_required = self.is_required || (self.kind == Kind::Pairs && self.is_in_body);
        Member { name: self.name, shape, about: self.about, is_optional: !is_required, example: None }
    }

    /// Returns its name for an error over RESP.
    pub(super) fn word(&self) -> &'static str {
        match self.place {
            Place::Option(word) => word,
            _ => self.name,
        }
    }

    /// Returns its part of a command's usage.
    pub(super) fn usage(&self) -> String {
        let values = match self.kind {
            Kind::Rule => "rule | key=value...".to_owned(),
            Kind::Pairs => "key=value...".to_owned(),
            Kind::Choice(words) => words.join(" | "),
            Kind::Seconds => "seconds".to_owned(),
            Kind::Text | Kind::Number { .. } | Kind::Owner | Kind::List { .. } => self.name.to_owned(),
        };
        match self.place {
            Place::Option(word) => format!("[{word} {values}]"),
            Place::Word => format!("[{}]", values.to_uppercase()),
            Place::Position | Place::Nowhere => values,
        }
    }
}
