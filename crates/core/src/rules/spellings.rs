//! The spelling of each key's values in checks, and rules whose patterns have it.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use super::spelling::Spelling;
use super::{Condition, List, Members, Misspelling, Operation, Rule};

/// The keys whose values checks normalize.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Spellings(Vec<(String, Spelling)>);

/// A pattern or an entry of a list that no normalized value matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownSpelling {
    /// Line of the rule.
    pub line: usize,
    /// The rule's header.
    pub rule: String,
    /// The name of the list and the entry's line there, if it is in one.
    pub entry: Option<(String, u32)>,
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

    /// Returns the operation as a check has it.
    ///
    /// # Errors
    /// No check has one of the values.
    pub fn read(&self, operation: &Operation) -> Result<Operation, Misspelling> {
        let mut normalized = Operation::new();
        normalized.set_normalized();
        for (key, value) in operation.iter() {
            let value = self.of(key).map_or(Ok(Cow::Borrowed(value)), |spelling| spelling.read(value))?;
            normalized.set(key, &value);
        }
        Ok(normalized)
    }

    /// Returns the rules with the patterns that normalized values match; `None` if no pattern differs. A key may have several
    /// patterns then, and a value matches any of them.
    ///
    /// # Errors
    /// Patterns and entries that no normalized value matches.
    pub(super) fn normalize_rules(&self, rules: &[Rule]) -> Result<Option<Vec<Rule>>, Vec<UnknownSpelling>> {
        let (mut unknown, mut has_changed) = (Vec::new(), false);
        // Rules may share a list.
        let mut lists: HashMap<(*const List, Spelling), Option<Arc<List>>> = HashMap::new();
        let mut normalized = rules.to_vec();
        for rule in &mut normalized {
            let (line, header) = (rule.line, rule.to_string());
            let mut note = |entry, text: String, Misspelling { what, fix }| {
                let what = format!("{text} matches no check: {what}");
                unknown.push(UnknownSpelling { line, rule: header.clone(), entry, what, fix });
            };
            let mut operation = Vec::with_capacity(rule.operation.len());
            for (key, pattern) in &rule.operation {
                match self.of(key).map(|spelling| spelling.of_pattern(pattern)) {
                    None => operation.push((key.clone(), pattern.clone())),
                    Some(Ok(patterns)) => operation.extend(patterns.into_iter().map(|pattern| (key.clone(), pattern))),
                    Some(Err(misspelling)) => {
                        let fix = misspelling.fix.replace("FIELD", key);
                        note(None, format!("{key}={pattern}"), Misspelling { fix, ..misspelling });
                    }
                }
            }
            has_changed |= operation != rule.operation;
            rule.operation = operation;
            if let Some(Condition { field, members: Members::List(list), .. }) = &mut rule.list
                && let Some(spelling) = self.of(field)
            {
                let known = lists.entry((Arc::as_ptr(list), spelling)).or_insert_with(|| {
                    list.normalize(spelling).unwrap_or_else(|wrong| {
                        for (line, entry, misspelling) in wrong {
                            note(Some((list.name().to_owned(), line)), format!("{field}={entry}"), misspelling);
                        }
                        None
                    })
                });
                if let Some(normalized) = known {
                    *list = Arc::clone(normalized);
                    has_changed = true;
                }
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
        assert!(spellings.read(&[("host", "a/b")].into_iter().collect()).is_err());
        let operation = [("host", "SHOP.example"), ("path", "//a"), ("user", "//b")].into_iter().collect();
        let read = spellings.read(&operation).unwrap();
        assert_eq!(read.iter().collect::<Vec<_>>(), [("host", "shop.example"), ("path", "/a"), ("user", "//b")]);
    }
}
