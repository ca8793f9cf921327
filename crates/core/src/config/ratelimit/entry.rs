//! A validated entry of the configuration: its condition on a descriptor's entry, its limit, and ratelimit's names as valid,
//! unique labels.

use std::collections::HashSet;

use jiff::civil::Time;

use crate::calendar::{Calendar, Unit};
use crate::config::validate::{MAX_LABEL_LENGTH, to_label};
use crate::rules::{Pattern, Seconds, Settings};

/// An entry and its nested entries.
#[derive(Debug)]
pub struct Entry {
    /// Line of the file where the entry begins, from 1.
    pub line: usize,
    pub key: String,
    pub condition: ValueCondition,
    /// The limit for descriptors that end at this entry.
    pub limit: Option<Limit>,
    /// Nested entries, in ratelimit's order of lookup.
    pub nested: Vec<Entry>,
}

/// An entry's condition on the value of its key. The variants are in ratelimit's order of lookup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValueCondition {
    /// `value: foo`.
    Value(String),
    /// `value: foo*bar`: each `*` stands for any characters.
    Wildcard {
        pattern: Pattern,
        /// `share_threshold`: all values share one counter, instead of having one each.
        shared: bool,
    },
    /// No `value`: any value, each with its own counter.
    Any,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    pub settings: Settings,
    /// Whether the limit only counts hits, and never denies.
    pub trial: bool,
    pub label: String,
}

impl ValueCondition {
    pub fn pattern(&self) -> Pattern {
        match self {
            Self::Value(value) => Pattern::Literal(value.clone()),
            Self::Wildcard { pattern, .. } => pattern.clone(),
            Self::Any => Pattern::Any,
        }
    }

    /// Returns whether each value has its own counter.
    pub fn counts_each(&self) -> bool {
        matches!(self, Self::Wildcard { shared: false, .. } | Self::Any)
    }

    /// Returns the entry's rank. Ratelimit tries lower ranks first, and entries of the same rank in the order of the
    /// file.
    pub fn rank(&self) -> u8 {
        match self {
            Self::Value(_) => 0,
            Self::Wildcard { .. } => 1,
            Self::Any => 2,
        }
    }
}

/// Returns whether a rule with these settings needs a counter.
pub fn is_counted(settings: &Settings) -> bool {
    settings.credit_limit > 0 && (settings.calendar.is_some() || !settings.reset_seconds.is_zero())
}

/// Returns the settings for the window of a ratelimit unit, whose case does not matter. In ratelimit, windows begin and
/// end by the clock, in UTC.
pub fn window(unit: &str) -> Option<Settings> {
    let name = unit.to_ascii_lowercase();
    if name == "second" {
        return Some(Settings { reset_seconds: Seconds::whole(1), ..Settings::default() });
    }
    let unit = Unit::ALL.into_iter().find(|unit| unit.name() == name)?;
    Some(Settings { calendar: Calendar::new(unit, "UTC", Time::midnight()).ok(), ..Settings::default() })
}

/// Returns the days in a unit, if ratelimit's windows of this unit differ from the calendar's: it counts them from
/// 1970.
pub fn days_in_ratelimit(unit: Unit) -> Option<u64> {
    match unit {
        Unit::Minute | Unit::Hour | Unit::Day => None,
        Unit::Week => Some(7),
        Unit::Month => Some(30),
        Unit::Year => Some(365),
    }
}

#[derive(Debug, Default)]
pub struct Labels(HashSet<String>);

impl Labels {
    /// Turns `name` into a label: invalid characters become `-`, and a label that is in use gets a number.
    pub fn make(&mut self, name: &str) -> String {
        let base = to_label(name);
        let numbered = (2..).map(|number: u64| shortened(&base, &format!("-{number}")));
        let mut candidates = std::iter::once(shortened(&base, "")).chain(numbered);
        let unused = candidates.find(|label| !self.0.contains(label)).unwrap_or_default();
        self.0.insert(unused.clone());
        unused
    }
}

/// Joins `base` and `suffix`. Cuts `base` if the result would be too long.
fn shortened(base: &str, suffix: &str) -> String {
    let room = MAX_LABEL_LENGTH.saturating_sub(suffix.len());
    base.chars().take(room).chain(suffix.chars()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_valid_and_unique() {
        let mut labels = Labels::default();
        assert_eq!(labels.make("per_ip-1"), "per_ip-1");
        assert_eq!(labels.make("edge.path_/a*é"), "edge-path_-a--");
        assert_eq!(labels.make("edge.path_/b"), "edge-path_-b");
        assert_eq!(labels.make("edge.path.-b"), "edge-path--b");
        assert_eq!(labels.make("edge.path_.b"), "edge-path_-b-2");
        assert_eq!(labels.make("edge-path_-b"), "edge-path_-b-3");
    }

    #[test]
    fn long_names_are_cut_and_stay_unique() {
        let mut labels = Labels::default();
        let (one, other) = (labels.make(&"x".repeat(300)), labels.make(&"x".repeat(301)));
        assert_eq!((one.len(), other.len()), (MAX_LABEL_LENGTH, MAX_LABEL_LENGTH));
        assert!(one != other && other.ends_with("x-2"), "{other}");
    }
}
