//! The spelling of each key's values in checks, and rules whose patterns have it.

use std::collections::HashMap;
use std::sync::Arc;

use super::spelling::Spelling;
use super::{Condition, List, Members, Rule};

/// The keys whose values checks normalize.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Spellings(Vec<(String, Spelling)>);

/// A pattern that no normalized value matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownSpelling {
    /// Line of the rule.
    pub line: usize,
    /// The rule's header.
    pub rule: String,
    /// The problem.
    pub what: String,
    /// Advice for correcting it.
    pub fix: String,
}

impl Spellings {
    /// Returns the spelling of the key's values; `None` if they are compared as they come.
    pub fn of(&self, key: &str) -> Option<Spelling> {
        self.0.iter().rev().find(|(candidate, _)| candidate == key).map(|(_, spelling)| *spelling)
    }

    /// Returns the rules with the patterns that normalized values match; `None` if no pattern differs. A key may have several
    /// patterns then, and a value matches any of them.
    ///
    /// # Errors
    /// Patterns that no normalized value matches.
    pub(super) fn normalize_rules(&self, rules: &[Rule]) -> Result<Option<Vec<Rule>>, Vec<UnknownSpelling>> {
        let (mut unknown, mut has_changed) = (Vec::new(), false);
        // Rules may share a list.
        let mut lists: HashMap<(*const List, Spelling), Option<Arc<List>>> = HashMap::new();
        let mut normalized = rules.to_vec();
        for rule in &mut normalized {
            let (line, header) = (rule.line, rule.to_string());
            let mut note = |(what, fix): (String, String)| {
                unknown.push(UnknownSpelling { line, rule: header.clone(), what, fix });
            };
            let mut operation = Vec::with_capacity(rule.operation.len());
            for (key, pattern) in &rule.operation {
                match self.of(key).map(|spelling| spelling.of_pattern(pattern)) {
                    None => operation.push((key.clone(), pattern.clone())),
                    Some(Ok(patterns)) => operation.extend(patterns.into_iter().map(|pattern| (key.clone(), pattern))),
                    Some(Err((what, fix))) => note((format!("{key}={pattern} matches no check: {what}"), fix)),
                }
            }
            has_changed |= operation != rule.operation;
            rule.operation = operation;
            if let Some(Condition { field, members: Members::List(list), .. }) = &mut rule.list
                && let Some(spelling) = self.of(field)
                && let Some(normalized) =
                    lists.entry((Arc::as_ptr(list), spelling)).or_insert_with(|| list.normalize(spelling))
            {
                *list = Arc::clone(normalized);
                has_changed = true;
            }
        }
        if unknown.is_empty() { Ok(has_changed.then_some(normalized)) } else { Err(unknown) }
    }
}

impl FromIterator<(String, Spelling)> for Spellings {
    fn from_iter<I: IntoIterator<Item = (String, Spelling)>>(keys: I) -> Self {
        Self(keys.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::spelling::FinalSlash;
    use super::super::testing::rule;
    use super::*;

    #[test]
    fn rules_change_only_if_a_pattern_does() {
        let spellings: Spellings =
            [("path".to_owned(), Spelling::Path(FinalSlash::Keep)), ("host".to_owned(), Spelling::Host)]
                .into_iter()
                .collect();
        let as_they_are = [rule("path=/a/* host=shop.example user=//x"), rule("")];
        assert_eq!(spellings.normalize_rules(&as_they_are), Ok(None));
        let changed = spellings.normalize_rules(&[rule("path=//a user=//x")]).unwrap().unwrap();
        assert_eq!(changed[0].to_string(), "path=/a user=//x");
        let unknown = spellings.normalize_rules(&[rule("host=a/b")]).unwrap_err();
        assert!(unknown[0].what.contains("host=a/b matches no check"), "{unknown:?}");
    }
}
