//! Explains an answer: whether each rule matches, in order, and if not, why. Takes no credit.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{MatchPolicy, NOT, Operation, OverrideKind, Rule, RuleSet, Settings, header};

/// The findings for all rules, up to the one that answers. Displays one line for each rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// The rules in order, ending with the one that answers, if any does.
    pub rules: Vec<ExplainedRule>,
    /// The findings for a gateway's check of the operation, if other rules match it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub check: Option<ExplainedCheck>,
}

/// The findings for a gateway's check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainedCheck {
    /// The operation in the spelling of checks, by key.
    pub operation: BTreeMap<String, String>,
    /// The rules in order, ending with the one that answers, if any does.
    pub rules: Vec<ExplainedRule>,
}

/// The finding for one rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainedRule {
    /// [`Rule::name`].
    pub name: String,
    /// The rule's operation, written as a header in a rules file.
    pub operation: String,
    /// Line of the file where the rule begins, from 1.
    pub line: usize,
    /// The rule's label.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Whether the rule matches. In JSON, its fields are next to the rule's own.
    #[serde(flatten)]
    pub finding: Finding,
}

/// Whether a rule matches, and if not, why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "finding", rename_all = "kebab-case")]
pub enum Finding {
    /// It matches and answers.
    Answers {
        /// The rule's limit and cost.
        grants: Grants,
    },
    /// It matches and takes credit; matching continues.
    Canary {
        /// The rule's limit and cost.
        grants: Grants,
    },
    /// It matches, and it, or its quota group, must allow the request together with others and the rule that answers; matching
    /// continues.
    MustAllow {
        /// The rule's limit and cost.
        grants: Grants,
    },
    /// It matches, but the operation's cost is invalid: the answer is an error, and no credit is taken.
    Refuses {
        /// The error in the cost, for people.
        reason: String,
    },
    /// The operation has no such key.
    KeyMissing {
        /// The first missing key, in the rule's order.
        key: String,
    },
    /// The value is not in the rule's networks or list, or it is and must not be.
    ConditionFails {
        /// The key.
        key: String,
        /// The setting of the condition: `networks` or `list`.
        setting: Cow<'static, str>,
        /// Its entries, or the name of the list, as written in the rules file.
        entries: String,
        /// The operation's value.
        value: String,
        /// The entry that the value matches, if it must not match any.
        #[serde(skip_serializing_if = "Option::is_none")]
        entry: Option<String>,
        /// The line of the entry in the list.
        #[serde(rename = "lineInList", skip_serializing_if = "Option::is_none")]
        line_in_list: Option<u32>,
    },
    /// The value does not match the rule's pattern.
    ValueDiffers {
        /// The key.
        key: String,
        /// The rule's pattern, as written in the rules file.
        pattern: String,
        /// The operation's value.
        value: String,
    },
}

/// The grant of a matching rule, and its cost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grants {
    /// [`Rule::summary`].
    pub limit: String,
    /// The grant that replaces the rule's, if the operation's actor has a limit of its own.
    #[serde(rename = "actorLimit", skip_serializing_if = "Option::is_none")]
    pub actor_limit: Option<String>,
    /// The block or the allow that decides in place of both.
    #[serde(rename = "override", skip_serializing_if = "Option::is_none")]
    pub actor_override: Option<ActorOverride>,
    /// The rule's quota group.
    #[serde(rename = "quotaGroup", skip_serializing_if = "Option::is_none")]
    pub quota_group: Option<String>,
    /// The credits that the operation takes, if the rule has a `costField`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<u64>,
    /// The entries of `networks` and of `list` that the operation's values match.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<FoundMember>,
}

/// An entry that a value matches. Displays as `ip is in office.txt, line 3: 10.0.0.0/8`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundMember {
    /// The key.
    pub key: String,
    /// The name of the list, if the entry is in one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub list: Option<String>,
    /// The line of the entry in the list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// The entry.
    pub entry: String,
}

/// A block or an allow of an actor. Displays as `blocked for another 60 s: scraping`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActorOverride {
    /// Whether it is a block or an allow.
    pub kind: OverrideKind,
    /// Seconds until it ends, rounded up. `None` if it lasts until it is removed.
    #[serde(rename = "expiresIn")]
    pub expires_in: Option<u64>,
    /// The reason that was given.
    pub reason: Option<String>,
    /// The entry for all rules that it comes from: `field=value` or `field=network`. `None` if it is for the rule alone.
    pub entry: Option<String>,
}

/// The exceptions for the operation's actor at a rule.
#[derive(Debug, Clone, Default)]
pub struct ActorExceptions {
    /// The credits that the actor has in place of the rule's.
    pub credits: Option<u64>,
    /// The block or the allow that decides.
    pub actor_override: Option<ActorOverride>,
}

/// Explains how `rules` answer `operation`. `exceptions` returns the exceptions for the actor of an operation under the
/// rule with the given index.
pub fn explain(
    rules: &RuleSet,
    operation: &Operation,
    exceptions: impl Fn(usize, &Operation) -> ActorExceptions,
) -> Explanation {
    let found = explain_with(rules, rules.rules(), operation, &exceptions);
    let check = rules.spellings().read(operation).ok().and_then(|normalized| {
        let in_check = explain_with(rules, rules.normalized().rules(), &normalized, &exceptions);
        let is_same = in_check
            .iter()
            .filter(|rule| rule.finding.is_match())
            .eq(found.iter().filter(|rule| rule.finding.is_match()));
        let operation = normalized.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        (!is_same).then_some(ExplainedCheck { operation, rules: in_check })
    });
    Explanation { rules: found, check }
}

/// Explains how the rules answer `operation`, whose values are compared with the patterns of `compared`.
fn explain_with(
    rules: &RuleSet,
    compared: &[Rule],
    operation: &Operation,
    exceptions: &impl Fn(usize, &Operation) -> ActorExceptions,
) -> Vec<ExplainedRule> {
    let mut explained = Vec::new();
    // Of the rules of a domain, which may be thousands, only one is considered.
    let (compared, first, count) = match rules.find_in_domains(operation) {
        Some(index) => (rules.rules(), index, 1),
        None => (compared, 0, compared.len()),
    };
    for (index, (rule, compared)) in rules.rules().iter().zip(compared).enumerate().skip(first).take(count) {
        let finding = find(rule, compared, operation, || exceptions(index, operation));
        let ends = finding.ends();
        explained.push(ExplainedRule {
            name: rule.name(index).into_owned(),
            operation: rule.to_string(),
            line: rule.line,
            label: rule.label.clone(),
            finding,
        });
        if ends {
            break;
        }
    }
    explained
}

/// Returns the finding for a rule. `compared` has its patterns for the operation. A key may have several.
fn find(rule: &Rule, compared: &Rule, operation: &Operation, exceptions: impl FnOnce() -> ActorExceptions) -> Finding {
    // The tree of a domain has found its rule.
    let pairs = if rule.descriptor.is_some() { &[][..] } else { &rule.operation };
    for (key, pattern) in pairs {
        let Some(value) = operation.get(key) else { return Finding::KeyMissing { key: key.clone() } };
        if !compared.patterns(key).any(|pattern| pattern.matches(value)) {
            let (key, pattern, value) = (key.clone(), pattern.to_string(), value.to_owned());
            return Finding::ValueDiffers { key, pattern, value };
        }
    }
    let mut members = Vec::new();
    for condition in compared.conditions() {
        let key = condition.field.clone();
        let Some(value) = operation.get(&key) else { return Finding::KeyMissing { key } };
        let found = condition.find(value.as_bytes());
        if found.is_some() == condition.is_inverted {
            let (entry, line_in_list) = found.map_or((None, None), |(entry, line)| (Some(entry), line));
            let (setting, entries, value) = (condition.setting().into(), condition.entries(), value.to_owned());
            return Finding::ConditionFails { key, setting, entries, value, entry, line_in_list };
        }
        let list = condition.members.name().map(str::to_owned);
        members.extend(found.map(|(entry, line)| FoundMember { key, list, line, entry }));
    }
    let cost = match rule.cost(operation, None) {
        Ok(cost) => cost,
        Err(error) => return Finding::Refuses { reason: error.to_string() },
    };
    let ActorExceptions { credits, actor_override } = exceptions();
    let actor_limit = credits.map(|credits| Settings { credit_limit: credits, ..rule.settings }.to_string());
    let cost = (!rule.takes_given_cost()).then_some(cost);
    let quota_group = rule.quota_group.clone();
    let grants = Grants { limit: rule.summary(), actor_limit, actor_override, quota_group, cost, members };
    match rule.match_policy {
        MatchPolicy::Stop => Finding::Answers { grants },
        MatchPolicy::Canary => Finding::Canary { grants },
        MatchPolicy::And => Finding::MustAllow { grants },
    }
}

impl Explanation {
    /// Returns the line before the findings for a check, if there are any.
    pub fn check_line(&self) -> Option<String> {
        let pairs = self.check.as_ref()?.operation.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        Some(format!("A check of a gateway (/v1/check) for [{}] is answered otherwise:", header(pairs)))
    }
}

impl Finding {
    /// Returns whether the rule matches.
    pub fn is_match(&self) -> bool {
        !matches!(self, Self::KeyMissing { .. } | Self::ConditionFails { .. } | Self::ValueDiffers { .. })
    }

    /// Returns whether matching ends after this rule.
    fn ends(&self) -> bool {
        matches!(self, Self::Answers { .. } | Self::Refuses { .. })
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_rules(&self.rules, f)?;
        let Some(ExplainedCheck { rules, .. }) = &self.check else { return Ok(()) };
        writeln!(f, "{}", self.check_line().unwrap_or_default())?;
        write_rules(rules, f)
    }
}

fn write_rules(rules: &[ExplainedRule], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for explained in rules {
        writeln!(f, "{explained}")?;
    }
    let ended = rules.last().is_some_and(|last| last.finding.ends());
    if ended { Ok(()) } else { writeln!(f, "no rule answers") }
}

impl fmt::Display for ExplainedRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: [{}]", self.line, self.operation)?;
        if self.name != self.operation {
            write!(f, " ({})", self.name)?;
        }
        write!(f, ": {}", self.finding)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answers { grants } => write!(f, "matches and answers: {grants}"),
            Self::Canary { grants } => {
                write!(f, "matches as a canary: {grants}; takes credit, and matching continues")
            }
            Self::MustAllow { grants } if grants.quota_group.is_some() => {
                write!(f, "matches with its quota group: {grants}; matching continues")
            }
            Self::MustAllow { grants } => write!(f, "matches and must allow: {grants}; matching continues"),
            Self::Refuses { reason } => write!(f, "matches, but the answer is an error: {reason}"),
            Self::KeyMissing { key } => write!(f, "does not match: the field {key:?} is missing"),
            Self::ConditionFails { key, entries, value, entry, line_in_list, .. } => {
                let list = entries.strip_prefix(NOT).unwrap_or(entries);
                let must = match (entry, line_in_list) {
                    (None, _) => format!("be in {entries}"),
                    (Some(entry), None) => format!("not be in {entry}"),
                    (Some(entry), Some(line)) => format!("not be in {list}, line {line}: {entry}"),
                };
                write!(f, "does not match: {key:?} is {value:?}, but must {must}")
            }
            Self::ValueDiffers { key, pattern, value } => {
                write!(f, "does not match: {key:?} is {value:?}, but must be {pattern:?}")
            }
        }
    }
}

impl fmt::Display for Grants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cost = self.cost.map(|cost| format!(": {cost}")).unwrap_or_default();
        let mut parts = vec![format!("{}{cost}", self.limit)];
        parts.extend(self.actor_limit.as_ref().map(|own| format!("this actor has a limit of its own: {own}")));
        parts.extend(self.members.iter().map(FoundMember::to_string));
        parts.extend(self.actor_override.as_ref().map(|found| format!("this actor is {found}")));
        f.write_str(&parts.join("; "))
    }
}

impl fmt::Display for ActorOverride {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.kind {
            OverrideKind::Block => "blocked",
            OverrideKind::Allow => "always allowed",
        };
        f.write_str(state)?;
        if let Some(seconds) = self.expires_in {
            write!(f, " for another {seconds} s")?;
        }
        if let Some(entry) = &self.entry {
            write!(f, " under all rules, as {entry}")?;
        }
        match &self.reason {
            Some(reason) => write!(f, ": {reason}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for FoundMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, list, line, entry } = self;
        match (list, line) {
            (Some(list), Some(line)) => write!(f, "{key} is in {list}, line {line}: {entry}"),
            _ => write!(f, "{key} is in {entry}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::testing::{canary, networks, operation, rule};
    use crate::rules::{Condition, FinalSlash, List, ListEntry, Network, Pattern, Seconds, Settings, Spelling};

    /// Returns the rule that answers; `None` if none does.
    fn answer(explanation: &Explanation) -> Option<&ExplainedRule> {
        explanation.rules.last().filter(|explained| matches!(explained.finding, Finding::Answers { .. }))
    }

    fn explained(rules: &RuleSet, pairs: &str) -> Explanation {
        explain(rules, &operation(pairs), |_, _| ActorExceptions::default())
    }

    fn rules() -> RuleSet {
        let labelled = Rule { label: Some("by-ip".into()), ..rule("method=GET ip=*") };
        RuleSet::new(vec![labelled, rule("path=/a/*"), canary("method=GET"), rule(""), rule("path=/z")]).unwrap()
    }

    #[test]
    fn explanation_covers_every_rule_up_to_the_answer() {
        let explanation = explained(&rules(), "method=GET path=/b");
        assert_eq!(
            explanation.to_string(),
            "line 1: [method=GET ip=*] (by-ip): does not match: the field \"ip\" is missing\n\
             line 1: [path=/a/*] (rule-2): does not match: \"path\" is \"/b\", but must be \"/a/*\"\n\
             line 1: [method=GET] (rule-3): matches as a canary: always denies; takes credit, and matching continues\n\
             line 1: [default]: matches and answers: always denies\n"
        );
        assert_eq!(answer(&explanation).unwrap().operation, "default");
    }

    #[test]
    fn explanation_has_the_other_answer_of_a_check() {
        let spelling = |key: &str, spelling| (key.to_owned(), spelling);
        let spellings = [spelling("path", Spelling::Path(FinalSlash::Drop)), spelling("host", Spelling::Host)]
            .into_iter()
            .collect();
        let rules = vec![rule("path=//login"), rule("path=/admin/*"), rule("host=Shop.example"), rule("")];
        let rules = RuleSet::new(rules).unwrap().with_spellings(&spellings).unwrap();
        let answers = |pairs: &str| {
            let explanation = explained(&rules, pairs);
            let in_check = explanation.check.as_ref().map(|check| check.rules.last().unwrap().operation.clone());
            (answer(&explanation).unwrap().operation.clone(), in_check.unwrap_or_default(), explanation.to_string())
        };
        for (pairs, answer, in_check) in [
            ("path=/login", "default", "path=//login"),
            ("path=//login", "path=//login", ""),
            ("path=/admin", "default", "path=/admin/*"),
            ("path=/admin/x host=a/b", "path=/admin/*", ""),
            ("path=/x", "default", ""),
            ("host=SHOP.example:443", "default", "host=Shop.example"),
        ] {
            let (found, found_in_check, _) = answers(pairs);
            assert_eq!((found.as_str(), found_in_check.as_str()), (answer, in_check), "{pairs}");
        }
        let text = answers("host=SHOP.example").2;
        assert!(
            text.contains("\nA check of a gateway (/v1/check) for [host=shop.example] is answered otherwise:\nline 1"),
            "{text}"
        );
    }

    #[test]
    fn explanation_names_the_entry_that_matches() {
        let list = |is_inverted| {
            let entries = ["office", "10.0.0.0/8"].map(|text| match Network::parse(text) {
                Ok(network) => ListEntry::Network(network),
                Err(_) => ListEntry::Pattern(Pattern::parse(text)),
            });
            let members = List::new("office.txt", (4..).zip(entries).collect());
            Rule { list: Some(Condition { field: "ip".to_owned(), is_inverted, members }), ..rule("ip=*") }
        };
        let of_networks = |text| Rule { networks: Some(networks(text)), ..rule("ip=*") };
        let rules = vec![
            of_networks("ip: 192.0.2.0/24, ::1"),
            of_networks("ip: not ::1, 10.0.0.0/8"),
            list(true),
            canary("ip=*"),
            list(false),
            rule(""),
        ];
        let rules = RuleSet::new(rules).unwrap();
        let explanation = explained(&rules, "ip=10.1.2.3:80");
        let findings: Vec<_> = explanation.rules.iter().map(|rule| rule.finding.to_string()).collect();
        assert_eq!(
            findings,
            [
                "does not match: \"ip\" is \"10.1.2.3:80\", but must be in 192.0.2.0/24, ::1",
                "does not match: \"ip\" is \"10.1.2.3:80\", but must not be in 10.0.0.0/8",
                "does not match: \"ip\" is \"10.1.2.3:80\", but must not be in office.txt, line 5: 10.0.0.0/8",
                "matches as a canary: always denies; takes credit, and matching continues",
                "matches and answers: always denies, for ip in office.txt; ip is in office.txt, line 5: 10.0.0.0/8",
            ]
        );
        let json = serde_json::to_value(&explanation).unwrap();
        assert_eq!(json["rules"][2]["lineInList"], 5);
        assert_eq!(
            json["rules"][4]["grants"]["members"],
            serde_json::json!([{ "key": "ip", "list": "office.txt", "line": 5, "entry": "10.0.0.0/8" }])
        );
    }

    #[test]
    fn explanation_serializes_flat() {
        let explanation = explained(&RuleSet::new(vec![rule("path=/a")]).unwrap(), "path=/b");
        assert_eq!(
            serde_json::to_value(&explanation).unwrap(),
            serde_json::json!({ "rules": [
                { "name": "rule-1", "operation": "path=/a", "line": 1, "finding": "value-differs", "key": "path", "pattern": "/a", "value": "/b" }
            ] })
        );
        assert_eq!(answer(&explanation), None);
        assert!(explanation.to_string().ends_with("no rule answers\n"));
    }

    #[test]
    fn explanation_has_the_cost_or_its_error() {
        let by_size = |header| {
            let settings = Settings { credit_limit: 9, reset_seconds: Seconds::whole(60), ..Settings::default() };
            Rule { cost_field: Some("bytes".into()), settings, ..rule(header) }
        };
        let rules = RuleSet::new(vec![by_size("bytes=*"), by_size("")]).unwrap();
        let lines = |text| explained(&rules, text).to_string();
        assert_eq!(
            lines("bytes=512"),
            "line 1: [bytes=*] (rule-1): matches and answers: allows 9 in 60 s, at the cost in bytes: 512\n"
        );
        let refused = lines("bytes=half");
        assert!(
            refused.starts_with("line 1: [bytes=*] (rule-1): matches, but the answer is an error: the field 'bytes'")
        );
        assert_eq!(refused.lines().count(), 1, "{refused}");
        assert!(lines("a=b").ends_with("matches and answers: allows 9 in 60 s, at the cost in bytes: 1\n"));
        let own = explain(&rules, &operation("a=b"), |index, _| ActorExceptions {
            credits: (index == 1).then_some(7),
            actor_override: None,
        })
        .to_string();
        assert!(
            own.ends_with(" at the cost in bytes: 1; this actor has a limit of its own: allows 7 in 60 s\n"),
            "{own}"
        );
    }
}
