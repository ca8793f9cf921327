//! A set of rules as bits, in two levels, so that thousands of small sets stay small and empty stretches are skipped.
//!
//! A word holds 64 rules, and a block 64 words. Each block records which of its words are not zero, and only those are
//! stored.

/// Index of a set in the matcher's list of sets.
pub type SetId = u32;

/// A set of rule indexes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RuleBits {
    blocks: Box<[Block]>,
    words: Box<[u64]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Block {
    /// Bit `i` is set if word `i` of this block is not zero.
    summary: u64,
    /// Number of stored words of all earlier blocks.
    rank: u32,
}

const WORDS_PER_BLOCK: usize = u64::BITS as usize;
pub const RULES_PER_WORD: usize = u64::BITS as usize;
const RULES_PER_BLOCK: usize = WORDS_PER_BLOCK * RULES_PER_WORD;

/// Returns the number of blocks in a set of up to `rules` rules.
pub fn block_count(rules: usize) -> usize {
    rules.div_ceil(RULES_PER_BLOCK)
}

/// Returns the index of the rule at bit `bit` of word `word` of block `block`.
pub fn rule_index(block: usize, word: u32, bit: u32) -> usize {
    block * RULES_PER_BLOCK + word as usize * RULES_PER_WORD + bit as usize
}

impl RuleBits {
    /// Creates the set of `indexes`, which must ascend and be below `rules`.
    pub fn new(indexes: &[u32], rules: usize) -> Self {
        let mut blocks = vec![Block::default(); block_count(rules)];
        let mut words = Vec::new();
        for word in indexes.chunk_by(|a, b| word_of(*a) == word_of(*b)) {
            let Some(first) = word.first() else { continue };
            words.push(word.iter().fold(0, |bits, index| bits | 1 << (*index as usize % RULES_PER_WORD)));
            if let Some(block) = blocks.get_mut(word_of(*first) / WORDS_PER_BLOCK) {
                block.summary |= 1 << (word_of(*first) % WORDS_PER_BLOCK);
            }
        }
        let mut rank = 0;
        for block in &mut blocks {
            block.rank = rank;
            rank += block.summary.count_ones();
        }
        Self { blocks: blocks.into(), words: words.into() }
    }

    /// Returns which words of a block are not zero, as bits.
    pub fn summary(&self, block: usize) -> u64 {
        self.blocks.get(block).map_or(0, |block| block.summary)
    }

    /// Returns the bits of word `word` (below 64) of a block.
    pub fn word(&self, block: usize, word: u32) -> u64 {
        let Some(block) = self.blocks.get(block) else { return 0 };
        let flag = 1_u64 << word;
        if block.summary & flag == 0 {
            return 0;
        }
        let before = (block.summary & (flag - 1)).count_ones();
        self.words.get((block.rank + before) as usize).copied().unwrap_or(0)
    }
}

fn word_of(index: u32) -> usize {
    index as usize / RULES_PER_WORD
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn indexes(bits: &RuleBits, rules: usize) -> Vec<u32> {
        let mut found = Vec::new();
        for block in 0..block_count(rules) {
            for word in (0..64).filter(|word| bits.summary(block) >> word & 1 == 1) {
                let set = (0..64).filter(|bit| bits.word(block, word) >> bit & 1 == 1);
                found.extend(set.map(|bit| rule_index(block, word, bit) as u32));
            }
        }
        found
    }

    proptest! {
        #[test]
        fn set_returns_its_indexes(set in prop::collection::btree_set(0_u32..20_000, 0..200)) {
            let given: Vec<_> = set.into_iter().collect();
            prop_assert_eq!(indexes(&RuleBits::new(&given, 20_000), 20_000), given);
        }

        #[test]
        fn words_missing_from_the_summary_are_zero(set in prop::collection::btree_set(0_u32..9_000, 0..9)) {
            let given: Vec<_> = set.iter().copied().collect();
            let bits = RuleBits::new(&given, 9_000);
            let words: BTreeSet<_> = set.iter().map(|index| index / 64).collect();
            for word in 0..9_000_u32.div_ceil(64) {
                prop_assert_eq!(bits.word((word / 64) as usize, word % 64) != 0, words.contains(&word));
            }
        }
    }
}
