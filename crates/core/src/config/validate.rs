//! Validates one rule of a document, its settings and its operation. Each problem has its line.

use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;

use jiff::civil::Time;

use super::conditions::{FieldSetting, Lists};
use super::document::{self, DEFAULT, InvalidNumber, RawRule, RawSetting, RawValue};
use super::{Location, Problems};
use crate::algorithm::Kind;
use crate::algorithm::reservation::LONGEST_SECONDS;
use crate::calendar::{self, Calendar, Unit};
use crate::nearest::{advice, nearest};
use crate::rules::setting_name::{
    self, ACTOR_FIELD, ACTOR_PREFIX, ALGORITHM, BLOCK_AFTER, BLOCK_FACTOR, BLOCK_FORGET, BLOCK_MAX, BLOCK_SECONDS,
    BLOCK_WINDOW, BURST, COMMENT, COST_FIELD, COUNTER, CREDIT_LIMIT, HOLD_FIELD, LABEL, LIMIT, LIST, MATCH_POLICY,
    NETWORKS, OVERRUN, PER, REFILL_CREDITS, REFILL_SECONDS, RESET_AT, RESET_SECONDS, TIMEZONE, UNLIMITED, UTC, WINDOW,
};
use crate::rules::{
    Condition, MAX_BLOCK_AFTER, MAX_BLOCK_FACTOR, MAX_RESET_SECONDS, MatchPolicy, Overrun, Pattern, Penalty, Quota,
    QuotaError, Rule, Seconds, Settings,
};

pub(super) const MAX_LABEL_LENGTH: usize = 255;
/// Seconds of a day.
const DAY: u64 = 24 * 60 * 60;

/// Returns the rule that `raw` describes; `None` if its operation or one of its conditions could not be read.
///
/// An invalid setting is reported and replaced by a valid one, so that the rule can still be compared with others. The
/// rules are used only if nothing was reported.
pub(super) fn rule(raw: &RawRule, lists: &mut Lists, problems: &mut Problems) -> Option<Rule> {
    let mut checker = Checker { raw, settings: HashMap::new(), misspelled: HashSet::new(), problems };
    checker.index_settings();
    let settings = checker.quota_settings();
    let actor_fields = checker.actor_fields();
    let networks = checker.field_setting(NETWORKS).and_then(|setting| setting.networks(checker.problems));
    let list = checker.field_setting(LIST).and_then(|setting| setting.list(lists, checker.problems));
    let actor_prefix = checker.field_setting(ACTOR_PREFIX);
    let actor_prefix = actor_prefix.and_then(|setting| setting.actor_prefix(&actor_fields, checker.problems));
    let is_missing = |key: &str, is_valid: bool| !is_valid && checker.field_setting(key).is_some();
    // Without its conditions, the rule would make others unreachable.
    let is_complete = !is_missing(NETWORKS, networks.is_some()) && !is_missing(LIST, list.is_some());
    let rule = Rule {
        settings,
        quota: checker.quota(settings),
        cost_field: checker.text(COST_FIELD),
        overrun: checker.overrun(settings),
        hold_field: checker.hold_field(settings, &actor_fields),
        actor_fields,
        counter: checker.counter(settings),
        penalty: checker.penalty(settings),
        match_policy: checker.match_policy(),
        label: checker.label(),
        comment: checker.text(COMMENT),
        operation: checker.operation([&networks, &list].into_iter().flatten())?,
        networks,
        list,
        actor_prefix,
        line: raw.line,
    };
    is_complete.then_some(rule)
}

/// Returns the line of a rule's setting, or the line of the rule if it has no such setting.
pub(super) fn setting_line(raw: &RawRule, key: &str) -> usize {
    raw.settings.iter().find(|setting| setting.key == key).map_or(raw.line, |setting| setting.line)
}

/// A setting that is a number.
struct Number<T> {
    key: &'static str,
    /// The meaning of the number, for messages.
    meaning: &'static str,
    /// The notation of the number, for messages.
    notation: &'static str,
    read: fn(&RawValue) -> Result<T, InvalidNumber>,
}

impl Number<u64> {
    const fn whole(key: &'static str, meaning: &'static str) -> Self {
        Self { key, meaning, notation: "in digits only", read: document::whole }
    }
}

impl Number<Seconds> {
    const fn seconds(key: &'static str, meaning: &'static str) -> Self {
        Self { key, meaning, notation: "for example `60` or `0.25`", read: document::seconds }
    }
}

/// Describes a period that is too long, or no time for leases, in the terms of `per`.
fn describe_period(error: &QuotaError, per: &RawSetting) -> Option<String> {
    let written = per.value.as_written();
    match error {
        QuotaError::TooLong { .. } => {
            Some(format!("`{PER}` is {written}, but at most {}d, which is 100 years", MAX_RESET_SECONDS / DAY))
        }
        QuotaError::NoLeaseTime { .. } => {
            Some(format!("`{PER}` is {written}, but a lease lasts from 1s to {}d", u64::from(LONGEST_SECONDS) / DAY))
        }
        _ => None,
    }
}

/// Returns the text with `-` in place of each character that a label cannot contain.
pub(super) fn to_label(text: &str) -> String {
    text.chars().map(|c| if u8::try_from(c).is_ok_and(is_label_byte) { c } else { '-' }).collect()
}

/// Returns whether a label may contain this byte.
fn is_label_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
}

struct Checker<'a> {
    raw: &'a RawRule,
    /// Known settings by key. The first one wins if a key is repeated.
    settings: HashMap<&'a str, &'a RawSetting>,
    /// Known keys that are probably meant by unknown ones. They are not reported as missing.
    misspelled: HashSet<&'static str>,
    problems: &'a mut Problems,
}

impl<'a> Checker<'a> {
    fn index_settings(&mut self) {
        for setting in &self.raw.settings {
            let key = setting.key.as_str();
            if !setting_name::NAMES.contains(&key) {
                let meant = nearest(key, setting_name::NAMES);
                self.misspelled.extend(meant);
                let fix = meant.map_or_else(
                    || format!("remove it: a rule has {}", setting_name::NAMES.join(", ")),
                    |meant| format!("did you mean `{meant}`?"),
                );
                self.error(setting.line, format!("unknown setting `{key}`"), fix);
            } else if let Some(first) = self.settings.get(key) {
                let what = format!("`{key}` is set twice, first on line {}", first.line);
                self.error(setting.line, what, "keep one of them");
            } else {
                self.settings.insert(key, setting);
            }
        }
    }

    /// Returns the setting, unless it is missing or `null`.
    fn setting(&self, key: &str) -> Option<&'a RawSetting> {
        self.settings.get(key).copied().filter(|setting| setting.value != RawValue::Null)
    }

    fn quota_settings(&mut self) -> Settings {
        if self.is_unlimited() {
            return Settings::unlimited();
        }
        let credit_limit = Number::whole(CREDIT_LIMIT, "the number of credits in a window, or 0 to deny all");
        let calendar = self.calendar();
        let window_length = self.window_length();
        let denies_all = self.setting(CREDIT_LIMIT).is_some_and(|setting| document::whole(&setting.value) == Ok(0));
        Settings {
            credit_limit: self.required(credit_limit),
            calendar,
            // A rule that denies everything needs no window.
            reset_seconds: if calendar.is_some() || self.setting(WINDOW).is_some() {
                Seconds::default()
            } else if denies_all {
                self.optional(window_length).unwrap_or_default()
            } else {
                self.required(window_length)
            },
            algorithm: self.choice(ALGORITHM, &Kind::ALL, Kind::name),
            refill_credits: self.optional(Number::whole(REFILL_CREDITS, "the number of credits in a refill")),
            refill_seconds: self.optional(Number::seconds(REFILL_SECONDS, "the time between refills in seconds")),
            burst: self.optional(Number::whole(BURST, "the number of credits allowed at once")),
        }
    }

    /// Returns whether the rule has `limit = none`. Reports another value, and settings that contradict it.
    fn is_unlimited(&mut self) -> bool {
        let Some(limit) = self.setting(LIMIT) else { return false };
        if limit.value.as_text() != Some(UNLIMITED) {
            let what = format!("`{LIMIT}` is {}, but must be `{UNLIMITED}`", limit.value.as_written());
            self.error(limit.line, what, format!("did you mean `{CREDIT_LIMIT}`?"));
            return false;
        }
        let numbers = [CREDIT_LIMIT, RESET_SECONDS, PER, WINDOW, REFILL_CREDITS, REFILL_SECONDS, BURST];
        let given: Vec<_> = numbers.into_iter().filter_map(|key| self.setting(key)).collect();
        for setting in given {
            let what = format!("`{}` contradicts `{LIMIT} = {UNLIMITED}`", setting.key);
            self.error(setting.line, what, "keep one of them");
        }
        true
    }

    /// Returns the calendar that determines the windows, if there is one.
    fn calendar(&mut self) -> Option<Calendar> {
        let Some(window) = self.setting(WINDOW) else {
            for key in [TIMEZONE, RESET_AT] {
                if let Some(setting) = self.setting(key) {
                    self.error(
                        setting.line,
                        format!("`{key}` has no meaning without `{WINDOW}`"),
                        "add `window = day`",
                    );
                }
            }
            return None;
        };
        for key in [RESET_SECONDS, PER] {
            if self.setting(key).is_some() {
                let what = format!("`{WINDOW}` and `{key}` both set the length of the window");
                self.error(window.line, what, "keep one of them");
            }
        }
        let unit = self.choice(WINDOW, &Unit::ALL, Unit::name)?;
        let reset_at = self.reset_at(unit);
        let zone = self.text(TIMEZONE).unwrap_or_else(|| UTC.to_owned());
        let calendar = Calendar::new(unit, &zone, reset_at);
        calendar
            .inspect_err(|error| {
                let line = setting_line(self.raw, TIMEZONE);
                self.error(line, error.to_string(), "write an IANA name, such as `Europe/Berlin` or `UTC`");
            })
            .ok()
    }

    /// Returns the start of days, midnight by default.
    fn reset_at(&mut self, unit: Unit) -> Time {
        let Some(setting) = self.setting(RESET_AT) else { return Time::midnight() };
        if !unit.has_time_of_day() {
            let what = format!("`{RESET_AT}` is a time of day, but the window is one {}", unit.name());
            self.error(setting.line, what, "remove it, or write a longer window");
        }
        let time = setting.value.as_text().and_then(calendar::time_of_day);
        time.unwrap_or_else(|| {
            let what = format!("`{RESET_AT}` is not a time of day: {:?}", setting.value.as_written());
            self.error(setting.line, what, "write hours and minutes, for example `06:00`");
            Time::midnight()
        })
    }

    /// Returns whichever of the two settings gives the length of the window.
    fn window_length(&mut self) -> Number<Seconds> {
        let Some(per) = self.setting(PER) else {
            return Number::seconds(RESET_SECONDS, "the length of a window in seconds");
        };
        if self.setting(RESET_SECONDS).is_some() {
            let what = format!("`{PER}` and `{RESET_SECONDS}` both set the length of the window");
            self.error(per.line, what, "keep one of them");
        }
        Number {
            key: PER,
            meaning: "the length of a window",
            notation: "for example `90s`, `5m`, `12h`, `7d` or `2w`",
            read: document::period,
        }
    }

    fn required<T: Default>(&mut self, number: Number<T>) -> T {
        let is_misspelled = match number.key {
            RESET_SECONDS | PER => [RESET_SECONDS, PER, WINDOW].iter().any(|key| self.misspelled.contains(key)),
            key => self.misspelled.contains(key),
        };
        if self.setting(number.key).is_none() && !is_misspelled {
            let (what, fix) = match number.key {
                RESET_SECONDS => (
                    "the length of the window is missing".to_owned(),
                    format!("add `{PER}`, `{RESET_SECONDS}` or `{WINDOW}`"),
                ),
                key => (format!("`{key}` is missing"), format!("add it: {}", number.meaning)),
            };
            self.error(setting_line(self.raw, number.key), what, fix);
        }
        self.optional(number).unwrap_or_default()
    }

    fn optional<T>(&mut self, number: Number<T>) -> Option<T> {
        let setting = self.setting(number.key)?;
        match (number.read)(&setting.value) {
            Ok(value) => Some(value),
            Err(error) => {
                let what = format!("`{}` {error}: {:?}", number.key, setting.value.as_written());
                let fix = match document::period(&setting.value) {
                    Ok(_) if number.key == RESET_SECONDS => {
                        format!("write `{PER} = {}`, or the seconds in digits only", setting.value.as_written())
                    }
                    _ => format!("write {}, {}", number.meaning, number.notation),
                };
                self.error(setting.line, what, fix);
                None
            }
        }
    }

    fn quota(&mut self, settings: Settings) -> Quota {
        settings.quota().unwrap_or_else(|errors| {
            for error in errors {
                // The length of a window may come from either setting.
                let also = if error.setting() == RESET_SECONDS { PER } else { error.setting() };
                let setting = self.setting(error.setting()).or_else(|| self.setting(also));
                let line = setting.map_or(self.raw.line, |setting| setting.line);
                let what = setting.filter(|setting| setting.key == PER).and_then(|per| describe_period(&error, per));
                self.error(line, what.unwrap_or_else(|| error.to_string()), error.fix());
            }
            Quota::Never
        })
    }

    /// Returns a non-empty string.
    fn text(&mut self, key: &str) -> Option<String> {
        let setting = self.setting(key)?;
        let RawValue::Text(text) = &setting.value else {
            let what = format!("`{key}` is not a string: {}", setting.value.as_written());
            self.error(setting.line, what, "put it in quotes");
            return None;
        };
        Some(text.clone()).filter(|text| !text.is_empty())
    }

    /// Returns the fields of an actor: separated by commas, or in a JSON array.
    fn actor_fields(&mut self) -> Vec<String> {
        let Some(setting) = self.setting(ACTOR_FIELD) else { return Vec::new() };
        let fields: Vec<String> = match &setting.value {
            RawValue::Text(text) if text.contains(',') => {
                text.split(',').map(|field| field.trim().to_owned()).collect()
            }
            RawValue::Other(json) => match serde_json::from_str(json) {
                Ok(fields) => fields,
                Err(_) => {
                    let what = format!("`{ACTOR_FIELD}` is neither a string nor an array of strings: {json}");
                    self.error(setting.line, what, "write \"field\" or [\"field\", \"another field\"]");
                    return Vec::new();
                }
            },
            _ => return self.text(ACTOR_FIELD).into_iter().collect(),
        };
        if fields.iter().any(String::is_empty) {
            let what = format!("`{ACTOR_FIELD}` contains an empty field name: {:?}", setting.value.as_written());
            self.error(setting.line, what, "write field names, separated by commas");
        }
        let mut seen = HashSet::new();
        if let Some(twice) = fields.iter().find(|field| !seen.insert(field.as_str())) {
            self.error(setting.line, format!("`{ACTOR_FIELD}` names {twice:?} twice"), "keep one of them");
        }
        if fields.len() > 1 {
            let place = Location { line: setting.line, operation: Some(&self.raw.header) };
            let what = format!("Button's Divvy 1.7.1 reads `{ACTOR_FIELD}` as the name of a single field");
            self.problems.difference(place, what, "name one field if Button's Divvy reads the file, too");
        }
        fields
    }

    fn match_policy(&mut self) -> MatchPolicy {
        let policies = [MatchPolicy::Stop, MatchPolicy::And, MatchPolicy::Canary];
        let policy = self.choice(MATCH_POLICY, &policies, MatchPolicy::as_str).unwrap_or_default();
        if policy == MatchPolicy::And {
            let place = Location { line: setting_line(self.raw, MATCH_POLICY), operation: Some(&self.raw.header) };
            let what = "Button's Divvy 1.7.1 does not support `matchPolicy = and`: it treats this rule as a stop rule";
            self.problems.difference(place, what, "leave such rules out if Button's Divvy reads the file, too");
        }
        policy
    }

    /// Returns one of `all` by its name. An unknown name is reported and replaced by the nearest.
    fn choice<T: Copy>(&mut self, key: &str, all: &[T], name: fn(T) -> &'static str) -> Option<T> {
        let text = self.text(key)?;
        let named = |text: &str| all.iter().copied().find(|candidate| name(*candidate) == text);
        named(&text).or_else(|| {
            let names: Vec<_> = all.iter().map(|candidate| name(*candidate)).collect();
            let nearest = nearest(&text, &names);
            let mut fix = advice(nearest, &names);
            if key == WINDOW && text.starts_with(|c: char| c.is_ascii_digit()) {
                fix.push_str(&format!("; for a window of another length, write `{PER}`, as in `{PER} = 90s`"));
            }
            self.error(setting_line(self.raw, key), format!("unknown {key} {text:?}"), fix);
            nearest.and_then(named)
        })
    }

    fn label(&mut self) -> Option<String> {
        let label = self.name(LABEL);
        let is_default = self.raw.operation.as_ref().is_none_or(Vec::is_empty);
        if label.as_deref() == Some(DEFAULT) && !is_default {
            let place = Location { line: setting_line(self.raw, LABEL), operation: Some(&self.raw.header) };
            let what = format!("the label `{DEFAULT}` normally means the [{DEFAULT}] rule");
            let fix = "choose another label: as long as this rule has it, commands that name `default` apply to this \
                rule";
            self.problems.warning(place, what, fix);
        }
        label
    }

    fn overrun(&mut self, settings: Settings) -> Overrun {
        let overrun = self.choice(OVERRUN, &Overrun::ALL, Overrun::as_str).unwrap_or_default();
        if overrun == Overrun::Refuse {
            return overrun;
        }
        let line = setting_line(self.raw, OVERRUN);
        match settings.algorithm() {
            Kind::SlidingLog => {
                let what = format!("`{OVERRUN} = debt` can exceed the limit, and sliding-log has no room for that");
                self.error(line, what, "set `algorithm = sliding-window`, or remove it");
            }
            Kind::Concurrency => {
                let what = format!("`{OVERRUN} = debt` applies to costs, and concurrency limits have none");
                self.error(line, what, "remove it");
            }
            _ => {}
        }
        let place = Location { line, operation: Some(&self.raw.header) };
        let what =
            format!("Button's Divvy 1.7.1 does not support `{OVERRUN}`: it denies hits that cost more than is left");
        self.problems.difference(place, what, "remove it if Button's Divvy reads the file, too");
        if matches!(settings.quota(), Ok(Quota::Always { .. } | Quota::Never)) {
            let what = format!("`{OVERRUN}` has no effect: the rule counts nothing");
            self.problems.warning(place, what, "give the rule a limit, or remove it");
        }
        overrun
    }

    /// Returns the request field that names a gateway's leases.
    fn hold_field(&mut self, settings: Settings, actor_fields: &[String]) -> Option<String> {
        let field = self.text(HOLD_FIELD)?;
        let line = setting_line(self.raw, HOLD_FIELD);
        let algorithm = settings.algorithm();
        if algorithm != Kind::Concurrency {
            let what = format!("`{HOLD_FIELD}` names leases, but this rule's algorithm is {}", algorithm.name());
            self.error(line, what, "remove it, or set `algorithm = concurrency`");
        }
        if actor_fields.contains(&field) {
            let what = format!("`{HOLD_FIELD}` is in `{ACTOR_FIELD}`, too: each lease would have its own counter");
            self.error(line, what, "use another field, or remove it");
        }
        let is_in_operation = self.raw.operation.iter().flatten().any(|(key, _)| *key == field);
        if !is_in_operation {
            let place = Location { line, operation: Some(&self.raw.header) };
            let what =
                format!("{HOLD_FIELD} {field:?} is not in the operation: a gateway's request without it is an error");
            let fix = format!("add {field}=* to the operation, or make sure that every request carries it");
            self.problems.warning(place, what, fix);
        }
        Some(field)
    }

    /// Returns the name of the rule's counters. Reports an error if its counters cannot have a name.
    fn counter(&mut self, settings: Settings) -> Option<String> {
        let counter = self.name(COUNTER)?;
        let line = setting_line(self.raw, COUNTER);
        if settings.algorithm() == Kind::SlidingLog {
            let what = format!("`{COUNTER}` keeps usage as one number, but sliding-log keeps the time of each hit");
            self.error(line, what, "set `algorithm = sliding-window`, or remove it");
        }
        let place = Location { line, operation: Some(&self.raw.header) };
        let what = format!("Button's Divvy 1.7.1 does not support `{COUNTER}`: it counts for this rule alone");
        self.problems.difference(place, what, "remove it if Button's Divvy reads the file, too");
        if matches!(settings.quota(), Ok(Quota::Always { .. })) {
            let what = format!("`{COUNTER}` has no effect: a rule that allows everything counts nothing");
            self.problems.warning(place, what, "give the rule a limit, or remove it");
        }
        Some(counter)
    }

    /// Returns a short text for people, or a name.
    fn name(&mut self, key: &str) -> Option<String> {
        let name = self.text(key)?;
        if name.len() > MAX_LABEL_LENGTH || !name.bytes().all(is_label_byte) {
            let fix = format!("use at most {MAX_LABEL_LENGTH} letters, digits, `-` and `_`");
            self.error(setting_line(self.raw, key), format!("invalid {key} {name:?}"), fix);
        }
        Some(name)
    }

    /// Returns the rule's keys with their patterns; `None` if they could not be read. Reports a repeated key, a value that looks
    /// like a pattern of another program, and a pattern that Button's Divvy reads differently. Fields of conditions that are
    /// missing are added.
    fn operation<'c>(&mut self, conditions: impl Iterator<Item = &'c Condition>) -> Option<Vec<(String, Pattern)>> {
        let raw = self.raw;
        let mut operation: Vec<(String, Pattern)> = Vec::new();
        let mut seen = HashSet::new();
        for (key, value) in raw.operation.as_ref()? {
            if !super::ini::has_same_meaning(value) {
                let what = format!(
                    "Button's Divvy 1.7.1 matches {key}={value} differently: only the first `*` stands for any \
                     characters, and any text may follow the match"
                );
                let place = Location { line: raw.line, operation: Some(&raw.header) };
                self.problems.difference(
                    place,
                    what,
                    "write a single `*`, at the end, if Button's Divvy reads the file, too",
                );
            }
            if let Some(what) = super::ini::describe_foreign_pattern(value) {
                let place = Location { line: raw.line, operation: Some(&raw.header) };
                let fix = "in a rule, `*` stands for any text, and every other character for itself";
                self.problems.warning(place, format!("{key}={value} {what}"), fix);
            }
            if seen.insert(key) {
                operation.push((key.clone(), Pattern::parse(value)));
            } else {
                self.error(raw.line, format!("the operation names {key:?} twice"), "keep one of them");
            }
        }
        for condition in conditions {
            if operation.is_empty() {
                let what =
                    format!("the default rule answers every request, so it cannot have `{}`", condition.setting());
                let line = setting_line(raw, condition.setting());
                self.error(line, what, format!("write a rule [{}=*] with it", condition.field));
            } else if operation.iter().all(|(key, _)| *key != condition.field) {
                operation.push((condition.field.clone(), Pattern::Any));
            }
        }
        Some(operation)
    }

    /// Returns a setting that is about one field, if it is given.
    fn field_setting(&self, key: &str) -> Option<FieldSetting<'a>> {
        Some(FieldSetting { setting: self.setting(key)?, header: &self.raw.header })
    }

    fn error(&mut self, line: usize, what: impl Into<String>, fix: impl Into<String>) {
        self.problems.error(Location { line, operation: Some(&self.raw.header) }, what, fix);
    }
}

impl Number<u64> {
    const fn whole_seconds(key: &'static str, meaning: &'static str) -> Self {
        Self { key, meaning, notation: "for example `900` or `15m`", read: document::whole_seconds }
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
