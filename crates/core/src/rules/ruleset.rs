//! The compiled rules: which of them apply to an operation, in order, and their names in answers, listings and requests.

use std::borrow::Cow;
use std::iter::FusedIterator;
use std::sync::atomic::{AtomicU64, Ordering};

use super::descriptor::{self, DescriptorRules};
use super::matcher::{self, INDEXED_KEYS, Matcher, RuleSetError, Selection};
use super::operation::{Key, Values};
use super::{Condition, Descriptor, MatchPolicy, Operation, Pattern, Rule, Spellings};

/// All rules in their order of precedence, compiled. Immutable: a reload creates another `RuleSet`.
///
/// The default one is empty, and matches nothing.
#[derive(Debug, Default)]
pub struct RuleSet {
    /// The rules of the file, then those of ratelimit's domains.
    rules: Vec<Rule>,
    /// Finds the rules of the file.
    matcher: Matcher,
    /// Finds the rules of ratelimit's domains, if there are any.
    domains: Option<Box<DescriptorRules>>,
    /// The rules in the spelling of normalized operations, if it differs.
    normalized: Option<Box<RuleSet>>,
    spellings: Spellings,
    number: u64,
}

/// Working space for matching, reused from request to request so that a match allocates nothing.
#[derive(Debug, Default)]
pub struct Scratch {
    selection: Selection,
    descriptor: descriptor::Buffers,
}

impl RuleSet {
    /// Compiles the rules.
    ///
    /// # Errors
    /// The rules are too many or too large to compile, see [`RuleSetError`]. The rules file's validation decides
    /// whether they make sense: whether there is a default rule, or an unreachable one.
    pub fn new(rules: Vec<Rule>) -> Result<Self, RuleSetError> {
        if u32::try_from(rules.len()).is_err() {
            return Err(RuleSetError::TooManyRules);
        }
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let matcher = Matcher::new(&rules, INDEXED_KEYS)?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed) + 1;
        Ok(Self { rules, matcher, domains: None, normalized: None, spellings: Spellings::default(), number })
    }

    /// Adds ratelimit's domains. Operations with one of them see only its rules, which come after the others.
    ///
    /// # Errors
    /// There are too many rules.
    pub fn with_domains(mut self, mut domains: DescriptorRules) -> Result<Self, RuleSetError> {
        if domains.is_empty() {
            return Ok(self);
        }
        domains.move_rules_to(&mut self.rules);
        if u32::try_from(self.rules.len()).is_err() {
            return Err(RuleSetError::TooManyRules);
        }
        self.domains = Some(Box::new(domains));
        Ok(self)
    }

    /// Returns the rules of the file, without those of ratelimit's domains.
    pub fn file_rules(&self) -> &[Rule] {
        let end = self.domains.as_ref().map_or(self.rules.len(), |domains| domains.first());
        self.rules.get(..end).unwrap_or_default()
    }

    /// Returns the same rules of the file with other domains.
    ///
    /// # Errors
    /// There are too many rules.
    pub fn replace_domains(&self, domains: DescriptorRules) -> Result<Self, RuleSetError> {
        Self::new(self.file_rules().to_vec())?.with_spellings(&self.spellings)?.with_domains(domains)
    }

    /// Returns whether these rules answer every operation as `other` does.
    pub fn is_same(&self, other: &Self) -> bool {
        let shape = |rules: &Self| rules.domains.as_ref().map(|domains| domains.shape());
        self.rules == other.rules && shape(self) == shape(other)
    }

    /// Returns the domains of ratelimit.
    pub fn domains(&self) -> Option<&DescriptorRules> {
        self.domains.as_deref()
    }

    /// Compares the values of normalized operations with patterns that are normalized, too.
    ///
    /// # Errors
    /// Patterns that no normalized value matches, or too many patterns.
    pub(crate) fn with_spellings(mut self, spellings: &Spellings) -> Result<Self, RuleSetError> {
        let normalized = spellings.normalize_rules(&self.rules).map_err(RuleSetError::UnknownSpellings)?;
        self.normalized = normalized.map(Self::new).transpose()?.map(Box::new);
        self.spellings = spellings.clone();
        Ok(self)
    }

    /// Returns the set's number, which no other set of this process has. The default one has the number 0.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the spellings of normalized operations.
    pub fn spellings(&self) -> &Spellings {
        &self.spellings
    }

    /// Returns the rules that normalized operations are compared with. A key may have several patterns, and a value matches
    /// any of them.
    pub fn normalized(&self) -> &Self {
        self.normalized.as_deref().unwrap_or(self)
    }

    /// Returns the rules in their order of precedence.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Returns the rules that apply to `operation` with their indexes, in order: canaries and `and` rules, up to the
    /// first stop rule.
    #[inline]
    pub fn matches<'a>(&'a self, operation: &Operation, scratch: &'a mut Scratch) -> Matches<'a> {
        if let Some(domains) = &self.domains
            && let Some(found) = domains.find(operation, &mut scratch.descriptor)
        {
            return self.only(found, &scratch.selection);
        }
        match &self.normalized {
            Some(normalized) if operation.is_normalized => {
                self.matches_normalized(&normalized.matcher, operation, scratch)
            }
            _ => self.matches_values(&self.matcher, operation, scratch),
        }
    }

    /// Returns the index of the rule of ratelimit's domains that applies to `operation`. `None` if it has none of the domains.
    pub(super) fn find_in_domains(&self, operation: &Operation) -> Option<usize> {
        self.domains.as_ref()?.find(operation, &mut descriptor::Buffers::default())
    }

    /// Returns the further properties of ratelimit's limit for `operation`; `None` if it has no limit there.
    pub fn descriptor(&self, operation: &Operation) -> Option<&Descriptor> {
        self.rules.get(self.find_in_domains(operation)?)?.descriptor.as_deref()
    }

    /// Returns the rule with this index alone.
    fn only<'a>(&'a self, index: usize, selection: &'a Selection) -> Matches<'a> {
        let (block, word, bits) = matcher::place(index);
        Matches {
            rules: self,
            matcher: &self.matcher,
            selection,
            next_block: block + 1,
            words: 0,
            word,
            bits,
            special: None,
        }
    }

    // Apart, because few rules need it, and the usual matcher takes fewer instructions if it is the only one.
    #[inline(never)]
    fn matches_normalized<'a>(
        &'a self,
        normalized: &'a Matcher,
        operation: &Operation,
        scratch: &'a mut Scratch,
    ) -> Matches<'a> {
        self.matches_values(normalized, operation, scratch)
    }

    #[inline]
    fn matches_values<'a>(
        &'a self,
        matcher: &'a Matcher,
        values: &impl Values,
        scratch: &'a mut Scratch,
    ) -> Matches<'a> {
        let word = matcher.select_word(&mut scratch.selection, values);
        if word.is_none() {
            matcher.select(&mut scratch.selection, values);
        }
        let next_block = usize::from(word.is_some());
        let selection = &scratch.selection;
        let bits = word.unwrap_or_default();
        Matches { rules: self, matcher, selection, next_block, words: 0, word: 0, bits, special: None }
    }

    /// Returns the rules that apply to every operation that `rule` matches, like [`RuleSet::matches`].
    pub(super) fn matches_all_of<'a>(&'a self, rule: &'a Rule, scratch: &'a mut Scratch) -> Matches<'a> {
        let values = rule.operation.iter().map(|(key, pattern)| (key.as_str(), pattern.most_general_value())).collect();
        let general = MostGeneralOperation { rule, values };
        Matches { special: Some(rule), ..self.matches_values(&self.matcher, &general, scratch) }
    }

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

/// Iterator over matching rules, see [`RuleSet::matches`].
#[derive(Debug)]
pub struct Matches<'a> {
    rules: &'a RuleSet,
    matcher: &'a Matcher,
    selection: &'a Selection,
    next_block: usize,
    /// Words of the current block that have not been visited, as bits.
    words: u64,
    /// The current word of the current block.
    word: u32,
    /// Rules of the current word that have not been returned.
    bits: u64,
    /// A rule whose conditions the returned rules must contain.
    special: Option<&'a Rule>,
}

impl<'a> Iterator for Matches<'a> {
    type Item = (usize, &'a Rule);

    // Inlined, because it runs for each rule of each hit.
    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        let (index, found) = loop {
            while self.bits == 0 {
                self.advance()?;
            }
            let index = matcher::rule_index(self.next_block - 1, self.word, self.bits.trailing_zeros());
            self.bits &= self.bits - 1;
            // If no rule has a key, every bit is set, even those past the last rule.
            let found = self.rules.rules.get(index);
            let is_special = |special: &Rule| found.is_some_and(|found| !found.conditions_contain(special));
            if !self.special.is_some_and(is_special) {
                break (index, found);
            }
        };
        if found.is_none_or(|rule| rule.match_policy == MatchPolicy::Stop) {
            (self.bits, self.words, self.next_block) = (0, 0, self.matcher.blocks);
        }
        found.map(|rule| (index, rule))
    }
}

impl FusedIterator for Matches<'_> {}

impl Matches<'_> {
    /// Advances to the next word that may hold a rule, or to the next block; `None` at the end.
    #[inline(never)]
    fn advance(&mut self) -> Option<()> {
        let matcher = self.matcher;
        if self.words != 0 {
            self.word = self.words.trailing_zeros();
            self.words &= self.words - 1;
            self.bits = matcher.word(self.selection, self.next_block - 1, self.word);
        } else if self.next_block < matcher.blocks {
            self.words = matcher.summary(self.selection, self.next_block);
            self.next_block += 1;
        } else {
            return None;
        }
        Some(())
    }
}

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
fn index_in_name(name: &str) -> Option<usize> {
    let digits = name.strip_prefix(BY_POSITION)?;
    // Only this notation is a name: not `rule-01`.
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.starts_with('0');
    digits.parse::<usize>().ok().filter(|_| is_number)?.checked_sub(1)
}

/// The most general operation that a rule matches.
struct MostGeneralOperation<'a> {
    rule: &'a Rule,
    values: Vec<(&'a str, Vec<u8>)>,
}

impl Values for MostGeneralOperation<'_> {
    fn keys(&self) -> impl Iterator<Item = &str> {
        self.values.iter().map(|(key, _)| *key)
    }

    fn value(&self, key: &Key) -> Option<&[u8]> {
        self.values.iter().find(|(candidate, _)| *candidate == key.as_str()).map(|(_, value)| value.as_slice())
    }

    /// Returns a value that meets the rule's condition, if there is one. It meets each condition that contains the rule's,
    /// and perhaps others.
    fn value_for(&self, key: &Key, setting: &'static str) -> Option<Cow<'_, [u8]>> {
        let general = self.value(key)?;
        let own = self.rule.conditions().find(|own| own.setting() == setting && own.field == key.as_str());
        let is_exact = matches!(self.rule.pattern(key.as_str()), Some(Pattern::Literal(_)));
        let example = match own.filter(|_| !is_exact) {
            // No text or network matches this value.
            Some(own) if own.is_inverted => Some(Pattern::Any.most_general_value()),
            own => own.and_then(Condition::example),
        };
        Some(example.map_or(Cow::Borrowed(general), Cow::Owned))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::testing::{operation, rule, rules_strategy, values_strategy};
    use proptest::prelude::*;

    /// Matches by definition: in order, past canaries, up to the first stop rule.
    fn plain_loop(rules: &[Rule], operation: &Operation) -> Vec<usize> {
        let mut found = Vec::new();
        for (index, rule) in rules.iter().enumerate() {
            if rule.matches(operation) {
                found.push(index);
                if rule.match_policy == MatchPolicy::Stop {
                    break;
                }
            }
        }
        found
    }

    fn compiled(rules: &RuleSet, operation: &Operation, scratch: &mut Scratch) -> Vec<usize> {
        rules.matches(operation, scratch).map(|(index, _)| index).collect()
    }

    #[test]
    fn empty_rule_set_matches_nothing() {
        let rules = RuleSet::default();
        assert_eq!(rules.matches(&operation("a=1"), &mut Scratch::default()).count(), 0);
    }

    /// Among rules with the same keys, and among rules that each have their own.
    #[test]
    fn right_rule_is_found_among_many() {
        let path = |i: usize| format!("path=/service/{i}");
        let key = |i: usize| format!("key{i}=*");
        let kinds: [(&dyn Fn(usize) -> String, usize); 2] = [(&path, 10_000), (&key, 1_000)];
        for (pair, count) in kinds {
            let rules = (0..count).map(|i| rule(&format!("method=GET {}", pair(i)))).chain([rule("")]);
            let (rules, mut scratch) = (RuleSet::new(rules.collect()).unwrap(), Scratch::default());
            for i in [0, 63, 64, 500, 999, 4095, 4096, 8191, 9999].into_iter().filter(|i| *i < count) {
                assert_eq!(compiled(&rules, &operation(&format!("{} method=GET", pair(i))), &mut scratch), [i]);
            }
            assert_eq!(compiled(&rules, &operation(&format!("{} method=PUT", pair(7))), &mut scratch), [count]);
        }
    }

    proptest! {
        #[test]
        fn matches_the_same_rules_as_a_plain_loop(
            rules in rules_strategy(150), operations in prop::collection::vec(values_strategy(), 1..20), indexed in 0..4_usize
        ) {
            let matcher = Matcher::new(&rules, indexed).unwrap();
            let rules = RuleSet { rules, matcher, ..RuleSet::default() };
            let mut scratch = Scratch::default();
            for values in operations {
                let operation = values.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
                prop_assert_eq!(compiled(&rules, &operation, &mut scratch), plain_loop(rules.rules(), &operation));
            }
        }
    }

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
