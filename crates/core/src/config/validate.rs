//! Validates one rule of a document, its settings and its operation. Each problem has its line.

use std::collections::HashSet;
use std::num::NonZeroU32;

use jiff::civil::Time;

use super::checker::{Checker, Notation, PERIOD, SECONDS, WHOLE, WHOLE_SECONDS};
use super::conditions::Lists;
use super::document::{self, RawRule, RawSetting, RawValue};
use super::{Problems, ini};
use crate::algorithm::Kind;
use crate::calendar::{self, Calendar, Unit};
use crate::rules::setting_name::{
    ACTOR_FIELD, ALGORITHM, ANNOTATE_AT, AUTO, BLOCK_AFTER, BLOCK_FACTOR, BLOCK_FORGET, BLOCK_MAX, BLOCK_SECONDS,
    BLOCK_WINDOW, BURST, COMMENT, COST_FIELD, COUNTER, CREDIT_LIMIT, HOLD_FIELD, LABEL, LIMIT, LIST, MATCH_POLICY,
    NETWORKS, OVERRUN, PER, QUOTA_GROUP, REFILL_CREDITS, REFILL_SECONDS, RESET_AT, RESET_SECONDS, SHARE, TIMEZONE,
    UNLIMITED, UTC, WINDOW,
};
use crate::rules::{
    AUTO_SHARE, Condition, MAX_BLOCK_AFTER, MAX_BLOCK_FACTOR, MAX_RESET_SECONDS, MatchPolicy, Overrun, Pattern,
    Penalty, Quota, QuotaError, Rule, Seconds, Settings, calls_for_shares,
};

/// Returns the rule that `raw` describes; `None` if its operation or one of its conditions could not be read.
///
/// An invalid setting is reported and replaced by a valid one, so that the rule can still be compared with others. The
/// rules are used only if nothing was reported.
pub(super) fn rule(raw: &RawRule, lists: &mut Lists, problems: &mut Problems) -> Option<Rule> {
    let mut checker = Checker::new(raw, problems);
    let settings = checker.quota_settings();
    let actor_fields = checker.actor_fields();
    let (networks, list) = (checker.networks(), checker.list(lists));
    let actor_prefix = checker.actor_prefix(&actor_fields);
    // Without its conditions, the rule would make others unreachable.
    let is_complete = [(NETWORKS, &networks), (LIST, &list)]
        .iter()
        .all(|(key, condition)| condition.is_some() || checker.setting(key).is_none());
    let mut rule = Rule {
        settings,
        quota: checker.quota(settings),
        cost_field: checker.text(COST_FIELD),
        overrun: checker.overrun(settings),
        annotate_at: checker.annotate_at(settings),
        quota_group: checker.quota_group(settings),
        share: checker.share(settings),
        hold_field: checker.hold_field(settings, &actor_fields),
        actor_fields,
        counter: checker.counter(settings),
        penalty: checker.penalty(settings),
        label: checker.name(LABEL),
        comment: checker.text(COMMENT),
        operation: checker.operation([&networks, &list].into_iter().flatten())?,
        networks,
        list,
        actor_prefix,
        descriptor: None,
        line: raw.line,
        ..Rule::default()
    };
    rule.match_policy = checker.match_policy(rule.default_match_policy());
    is_complete.then_some(rule)
}

/// Most credits of a share that a file can set.
const MAX_SHARE: u64 = 1_000_000_000;
/// Shares are worthwhile if a call brings at least this many credits.
const WORTHWHILE: u64 = 10;

/// Parts of patterns of other programs that ordinary text rarely contains.
const FOREIGN_PARTS: [&str; 14] =
    ["[0-9", "[a-z", "[A-Z", "[^", "\\d", "\\w", "\\s", "\\.", "(?", ".+", "/.*", "^/", "/{", "/:"];

impl Checker<'_> {
    /// Returns whether the setting is this word.
    fn is_set_to(&self, key: &str, word: &str) -> bool {
        self.setting(key).is_some_and(|setting| setting.value.as_text() == Some(word))
    }

    /// Warns of a setting of a rule that has no counters.
    fn warn_without_counter(&mut self, key: &str, settings: Settings) {
        if matches!(settings.quota(), Ok(Quota::Always { .. } | Quota::Never)) {
            let what = format!("`{key}` has no effect: the rule counts nothing");
            self.warning(key, what, "give the rule a limit, or remove it");
        }
    }

    fn quota_settings(&mut self) -> Settings {
        if self.is_unlimited() {
            return Settings::unlimited();
        }
        let calendar = self.calendar();
        let credit_limit = "the number of credits in a window, or 0 to deny all";
        let denies_all = self.setting(CREDIT_LIMIT).is_some_and(|setting| document::whole(&setting.value) == Ok(0));
        let window = self.window_length();
        Settings {
            credit_limit: self.required(CREDIT_LIMIT, credit_limit, WHOLE),
            calendar,
            // A rule that denies everything needs no window.
            reset_seconds: match window {
                _ if calendar.is_some() || self.has(WINDOW) => Seconds::default(),
                (key, meaning, notation) if denies_all => self.number(key, meaning, notation).unwrap_or_default(),
                (key, meaning, notation) => self.required(key, meaning, notation),
            },
            algorithm: self.choice(ALGORITHM, &Kind::ALL, Kind::name),
            refill_credits: self.number(REFILL_CREDITS, "the number of credits in a refill", WHOLE),
            refill_seconds: self.number(REFILL_SECONDS, "the time between refills in seconds", SECONDS),
            burst: self.number(BURST, "the number of credits allowed at once", WHOLE),
        }
    }

    /// Returns whether the rule has `limit = none`. Reports another value, and settings that contradict it.
    fn is_unlimited(&mut self) -> bool {
        let Some(limit) = self.setting(LIMIT) else { return false };
        if limit.value.as_text() != Some(UNLIMITED) {
            let what = format!("`{LIMIT}` is {}, but must be `{UNLIMITED}`", limit.value.as_written());
            self.error(LIMIT, what, format!("did you mean `{CREDIT_LIMIT}`?"));
            return false;
        }
        for key in self.given(&[CREDIT_LIMIT, RESET_SECONDS, PER, WINDOW, REFILL_CREDITS, REFILL_SECONDS, BURST]) {
            self.error(key, format!("`{key}` contradicts `{LIMIT} = {UNLIMITED}`"), "keep one of them");
        }
        true
    }

    /// Returns the calendar that determines the windows, if there is one.
    fn calendar(&mut self) -> Option<Calendar> {
        if !self.has(WINDOW) {
            for key in self.given(&[TIMEZONE, RESET_AT]) {
                self.error(key, format!("`{key}` has no meaning without `{WINDOW}`"), "add `window = day`");
            }
            return None;
        }
        for key in self.given(&[RESET_SECONDS, PER]) {
            let what = format!("`{WINDOW}` and `{key}` both set the length of the window");
            self.error(WINDOW, what, "keep one of them");
        }
        let unit = self.choice(WINDOW, &Unit::ALL, Unit::name)?;
        let reset_at = self.reset_at(unit);
        if unit.counts_days() && self.has(TIMEZONE) {
            let what =
                format!("`{TIMEZONE}` has no meaning with `{WINDOW} = {}`, which is counted in {UTC}", unit.name());
            self.error(TIMEZONE, what, "remove it, or write a window of the calendar, such as `month`");
        }
        let zone = self.text(TIMEZONE).unwrap_or_else(|| UTC.to_owned());
        let calendar = Calendar::new(unit, &zone, reset_at);
        if calendar.is_none() {
            let fix = "write an IANA name, such as `Europe/Berlin` or `UTC`";
            self.error(TIMEZONE, format!("unknown time zone {zone:?}"), fix);
        }
        calendar
    }

    /// Returns the start of days, midnight by default.
    fn reset_at(&mut self, unit: Unit) -> Time {
        let Some(setting) = self.setting(RESET_AT) else { return Time::midnight() };
        if !unit.has_time_of_day() {
            let what = format!("`{RESET_AT}` is a time of day, and `{WINDOW} = {}` has none", unit.name());
            self.error(RESET_AT, what, "remove it, or write a window of the calendar, such as `day`");
        }
        let time = setting.value.as_text().and_then(calendar::time_of_day);
        time.unwrap_or_else(|| {
            let what = format!("`{RESET_AT}` is not a time of day: {:?}", setting.value.as_written());
            self.error(RESET_AT, what, "write hours and minutes, for example `06:00`");
            Time::midnight()
        })
    }

    /// Returns whichever of the two settings gives the length of the window, with its meaning and notation.
    fn window_length(&mut self) -> (&'static str, &'static str, Notation<Seconds>) {
        if !self.has(PER) {
            return (RESET_SECONDS, "the length of a window in seconds", SECONDS);
        }
        if self.has(RESET_SECONDS) {
            let what = format!("`{PER}` and `{RESET_SECONDS}` both set the length of the window");
            self.error(PER, what, "keep one of them");
        }
        (PER, "the length of a window", PERIOD)
    }

    fn quota(&mut self, settings: Settings) -> Quota {
        settings.quota().unwrap_or_else(|errors| {
            for QuotaError { setting, what, fix } in errors {
                // The length of a window may come from either setting.
                let key = if setting == RESET_SECONDS && self.has(PER) { PER } else { setting };
                self.error(key, format!("`{key}` {what}"), fix);
            }
            Quota::Never
        })
    }

    /// Returns the fields of an actor: separated by commas, or in a JSON array.
    fn actor_fields(&mut self) -> Vec<String> {
        let Some(RawSetting { value, .. }) = self.setting(ACTOR_FIELD) else { return Vec::new() };
        let fields: Vec<String> = match value {
            RawValue::Text(text) if text.contains(',') => {
                text.split(',').map(|field| field.trim().to_owned()).collect()
            }
            RawValue::Other(json) => serde_json::from_str(json).unwrap_or_else(|_| {
                let what = format!("`{ACTOR_FIELD}` is neither a string nor an array of strings: {json}");
                self.error(ACTOR_FIELD, what, "write \"field\" or [\"field\", \"another field\"]");
                Vec::new()
            }),
            _ => return self.text(ACTOR_FIELD).into_iter().collect(),
        };
        if fields.iter().any(String::is_empty) {
            let what = format!("`{ACTOR_FIELD}` contains an empty field name: {:?}", value.as_written());
            self.error(ACTOR_FIELD, what, "write field names, separated by commas");
        }
        let mut seen = HashSet::new();
        if let Some(twice) = fields.iter().find(|field| !seen.insert(field.as_str())) {
            self.error(ACTOR_FIELD, format!("`{ACTOR_FIELD}` names {twice:?} twice"), "keep one of them");
        }
        if fields.len() > 1 {
            let what = format!("Button's Divvy 1.7.1 reads `{ACTOR_FIELD}` as the name of a single field");
            let fix = "name one field if Button's Divvy reads the file, too";
            self.problems.difference(self.place(ACTOR_FIELD), what, fix);
        }
        fields
    }

    fn match_policy(&mut self, default: MatchPolicy) -> MatchPolicy {
        let policy = self.choice(MATCH_POLICY, &MatchPolicy::ALL, MatchPolicy::name);
        if policy == Some(MatchPolicy::And) {
            let what = "Button's Divvy 1.7.1 does not support `matchPolicy = and`: it treats this rule as a stop rule";
            let fix = "leave such rules out if Button's Divvy reads the file, too";
            self.problems.difference(self.place(MATCH_POLICY), what, fix);
        }
        policy.unwrap_or(default)
    }

    fn overrun(&mut self, settings: Settings) -> Overrun {
        let overrun = self.choice(OVERRUN, &Overrun::ALL, Overrun::name);
        if self.has(QUOTA_GROUP) {
            if let Some(other) = overrun.filter(|overrun| *overrun != Overrun::Count) {
                let what =
                    format!("`{OVERRUN} = {}` contradicts `{QUOTA_GROUP}`, whose rules count every hit", other.name());
                self.error(OVERRUN, what, "remove it, or write `overrun = count`");
            }
            return Overrun::Count;
        }
        let overrun = overrun.unwrap_or_default();
        if overrun == Overrun::Refuse {
            return overrun;
        }
        if overrun == Overrun::Annotate {
            self.refuse_for_canary(OVERRUN);
        }
        self.refuse_exact_algorithms(OVERRUN, &format!("{OVERRUN} = {}", overrun.name()), settings);
        self.unsupported(OVERRUN, "denies hits that cost more than is left");
        self.warn_without_counter(OVERRUN, settings);
        overrun
    }

    /// Reports a setting that lets costs exceed the limit, if the rule's algorithm cannot count them.
    fn refuse_exact_algorithms(&mut self, key: &str, written: &str, settings: Settings) {
        if let algorithm @ (Kind::SlidingLog | Kind::Concurrency) = settings.algorithm() {
            let what = format!("`{written}` lets costs exceed the limit, which {} cannot", algorithm.name());
            self.error(key, what, "remove it, or set another algorithm, such as `algorithm = sliding-window`");
        }
    }

    /// Returns the name of the rule's quota group. Reports settings that contradict it.
    fn quota_group(&mut self, settings: Settings) -> Option<String> {
        let group = self.name(QUOTA_GROUP)?;
        self.refuse_exact_algorithms(QUOTA_GROUP, QUOTA_GROUP, settings);
        if self.is_set_to(MATCH_POLICY, MatchPolicy::Canary.name()) {
            let what = format!("`{MATCH_POLICY} = canary` contradicts `{QUOTA_GROUP}`: a canary does not answer");
            self.error(MATCH_POLICY, what, "remove it, or write `matchPolicy = stop` in the last rule of the group");
        }
        if self.has(BLOCK_AFTER) {
            let what = format!("`{BLOCK_AFTER}` counts denials, and a rule with `{QUOTA_GROUP}` denies nothing alone");
            self.error(BLOCK_AFTER, what, "remove one of them");
        }
        if matches!(settings.quota(), Ok(Quota::Always { .. })) {
            let what =
                format!("the quota group {group} denies no request that matches this rule, which allows everything");
            self.warning(QUOTA_GROUP, what, "give the rule a limit, or remove it");
        }
        self.unsupported(QUOTA_GROUP, "denies by this rule alone");
        Some(group)
    }

    /// Reports a setting that adds a note to answers, if the rule is a canary.
    fn refuse_for_canary(&mut self, key: &str) {
        if self.is_set_to(MATCH_POLICY, MatchPolicy::Canary.name()) {
            let what = format!("`{key}` adds a note to answers, and a canary does not answer");
            self.error(key, what, "remove it: metrics count what a canary would deny");
        }
    }

    /// Returns the percentage of the limit beyond which answers say that it is exceeded.
    fn annotate_at(&mut self, settings: Settings) -> Option<u8> {
        let meaning = "the percentage of the limit beyond which answers have a note";
        let percent = self.number_within(ANNOTATE_AT, meaning, WHOLE, 1..=99)?;
        self.unsupported(ANNOTATE_AT, "adds no note");
        self.refuse_for_canary(ANNOTATE_AT);
        self.warn_without_counter(ANNOTATE_AT, settings);
        u8::try_from(percent).ok()
    }

    /// Returns the most credits of a server's share. Reports rules whose credits no server can take ahead without exceeding the
    /// limit, or without taking them from the others.
    fn share(&mut self, settings: Settings) -> Option<NonZeroU32> {
        let share = if self.is_set_to(SHARE, AUTO) {
            AUTO_SHARE
        } else {
            let most = self.number_within(SHARE, "`auto`, or the most credits of a share", WHOLE, 1..=MAX_SHARE)?;
            NonZeroU32::new(u32::try_from(most).ok()?)?
        };
        let algorithm = settings.algorithm();
        if let Kind::SlidingWindow | Kind::SlidingLog | Kind::Concurrency = algorithm {
            let what =
                format!("`{SHARE}` takes credits ahead, which would come back too early with {}", algorithm.name());
            self.error(SHARE, what, "remove it, or set `algorithm = fixed-window`, token-bucket or leaky-bucket");
        }
        for key in self.given(&[OVERRUN, QUOTA_GROUP, COUNTER]) {
            if !self.is_set_to(key, Overrun::Refuse.name()) {
                let what = format!("`{SHARE}` contradicts `{key}`: a server could not tell what a hit may take");
                self.error(SHARE, what, "remove one of them");
            }
        }
        for policy in [MatchPolicy::And, MatchPolicy::Canary].map(MatchPolicy::name) {
            if self.is_set_to(MATCH_POLICY, policy) {
                let what = format!(
                    "`{SHARE}` has no effect with `{MATCH_POLICY} = {policy}`: Redis decides such rules together"
                );
                self.error(SHARE, what, "remove one of them");
            }
        }
        if let Ok(Quota::Limited(limit)) = settings.quota() {
            let (credits, calls) = (limit.capacity(), calls_for_shares(limit.capacity(), share));
            if calls.saturating_mul(WORTHWHILE) > credits {
                let what =
                    format!("shares save little here: three servers ask about {calls} times for {credits} credits");
                let fix = if share == AUTO_SHARE { "remove it" } else { "write `share = auto`, or remove it" };
                self.warning(SHARE, what, fix);
            }
        }
        self.unsupported(SHARE, "asks Redis for each hit");
        self.warn_without_counter(SHARE, settings);
        Some(share)
    }

    /// Returns the request field that names a gateway's leases.
    fn hold_field(&mut self, settings: Settings, actor_fields: &[String]) -> Option<String> {
        let field = self.text(HOLD_FIELD)?;
        let algorithm = settings.algorithm();
        if algorithm != Kind::Concurrency {
            let what = format!("`{HOLD_FIELD}` names leases, but this rule's algorithm is {}", algorithm.name());
            self.error(HOLD_FIELD, what, "remove it, or set `algorithm = concurrency`");
        }
        if actor_fields.contains(&field) {
            let what = format!("`{HOLD_FIELD}` is in `{ACTOR_FIELD}`, too: each lease would have its own counter");
            self.error(HOLD_FIELD, what, "use another field, or remove it");
        }
        let is_in_operation = self.raw.operation.iter().flatten().any(|(key, _)| *key == field);
        if !is_in_operation {
            let what =
                format!("{HOLD_FIELD} {field:?} is not in the operation: a gateway's request without it is an error");
            let fix = format!("add {field}=* to the operation, or make sure that every request carries it");
            self.warning(HOLD_FIELD, what, fix);
        }
        Some(field)
    }

    /// Returns the name of the rule's counters. Reports an error if its counters cannot have a name.
    fn counter(&mut self, settings: Settings) -> Option<String> {
        let counter = self.name(COUNTER)?;
        if settings.algorithm() == Kind::SlidingLog {
            let what = format!("`{COUNTER}` keeps usage as one number, but sliding-log keeps the time of each hit");
            self.error(COUNTER, what, "set `algorithm = sliding-window`, or remove it");
        }
        self.unsupported(COUNTER, "counts for this rule alone");
        if matches!(settings.quota(), Ok(Quota::Always { .. })) {
            let what = format!("`{COUNTER}` has no effect: a rule that allows everything counts nothing");
            self.warning(COUNTER, what, "give the rule a limit, or remove it");
        }
        Some(counter)
    }

    /// Returns the rule's penalty; `None` if it has none, or after reporting what is wrong.
    fn penalty(&mut self, settings: Settings) -> Option<Penalty> {
        if !self.has(BLOCK_AFTER) {
            let others = self.given(&[BLOCK_WINDOW, BLOCK_SECONDS, BLOCK_FACTOR, BLOCK_MAX, BLOCK_FORGET]);
            for key in others.into_iter().filter(|_| self.lacks(BLOCK_AFTER)).collect::<Vec<_>>() {
                let what = format!("`{key}` has no meaning without `{BLOCK_AFTER}`");
                self.error(key, what, format!("add `{BLOCK_AFTER} = 5`, or remove it"));
            }
            return None;
        }
        for key in [ACTOR_FIELD, LABEL, BLOCK_SECONDS] {
            if self.lacks(key) {
                let fix = "add it: a block is of one actor, belongs to the rule's label, and lasts for `blockSeconds` at first";
                self.error(BLOCK_AFTER, format!("`{BLOCK_AFTER}` needs `{key}`"), fix);
            }
        }
        self.warn_without_counter(BLOCK_AFTER, settings);
        if self.is_set_to(OVERRUN, Overrun::Annotate.name()) {
            let what = format!("`{BLOCK_AFTER}` counts denials, and `{OVERRUN} = annotate` denies nothing");
            self.error(BLOCK_AFTER, what, "remove one of them");
        }
        self.unsupported(BLOCK_AFTER, "blocks no actor");
        let longest = MAX_RESET_SECONDS;
        let after = "the number of denials that lead to a block";
        let after = self.number_within(BLOCK_AFTER, after, WHOLE, 1..=MAX_BLOCK_AFTER);
        let window = "the seconds within which denials count";
        let window = self.number_within(BLOCK_WINDOW, window, WHOLE_SECONDS, 1..=longest);
        let seconds = "the length of the first block in seconds";
        let seconds = self.number_within(BLOCK_SECONDS, seconds, WHOLE_SECONDS, 1..=longest);
        let factor = "how many times as long as the one before each block is";
        let factor = self.number_within(BLOCK_FACTOR, factor, WHOLE, 1..=MAX_BLOCK_FACTOR);
        let max = "the length of the longest block in seconds";
        let max = self.number_within(BLOCK_MAX, max, WHOLE_SECONDS, seconds.unwrap_or(1)..=longest);
        let forget = "the seconds until blocks are forgotten";
        let forget = self.number_within(BLOCK_FORGET, forget, WHOLE_SECONDS, 0..=longest);
        Some(Penalty { after: after?, window, seconds: seconds?, factor, max, forget })
    }

    /// Returns the rule's keys with their patterns; `None` if they could not be read. Reports a repeated key, a value that looks
    /// like a pattern of another program, and a pattern that Button's Divvy reads differently. Fields of conditions that are
    /// missing are added.
    fn operation<'c>(&mut self, conditions: impl Iterator<Item = &'c Condition>) -> Option<Vec<(String, Pattern)>> {
        let place = (self.raw.line, self.raw.header.as_str());
        let mut operation: Vec<(String, Pattern)> = Vec::new();
        let mut seen = HashSet::new();
        for (key, value) in self.raw.operation.as_ref()? {
            if !ini::has_same_meaning(value) {
                let what = format!(
                    "Button's Divvy 1.7.1 matches {key}={value} differently: only the first `*` stands for any \
                     characters, and any text may follow the match"
                );
                let fix = "write a single `*`, at the end, if Button's Divvy reads the file, too";
                self.problems.difference(place, what, fix);
            }
            if FOREIGN_PARTS.iter().any(|part| value.contains(part)) {
                let what = format!("{key}={value} looks like a regular expression or a route of another program");
                let fix = "in a rule, `*` stands for any text, and every other character for itself";
                self.problems.warning(place, what, fix);
            }
            if seen.insert(key) {
                operation.push((key.clone(), Pattern::parse(value)));
            } else {
                self.problems.error(place, format!("the operation names {key:?} twice"), "keep one of them");
            }
        }
        for condition in conditions {
            if operation.is_empty() {
                let key = condition.setting();
                let what = format!("the default rule answers every request, so it cannot have `{key}`");
                self.error(key, what, format!("write a rule [{}=*] with it", condition.field));
            } else if operation.iter().all(|(key, _)| *key != condition.field) {
                operation.push((condition.field.clone(), Pattern::Any));
            }
        }
        Some(operation)
    }
}
