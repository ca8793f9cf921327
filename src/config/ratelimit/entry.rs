//! A validated entry of the configuration: what it requires of a descriptor's entry, and the limit it sets.

use jiff::civil::Time;

use crate::calendar::{Calendar, Unit};
use crate::rules::{Pattern, Seconds, Settings};

/// What ratelimit reports for an unlimited entry, so that a reply shows the same number.
const UNLIMITED_CREDITS: u64 = u32::MAX as u64;

/// An entry and what is nested in it.
#[derive(Debug)]
pub struct Entry {
    /// Where it begins in its file, from 1.
    pub line: usize,
    pub key: String,
    pub asks: Asks,
    /// For descriptors that end here.
    pub limit: Option<Limit>,
    /// In the order in which ratelimit tries them.
    pub nested: Vec<Entry>,
}

/// What an entry requires of the value under its key, in the order in which ratelimit tries them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asks {
    /// `value: foo`.
    Value(String),
    /// `value: foo*bar`: each `*` stands for any characters.
    Wildcard {
        pattern: Pattern,
        /// `share_threshold`: one counter for all values, instead of one for each.
        shared: bool,
    },
    /// No `value`: one counter for each.
    Any,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    pub settings: Settings,
    /// It counts hits and denies nothing.
    pub trial: bool,
    pub label: String,
}

impl Asks {
    pub fn pattern(&self) -> Pattern {
        match self {
            Self::Value(value) => Pattern::Literal(value.clone()),
            Self::Wildcard { pattern, .. } => pattern.clone(),
            Self::Any => Pattern::Any,
        }
    }

    /// Does each value have its own counter?
    pub fn counts_each(&self) -> bool {
        matches!(self, Self::Wildcard { shared: false, .. } | Self::Any)
    }

    /// Entries of a lower rank are tried first; those of one rank in their order in the file.
    pub fn rank(&self) -> u8 {
        match self {
            Self::Value(_) => 0,
            Self::Wildcard { .. } => 1,
            Self::Any => 2,
        }
    }
}

/// The numbers of a rule that allows everything.
pub fn unlimited() -> Settings {
    Settings { credit_limit: UNLIMITED_CREDITS, ..Settings::default() }
}

/// Does a rule with these numbers need a counter?
pub fn is_counted(settings: &Settings) -> bool {
    settings.credit_limit > 0 && (settings.calendar.is_some() || !settings.reset_seconds.is_zero())
}

/// The window of a unit in ratelimit, which ignores its case. There it begins and ends by the clock, in UTC.
pub fn window(unit: &str) -> Option<Settings> {
    let name = unit.to_ascii_lowercase();
    if name == "second" {
        return Some(Settings { reset_seconds: Seconds::whole(1), ..Settings::default() });
    }
    let unit = Unit::ALL.into_iter().find(|unit| unit.name() == name)?;
    Some(Settings { calendar: Calendar::new(unit, "UTC", Time::midnight()).ok(), ..Settings::default() })
}

/// How long a unit is in ratelimit, which counts such windows from 1970: where the calendar's are others.
pub fn days_in_ratelimit(unit: Unit) -> Option<u64> {
    match unit {
        Unit::Minute | Unit::Hour | Unit::Day => None,
        Unit::Week => Some(7),
        Unit::Month => Some(30),
        Unit::Year => Some(365),
    }
}
