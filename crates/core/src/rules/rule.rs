//! A rule: a validated section of the rules file, the cost of its hits, and the identity of its counters.
//!
//! A hit costs one credit, the cost that the request gives, or the value of one of its fields.
//!
//! Rules with the same identity take from the same counters, and a changed rule keeps its counters if its identity stays
//! the same. The identity does not depend on how counters are stored.
//!
//! [`Rule::named_settings`] is the one list of settings by their names that files, replies and comparisons of rules are
//! made from.

use std::borrow::Cow;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;

use self::setting_name::{
    ACTOR_FIELD, ACTOR_PREFIX, ALGORITHM, ANNOTATE_AT, AUTO, BLOCK_AFTER, BLOCK_FACTOR, BLOCK_FORGET, BLOCK_MAX,
    BLOCK_SECONDS, BLOCK_WINDOW, BURST, COMMENT, COST_FIELD, COUNTER, CREDIT_LIMIT, HOLD_FIELD, LABEL, LIMIT, LIST,
    MATCH_POLICY, MIDNIGHT, NETWORKS, OVERRUN, QUOTA_GROUP, REFILL_CREDITS, REFILL_SECONDS, RESET_AT, RESET_SECONDS,
    SHARE, TIMEZONE, UNLIMITED, UTC, WINDOW,
};
use super::operation::DOMAIN;
use super::{
    ActorPrefix, Condition, Descriptor, NOT, Operation, Pattern, Penalty, PrefixLengths, Quota, Seconds, Settings,
    operation,
};
use crate::algorithm::{CalendarId, Concurrency, Kind, Limit};
use crate::calendar::Calendar;

/// The names of a rule's settings in a rules file.
pub mod setting_name {
    /// Declares the names, and lists them.
    macro_rules! names {
        ($($constant:ident = $name:literal,)+) => {
            $(#[doc = concat!("`", $name, "`")]
            pub const $constant: &str = $name;)+

            /// All settings that a rule may have, in the order of the documentation.
            pub const NAMES: &[&str] = &[$($constant),+];
        };
    }

    names! {
        CREDIT_LIMIT = "creditLimit",
        LIMIT = "limit",
        RESET_SECONDS = "resetSeconds",
        PER = "per",
        WINDOW = "window",
        TIMEZONE = "timezone",
        RESET_AT = "resetAt",
        ALGORITHM = "algorithm",
        REFILL_CREDITS = "refillCredits",
        REFILL_SECONDS = "refillSeconds",
        BURST = "burst",
        NETWORKS = "networks",
        LIST = "list",
        ACTOR_FIELD = "actorField",
        ACTOR_PREFIX = "actorPrefix",
        COST_FIELD = "costField",
        OVERRUN = "overrun",
        ANNOTATE_AT = "annotateAt",
        QUOTA_GROUP = "quotaGroup",
        SHARE = "share",
        HOLD_FIELD = "holdField",
        COUNTER = "counter",
        BLOCK_AFTER = "blockAfter",
        BLOCK_WINDOW = "blockWindow",
        BLOCK_SECONDS = "blockSeconds",
        BLOCK_FACTOR = "blockFactor",
        BLOCK_MAX = "blockMax",
        BLOCK_FORGET = "blockForget",
        MATCH_POLICY = "matchPolicy",
        LABEL = "label",
        COMMENT = "comment",
    }

    /// The value of `share`, in place of a number of credits.
    pub(crate) const AUTO: &str = "auto";
    /// The value of `limit`, in place of a number of credits.
    pub(crate) const UNLIMITED: &str = "none";
    /// The default time zone of a calendar.
    pub(crate) const UTC: &str = "UTC";
    /// The default start of a calendar's days.
    pub(crate) const MIDNIGHT: &str = "00:00";
}

/// A `costField` that names no field: every hit takes one credit, regardless of the cost that the request gives.
pub(crate) const NO_COST_FIELD: &str = "none";

named_values! {
    /// The effect of a match.
    #[derive(Default)]
    MatchPolicy {
        /// The rule answers.
        #[default]
        Stop = "stop",
        /// The rule must allow the request, and so must all other matching rules up to the one that stops; matching
        /// continues. Either all of them take credit or none does.
        And = "and",
        /// The rule counts the hit and takes credit, but does not answer; matching continues. Canaries try out limits.
        Canary = "canary",
    }
}

named_values! {
    /// The effect of a hit that costs more credits than are left.
    #[derive(Default)]
    Overrun {
        /// The hit is denied.
        #[default]
        Refuse = "refuse",
        /// The hit is allowed as long as any credit is left, and takes its full cost. The balance may become negative.
        Debt = "debt",
        /// The hit is denied, and counts all the same.
        Count = "count",
        /// The hit is allowed and counts, and the answer says that the limit is exceeded.
        Annotate = "annotate",
    }
}

/// The share of a rule with `share = auto`.
pub const AUTO_SHARE: NonZeroU32 = NonZeroU32::MAX;

/// Maximum number of rules that must allow one request together.
pub const MAX_STACK: usize = 16;

/// A rule. Displays as its header in a rules file, without brackets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rule {
    /// The keys that a request must have, each once, and the patterns of their values. Empty for the default rule.
    pub operation: Vec<(String, Pattern)>,
    /// The networks that a field's value must be in, or must not.
    pub networks: Option<Condition>,
    /// The list that a field's value must be in, or must not.
    pub list: Option<Condition>,
    /// The settings as written. `quota` is their meaning.
    pub settings: Settings,
    /// The credits that a match grants.
    pub quota: Quota,
    /// Each value of this field, or each combination of these fields' values, has its own counter. If empty, the rule
    /// has one counter.
    pub actor_fields: Vec<String>,
    /// The actor field whose addresses are counted by their networks.
    pub actor_prefix: Option<ActorPrefix>,
    /// The field that holds the cost of a request. Requests without it cost 1, as all do if this is `None` or
    /// [`NO_COST_FIELD`].
    pub cost_field: Option<String>,
    /// The answer when the cost exceeds what is left.
    pub overrun: Overrun,
    /// Percentage of the limit beyond which answers say that the rule is exceeded: from 1 to 99.
    pub annotate_at: Option<u8>,
    /// The quota group. Each of its rules counts a hit, as with [`Overrun::Count`], and the group denies the hit only if all of them
    /// would that the hit matches.
    pub quota_group: Option<String>,
    /// The most credits that a server may take ahead from a counter in Redis, to grant them on its own. [`AUTO_SHARE`] if its hits
    /// decide.
    pub share: Option<NonZeroU32>,
    /// For concurrency limits, the request field that names the lease of a gateway's request.
    pub hold_field: Option<String>,
    /// The name under which usage is kept, so that other rules may share it and the limit may change.
    pub counter: Option<String>,
    /// The blocks of actors that the rule keeps denying.
    pub penalty: Option<Penalty>,
    /// The effect of a match on later rules.
    pub match_policy: MatchPolicy,
    /// A name for metrics and commands, unique among the rules.
    pub label: Option<String>,
    /// The operator's text for people. divvy does not interpret it.
    pub comment: Option<String>,
    /// The further properties of ratelimit's limit, if this is one. Its operation is then the path to it, for people: only a
    /// domain's tree decides what matches.
    pub descriptor: Option<Arc<Descriptor>>,
    /// Line of the file where the rule begins, from 1.
    pub line: usize,
}

impl Rule {
    /// Returns a rule with this operation and limit that stops, and has no other settings.
    pub fn new(operation: Vec<(String, Pattern)>, settings: Settings, quota: Quota, line: usize) -> Self {
        Self { operation, settings, quota, line, ..Self::default() }
    }

    /// Returns whether this rule matches every request.
    pub fn is_default(&self) -> bool {
        self.operation.is_empty()
    }

    /// Returns the match policy of the rule if its file gives none.
    pub fn default_match_policy(&self) -> MatchPolicy {
        if self.quota_group.is_some() && !self.is_default() { MatchPolicy::And } else { MatchPolicy::default() }
    }

    /// Returns the pattern for the value of `key`; `None` if the rule does not name the key.
    pub fn pattern(&self, key: &str) -> Option<&Pattern> {
        self.operation.iter().find(|(candidate, _)| candidate == key).map(|(_, pattern)| pattern)
    }

    /// Returns the patterns of a key. In a normalized rule, a key may have several, and a value matches any of them.
    pub fn patterns(&self, key: &str) -> impl Iterator<Item = &Pattern> {
        self.operation.iter().filter(move |(candidate, _)| candidate == key).map(|(_, pattern)| pattern)
    }

    /// Returns whether `operation` has every key that this rule names, with a matching value.
    pub fn matches(&self, operation: &Operation) -> bool {
        self.operation.iter().all(|(key, pattern)| operation.get(key).is_some_and(|value| pattern.matches(value)))
            && self.conditions().all(|condition| {
                operation.get(&condition.field).is_some_and(|value| condition.is_met_by(value.as_bytes()))
            })
    }

    /// Returns its conditions: `networks`, then `list`. Their fields are in its operation.
    pub fn conditions(&self) -> impl Iterator<Item = &Condition> {
        self.networks.iter().chain(&self.list)
    }

    /// Returns the fields and texts that determine which requests it matches, sorted: its pairs, and for each condition
    /// another pair with the same key, which no operation has.
    pub(crate) fn match_pairs(&self) -> Vec<(&str, Cow<'_, str>)> {
        let conditions = self.conditions().map(|condition| (condition.field.as_str(), condition.key_text().into()));
        // The order of a path's keys matters.
        let path = self.descriptor.iter().map(|descriptor| (DOMAIN, descriptor.full_key.as_str().into()));
        let pairs = self.pairs().map(|(key, text)| (key, text.into()));
        let mut pairs: Vec<_> = pairs.chain(conditions).chain(path).collect();
        pairs.sort_unstable();
        pairs
    }

    /// Returns whether every request that `other` matches meets this rule's conditions. Only checks whether a condition or
    /// an exact value of `other` implies each of them.
    pub(super) fn conditions_contain(&self, other: &Self) -> bool {
        self.conditions().all(|condition| other.implies(condition))
    }

    /// Returns whether one of the rule's conditions, or an exact value, implies the condition.
    pub(super) fn implies(&self, condition: &Condition) -> bool {
        match self.pattern(&condition.field) {
            Some(Pattern::Literal(text)) => condition.is_met_by(text.as_bytes()),
            _ => self.conditions().any(|own| condition.contains(own)),
        }
    }

    /// Describes the grant for people: `allows 10 in 60 s, by ip, at the cost in bytes, with debt, from the counter
    /// usage`.
    pub fn summary(&self) -> String {
        let mut parts = vec![self.settings.to_string()];
        if !self.actor_fields.is_empty() {
            parts.push(format!("by {}", self.actor_fields.join(" and ")));
        }
        let with = |prefix: &ActorPrefix| {
            let PrefixLengths { v4, v6 } = prefix.lengths;
            format!("with {} as /{v4} and /{v6}", prefix.field)
        };
        parts.extend(self.actor_prefix.as_ref().map(with));
        for condition in self.conditions() {
            let (word, entries) = (if condition.is_inverted { "not in" } else { "in" }, condition.entries());
            let entries = entries.strip_prefix(NOT).unwrap_or(&entries);
            parts.push(format!("for {} {word} {entries}", condition.field));
        }
        parts.extend(self.cost_words());
        parts.extend(self.hold_field.as_ref().map(|field| format!("held by {field}")));
        parts.extend(self.counter.as_ref().map(|counter| format!("from the counter {counter}")));
        parts.extend(self.penalty.map(|penalty| format!("and {penalty}")));
        parts.join(", ")
    }

    /// Same as [`Rule::summary`], with the match policy: `allows 10 in 60 s, as a canary`.
    pub fn full_summary(&self) -> String {
        let policy = match self.match_policy {
            MatchPolicy::Stop => "",
            MatchPolicy::Canary => ", as a canary",
            MatchPolicy::And => ", with others",
        };
        self.summary() + policy
    }

    /// Returns whether its counters are leases, which only reservations take.
    pub fn is_concurrency_limit(&self) -> bool {
        matches!(self.quota, Quota::Limited(Limit::Concurrency(_)))
    }

    /// Returns whether answers may have to say that the rule is exceeded.
    pub fn annotates(&self) -> bool {
        self.annotate_at.is_some() || self.overrun == Overrun::Annotate
    }

    /// Returns whether answers say so, with this many credits used of its `capacity`.
    pub fn is_exceeded(&self, used: u64, capacity: u64) -> bool {
        let percent = self.annotate_at.unwrap_or(100);
        self.annotates() && u128::from(used) * 100 > u128::from(capacity) * u128::from(percent)
    }

    /// Returns the fields that name its actors in the name of its counter. The actors of descriptors name all fields themselves.
    pub fn counter_fields(&self) -> &[String] {
        if self.descriptor.is_some() { &[] } else { &self.actor_fields }
    }

    /// Returns `actorField` as a rules file writes it.
    pub fn actor_field(&self) -> Option<String> {
        (!self.actor_fields.is_empty()).then(|| self.actor_fields.join(", "))
    }

    /// Returns a name for its counters: its own, or a proposal.
    pub fn counter_name(&self) -> &str {
        self.counter.as_deref().or(self.label.as_deref()).unwrap_or("NAME")
    }

    /// Returns the pairs of the operation as text, with patterns as written.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.operation.iter().map(|(key, pattern)| (key.as_str(), pattern.as_str()))
    }

    /// Returns whether a request takes the cost that it gives, or 1, and the value of no field.
    #[inline]
    pub fn takes_given_cost(&self) -> bool {
        self.cost_field.is_none()
    }

    /// Returns whether every request takes one credit from this rule, regardless of its cost.
    #[inline]
    pub fn counts_requests(&self) -> bool {
        self.cost_field.as_deref() == Some(NO_COST_FIELD)
    }

    /// Describes the cost of a request for people: `at the cost in bytes`, and `with debt`. Also says what happens at the limit.
    pub(super) fn cost_words(&self) -> impl Iterator<Item = String> {
        let cost = match self.cost_field.as_deref() {
            None => None,
            Some(NO_COST_FIELD) => Some("at a cost of 1 each".to_owned()),
            Some(field) => Some(format!("at the cost in {field}")),
        };
        let overrun = match self.overrun {
            Overrun::Refuse => None,
            Overrun::Debt => Some("with debt".to_owned()),
            Overrun::Count => Some("counting denied hits".to_owned()),
            Overrun::Annotate => Some("denying none".to_owned()),
        };
        let group = self.quota_group.as_ref().map(|group| format!("in the quota group {group}"));
        let annotated = self.annotate_at.map(|percent| format!("with a note beyond {percent} %"));
        cost.into_iter().chain(overrun).chain(group).chain(annotated).chain(self.share_words())
    }

    /// Describes the shares of servers, and what they cost and save.
    fn share_words(&self) -> Option<String> {
        let (share, Quota::Limited(limit)) = (self.share?, self.quota) else { return None };
        let size = if share == AUTO_SHARE { "as they are needed".to_owned() } else { format!("of up to {share}") };
        let (credits, calls) = (limit.capacity(), calls_for_shares(limit.capacity(), share));
        Some(format!("in shares {size}, with about {calls} calls of three servers for {credits} credits"))
    }

    /// Returns the credits that `operation` takes from this rule: the `given` cost, or else the value of the rule's
    /// `costField`, or else 1. A rule with [`NO_COST_FIELD`] always takes 1.
    ///
    /// # Errors
    /// The value is not a whole number in digits, or does not fit 64 bits.
    pub fn cost(&self, operation: &Operation, given: Option<u64>) -> Result<u64, BadCost> {
        let field = match (&self.cost_field, given) {
            _ if self.counts_requests() => return Ok(1),
            (_, Some(given)) => return Ok(given),
            (Some(field), None) => field,
            (None, None) => return Ok(1),
        };
        let Some(value) = operation.get(field) else { return Ok(1) };
        let number = value.bytes().all(|byte| byte.is_ascii_digit()).then(|| value.parse().ok());
        number
            .flatten()
            .ok_or_else(|| BadCost { field: field.clone(), value: value.chars().take(MAX_ECHOED_CHARS).collect() })
    }

    /// Returns the pairs that name the rule's counters unless they have a name: those of [`Rule::match_pairs`], and how its
    /// actors are counted by networks. No operation has a key twice, so no other rule has these pairs.
    pub fn counter_pairs(&self) -> Vec<(&str, Cow<'_, str>)> {
        let mut pairs = self.match_pairs();
        if let Some(prefix) = &self.actor_prefix {
            pairs.push((ACTOR_PREFIX, prefix.field.as_str().into()));
            pairs.push((ACTOR_PREFIX, prefix.lengths.to_string().into()));
        }
        pairs
    }

    /// Returns the identity of the rule's counters; `None` if it has none.
    pub fn identity(&self) -> Option<Identity<'_>> {
        let Quota::Limited(limit) = self.quota else { return None };
        Some(match &self.counter {
            Some(counter) => {
                let (rhythm, actor_fields) = (self.settings.rhythm(), self.counter_fields());
                Identity::Named { counter, rhythm, actor_fields, actor_prefix: self.actor_prefix.as_ref() }
            }
            None => Identity::Unnamed {
                operation: self.match_pairs(),
                limit: match limit {
                    // Leases stay valid when the numbers change.
                    Limit::Concurrency(_) => {
                        Limit::Concurrency(Concurrency { leases: 0, ttl_seconds: NonZeroU32::MIN })
                    }
                    limit => limit,
                },
                // A single field's name is not part of the identity, because an actor is its value alone, as in Button's Divvy.
                names_in_actors: if self.actor_fields.len() > 1 { &self.actor_fields } else { &[] },
                actor_prefix: self.actor_prefix.as_ref(),
            },
        })
    }

    /// Returns its [settings](Rule::named_settings) as text, by their names in a rules file.
    pub fn describe(&self) -> Vec<(&'static str, String)> {
        self.named_settings().map(|setting| (setting.name, setting.value.to_string())).collect()
    }

    /// Returns its settings in the order of the documentation. The algorithm, the match policy and all settings of a
    /// calendar and of a penalty are always included, others only if they were given.
    pub fn named_settings(&self) -> impl Iterator<Item = NamedSetting> {
        let word = |word: &str| Some(SettingValue::Text(word.to_owned()));
        let text = |text: &Option<String>| text.clone().map(SettingValue::Text);
        let number = |number: &dyn ToString| Some(SettingValue::Number(number.to_string()));
        let condition = |condition: &Option<Condition>| {
            condition.as_ref().map(|found| SettingValue::OfField(found.field.clone(), found.entries()))
        };
        let prefix = |prefix: &ActorPrefix| SettingValue::OfField(prefix.field.clone(), prefix.lengths.to_string());
        let fields = Some(&self.actor_fields).filter(|fields| !fields.is_empty());
        let (numbers, calendar) = (&self.settings, self.settings.calendar);
        let is_limited = *numbers != Settings::unlimited();
        let (zone, reset_at) = (calendar.map(Calendar::zone), calendar.and_then(Calendar::time_of_day));
        let penalty = self.penalty.as_ref();
        let of_penalty = |value: fn(&Penalty) -> u64| penalty.and_then(|penalty| number(&value(penalty)));
        let is_implied = |given: fn(&Penalty) -> Option<u64>| penalty.and_then(given).is_none();
        let given = [
            (LIMIT, if is_limited { None } else { word(UNLIMITED) }, false),
            (CREDIT_LIMIT, if is_limited { number(&numbers.credit_limit) } else { None }, false),
            (
                RESET_SECONDS,
                if is_limited && calendar.is_none() { number(&numbers.reset_seconds) } else { None },
                false,
            ),
            (WINDOW, calendar.and_then(|calendar| word(calendar.unit().name())), false),
            (TIMEZONE, zone.and_then(word), zone == Some(UTC)),
            (RESET_AT, reset_at.as_deref().and_then(word), reset_at.as_deref() == Some(MIDNIGHT)),
            (ALGORITHM, word(numbers.algorithm().name()), numbers.algorithm.is_none()),
            (REFILL_CREDITS, numbers.refill_credits.and_then(|credits| number(&credits)), false),
            (REFILL_SECONDS, numbers.refill_seconds.and_then(|seconds| number(&seconds)), false),
            (BURST, numbers.burst.and_then(|credits| number(&credits)), false),
            (NETWORKS, condition(&self.networks), false),
            (LIST, condition(&self.list), false),
            (ACTOR_FIELD, fields.cloned().map(SettingValue::Fields), false),
            (ACTOR_PREFIX, self.actor_prefix.as_ref().map(prefix), false),
            (COST_FIELD, text(&self.cost_field), false),
            (
                OVERRUN,
                if self.overrun == Overrun::default() { None } else { word(self.overrun.name()) },
                self.quota_group.is_some(),
            ),
            (ANNOTATE_AT, self.annotate_at.and_then(|percent| number(&percent)), false),
            (QUOTA_GROUP, text(&self.quota_group), false),
            (SHARE, self.share.and_then(|share| if share == AUTO_SHARE { word(AUTO) } else { number(&share) }), false),
            (HOLD_FIELD, text(&self.hold_field), false),
            (COUNTER, text(&self.counter), false),
            (BLOCK_AFTER, of_penalty(|penalty| penalty.after), false),
            (BLOCK_WINDOW, of_penalty(Penalty::window_seconds), is_implied(|penalty| penalty.window)),
            (BLOCK_SECONDS, of_penalty(|penalty| penalty.seconds), false),
            (BLOCK_FACTOR, of_penalty(Penalty::growth), is_implied(|penalty| penalty.factor)),
            (BLOCK_MAX, of_penalty(Penalty::max_seconds), is_implied(|penalty| penalty.max)),
            (BLOCK_FORGET, of_penalty(Penalty::forget_seconds), is_implied(|penalty| penalty.forget)),
            (MATCH_POLICY, word(self.match_policy.name()), self.match_policy == self.default_match_policy()),
            (LABEL, text(&self.label), false),
            (COMMENT, text(&self.comment), false),
        ];
        given.into_iter().filter_map(|(name, value, is_default)| Some(NamedSetting { name, value: value?, is_default }))
    }
}

/// Returns how often three servers ask the store until `credits` are used up, if their hits are equally frequent, and the calls of hits
/// are many more. Each share is at most a sixth of what is left, so the last credits are granted one by one.
pub fn calls_for_shares(credits: u64, most: NonZeroU32) -> u64 {
    const PARTS: u64 = 6;
    let (mut left, mut calls) = (credits, 0);
    while left > 0 {
        let share = (left / PARTS).min(most.get().into());
        // Many shares of one size take as many calls.
        let same = if share == u64::from(most.get()) { (left - share * PARTS) / share } else { 0 }.max(1);
        (left, calls) = (left.saturating_sub((share + 1) * same), calls + same);
    }
    calls
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&header(self.pairs()))
    }
}

/// Returns the text that names an operation for people: `default`, or its pairs.
///
/// If the text form cannot express a pair, its strings are escaped; such a header cannot be parsed.
pub fn header<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let pairs: Vec<_> = pairs.collect();
    if pairs.is_empty() {
        return "default".to_owned();
    }
    operation::write(pairs.iter().copied()).unwrap_or_else(|_unwritable| {
        let escaped: Vec<_> = pairs.iter().map(|(key, value)| format!("{key:?}={value:?}")).collect();
        escaped.join(" ")
    })
}

/// Characters of an invalid value that an error message repeats.
const MAX_ECHOED_CHARS: usize = 64;

/// An error for a request whose cost field has an invalid value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the field '{field}' is the cost of the hit and must be a whole number from 0 to {}, not '{value}'", u64::MAX)]
pub struct BadCost {
    /// The rule's `costField`.
    pub field: String,
    /// The beginning of its value.
    pub value: String,
}

/// The identity of a rule's counters.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Identity<'a> {
    /// Counters that belong to the rule. A change of its limit starts new ones.
    Unnamed {
        /// The pairs of the rule and its conditions: see [`Rule::match_pairs`].
        operation: Vec<(&'a str, Cow<'a, str>)>,
        /// The limit. A concurrency limit has its numbers cleared.
        limit: Limit,
        /// Fields whose names are part of the actors. Empty if there is at most one field.
        names_in_actors: &'a [String],
        /// The networks that name actors.
        actor_prefix: Option<&'a ActorPrefix>,
    },
    /// Counters with a name of their own. They record usage, so their identity does not include the number of credits.
    Named {
        /// The name.
        counter: &'a str,
        /// How credits come back.
        rhythm: Rhythm,
        /// The fields that separate the counters, in the rule's order.
        actor_fields: &'a [String],
        /// The networks that name actors.
        actor_prefix: Option<&'a ActorPrefix>,
    },
}

/// How credits come back: the limit without its number of credits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rhythm {
    /// The algorithm, whose states are not interchangeable with another's.
    pub algorithm: Kind,
    /// The length of a window, or the time between refills. Zero for leases, which outlive changes of their TTL.
    time: Seconds,
    calendar: Option<CalendarId>,
    /// Credits that a refill of a token bucket adds; `None` if a refill fills the bucket.
    pub refill_credits: Option<u64>,
}

impl Settings {
    /// Returns how credits come back, without the number of credits.
    pub fn rhythm(&self) -> Rhythm {
        let is_lease = self.algorithm() == Kind::Concurrency;
        Rhythm {
            algorithm: self.algorithm(),
            time: if is_lease { Seconds::default() } else { self.refill_seconds.unwrap_or(self.reset_seconds) },
            calendar: self.calendar.map(|calendar| calendar.id()),
            refill_credits: self.refill_credits,
        }
    }
}

/// A setting of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedSetting {
    /// Name of the setting in a rules file.
    pub name: &'static str,
    /// Value of the setting.
    pub value: SettingValue,
    /// Whether the rule means the same without the setting.
    pub is_default: bool,
}

/// The value of a setting. Displays as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingValue {
    /// A word or a text.
    Text(String),
    /// Digits, perhaps with decimals. May be more than a floating-point number can hold.
    Number(String),
    /// Names of fields, at least one.
    Fields(Vec<String>),
    /// A field, and a text about it. Displays as `field: text`.
    OfField(String, String),
}

impl fmt::Display for SettingValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) | Self::Number(text) => f.write_str(text),
            Self::Fields(fields) => f.write_str(&fields.join(", ")),
            Self::OfField(field, text) => write!(f, "{field}: {text}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::testing::rule;

    fn cost(value: &str) -> Result<u64, BadCost> {
        let rule = Rule { cost_field: Some("bytes".into()), ..rule("") };
        rule.cost(&[("bytes", value), ("other", "x")].into_iter().collect(), None)
    }

    #[test]
    fn cost_is_read_from_the_field() {
        assert_eq!(cost("0"), Ok(0));
        assert_eq!(cost("0512"), Ok(512));
        assert_eq!(cost("18446744073709551615"), Ok(u64::MAX));
    }

    #[test]
    fn hit_without_the_field_costs_one() {
        let operation = [("bytes", "5")].into_iter().collect();
        assert_eq!(rule("").cost(&operation, None), Ok(1));
        assert_eq!(Rule { cost_field: Some("size".into()), ..rule("") }.cost(&operation, None), Ok(1));
    }

    #[test]
    fn given_cost_overrides_the_field_but_not_none() {
        let operation = [("bytes", "many"), ("none", "7")].into_iter().collect();
        let by = |field: &str| Rule { cost_field: Some(field.into()), ..rule("") };
        assert_eq!([rule(""), by("bytes")].map(|rule| rule.cost(&operation, Some(3))), [Ok(3), Ok(3)]);
        assert_eq!([None, Some(0), Some(3)].map(|given| by("none").cost(&operation, given)), [Ok(1), Ok(1), Ok(1)]);
    }

    #[test]
    fn cost_other_than_digits_is_rejected() {
        for value in ["", " 1", "-1", "+1", "1.0", "1e3", "0x10", "many", "١", "18446744073709551616"] {
            assert_eq!(cost(value), Err(BadCost { field: "bytes".into(), value: value.into() }));
        }
        assert_eq!(cost(&"ü".repeat(1_000)).unwrap_err().value.chars().count(), 64);
    }
}
