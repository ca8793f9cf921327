//! Validates a rule's penalty: `blockAfter`, and the settings that depend on it.

use std::ops::RangeInclusive;

use super::{Checker, Number, number, setting_line};
use crate::config::problem::Location;
use crate::rules::setting_name::{
    ACTOR_FIELD, BLOCK_AFTER, BLOCK_FACTOR, BLOCK_FORGET, BLOCK_MAX, BLOCK_SECONDS, BLOCK_WINDOW, LABEL,
};
use crate::rules::{MAX_BLOCK_AFTER, MAX_BLOCK_FACTOR, MAX_RESET_SECONDS, Penalty, Quota, Settings};

impl Number<u64> {
    const fn whole_seconds(key: &'static str, meaning: &'static str) -> Self {
        Self { key, meaning, notation: "for example `900` or `15m`", read: number::whole_seconds }
    }
}

impl Checker<'_> {
    /// Returns the rule's penalty; `None` if it has none, or after reporting what is wrong.
    pub(super) fn penalty(&mut self, settings: Settings) -> Option<Penalty> {
        if self.setting(BLOCK_AFTER).is_none() {
            self.refuse_without_block_after();
            return None;
        }
        self.check_who_is_blocked(settings);
        let after = Number::whole(BLOCK_AFTER, "the number of denials that lead to a block");
        let after = self.within(after, 1..=MAX_BLOCK_AFTER);
        let window = Number::whole_seconds(BLOCK_WINDOW, "the seconds within which denials count");
        let window = self.within(window, 1..=MAX_RESET_SECONDS);
        let first = Number::whole_seconds(BLOCK_SECONDS, "the length of the first block in seconds");
        if self.setting(BLOCK_SECONDS).is_none() && !self.misspelled.contains(BLOCK_SECONDS) {
            let line = setting_line(self.raw, BLOCK_AFTER);
            let what = format!("`{BLOCK_AFTER}` needs `{BLOCK_SECONDS}`, the length of the first block");
            self.error(line, what, format!("add it, for example `{BLOCK_SECONDS} = 15m`"));
        }
        let seconds = self.within(first, 1..=MAX_RESET_SECONDS);
        let factor = Number::whole(BLOCK_FACTOR, "how many times as long as the one before each block is");
        let factor = self.within(factor, 1..=MAX_BLOCK_FACTOR);
        let max = Number::whole_seconds(BLOCK_MAX, "the length of the longest block in seconds");
        let max = self.within(max, seconds.unwrap_or(1)..=MAX_RESET_SECONDS);
        let forget = Number::whole_seconds(BLOCK_FORGET, "the seconds until blocks are forgotten");
        let forget = self.within(forget, 0..=MAX_RESET_SECONDS);
        Some(Penalty { after: after?, window, seconds: seconds?, factor, max, forget })
    }

    /// Reports settings that mean nothing, because the rule never blocks.
    fn refuse_without_block_after(&mut self) {
        for key in [BLOCK_WINDOW, BLOCK_SECONDS, BLOCK_FACTOR, BLOCK_MAX, BLOCK_FORGET] {
            let Some(setting) = self.setting(key).filter(|_| !self.misspelled.contains(BLOCK_AFTER)) else { continue };
            let what = format!("`{key}` has no meaning without `{BLOCK_AFTER}`");
            self.error(setting.line, what, format!("add `{BLOCK_AFTER} = 5`, or remove it"));
        }
    }

    /// Reports a rule that cannot name whom it blocks, or that never denies.
    fn check_who_is_blocked(&mut self, settings: Settings) {
        let line = setting_line(self.raw, BLOCK_AFTER);
        if self.setting(ACTOR_FIELD).is_none() && !self.misspelled.contains(ACTOR_FIELD) {
            let what = format!("`{BLOCK_AFTER}` blocks single actors, and the rule has no `{ACTOR_FIELD}`");
            self.error(line, what, format!("add `{ACTOR_FIELD}`, for example `{ACTOR_FIELD} = ip`"));
        }
        if self.setting(LABEL).is_none() && !self.misspelled.contains(LABEL) {
            let what = format!("`{BLOCK_AFTER}` needs a `{LABEL}`: blocks belong to it");
            self.error(line, what, format!("add a name, for example `{LABEL} = logins`"));
        }
        let place = Location { line, operation: Some(&self.raw.header) };
        if matches!(settings.quota(), Ok(Quota::Always { .. } | Quota::Never)) {
            let what = format!("`{BLOCK_AFTER}` has no effect: the rule counts nothing");
            self.problems.warning(place, what, "give the rule a limit, or remove it");
        }
        let what = format!("Button's Divvy 1.7.1 does not support `{BLOCK_AFTER}`: it blocks no actor");
        self.problems.difference(place, what, "remove it if Button's Divvy reads the file, too");
    }

    /// Returns the number; `None` if it is missing, or after reporting that it is no number or out of range.
    fn within(&mut self, number: Number<u64>, range: RangeInclusive<u64>) -> Option<u64> {
        let (key, meaning) = (number.key, number.meaning);
        let value = self.optional(number)?;
        if range.contains(&value) {
            return Some(value);
        }
        let (least, most) = range.into_inner();
        let what = format!("`{key}` is {value}, but must be from {least} to {most}");
        self.error(setting_line(self.raw, key), what, format!("write {meaning}"));
        None
    }
}
