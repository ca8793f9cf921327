//! The names of rules in answers, listings and requests.

use std::borrow::Cow;

use super::{Rule, RuleSet};

/// The name of the default rule, if it has no label.
pub const DEFAULT_RULE: &str = "default";
/// The name of a rule without a label begins with this. The rule's position follows, from 1.
const BY_POSITION: &str = "rule-";

impl Rule {
    /// Returns the rule's name: its label, or `default` for the default rule, or else its position among the rules, as in
    /// `rule-1` for index 0.
    pub fn name(&self, index: usize) -> Cow<'_, str> {
        match self.lasting_name() {
            Some(name) => Cow::Borrowed(name),
            None => Cow::Owned(format!("{BY_POSITION}{}", index + 1)),
        }
    }

    /// Returns the rule's name, unless the name depends on the order of the rules.
    pub fn lasting_name(&self) -> Option<&str> {
        self.label.as_deref().or(self.is_default().then_some(DEFAULT_RULE))
    }
}

/// Returns the index in a name by position, as in `rule-1` for index 0. Returns `None` for any other name.
pub fn index_in_name(name: &str) -> Option<usize> {
    let digits = name.strip_prefix(BY_POSITION)?;
    // Only this notation is a name: not `rule-01`.
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.starts_with('0');
    digits.parse::<usize>().ok().filter(|_| is_number)?.checked_sub(1)
}

impl RuleSet {
    /// Returns the index of the rule with this name. A label takes precedence over `default`, and over a position.
    pub fn find_by_name(&self, name: &str) -> Option<usize> {
        let rules = self.rules();
        let by_label = || rules.iter().position(|rule| rule.label.as_deref() == Some(name));
        let default = || rules.iter().position(Rule::is_default).filter(|_| name == DEFAULT_RULE);
        let by_position = || {
            let index = index_in_name(name)?;
            // The position of a rule with a label is not its name.
            rules.get(index).is_some_and(|rule| rule.name(index) == name).then_some(index)
        };
        by_label().or_else(default).or_else(by_position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::testing::rule;

    fn labelled(header: &str, label: &str) -> Rule {
        Rule { label: Some(label.into()), ..rule(header) }
    }

    fn names(rules: &RuleSet) -> Vec<Cow<'_, str>> {
        rules.rules().iter().enumerate().map(|(index, rule)| rule.name(index)).collect()
    }

    #[test]
    fn every_name_finds_its_rule() {
        let rules = RuleSet::new(vec![rule("a=1"), labelled("a=2", "two"), rule("a=3"), rule("")]).unwrap();
        assert_eq!(names(&rules), ["rule-1", "two", "rule-3", "default"]);
        for (index, name) in names(&rules).iter().enumerate() {
            assert_eq!(rules.find_by_name(name), Some(index), "{name}");
        }
        for name in ["", "rule-", "rule-0", "rule-01", "rule-+1", "rule-2", "rule-4", "rule-5", "Rule-1", "1"] {
            assert_eq!(rules.find_by_name(name), None, "{name}");
        }
        assert_eq!(rules.find_by_name("rule-99999999999999999999"), None);
    }

    #[test]
    fn label_takes_precedence_over_position_and_default() {
        let rules = RuleSet::new(vec![labelled("a=1", "rule-2"), rule("a=2"), labelled("a=3", "default"), rule("")]);
        let rules = rules.unwrap();
        assert_eq!((rules.find_by_name("rule-2"), rules.find_by_name("default")), (Some(0), Some(2)));
    }

    #[test]
    fn default_finds_a_default_rule_with_a_label() {
        let rules = RuleSet::new(vec![rule("a=1"), labelled("", "rest")]).unwrap();
        assert_eq!((rules.find_by_name("default"), rules.find_by_name("rest")), (Some(1), Some(1)));
    }
}
