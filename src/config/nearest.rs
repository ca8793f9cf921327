//! Suggests corrections for misspelled words.

/// Longer than every known word. The rest of a longer word is ignored.
const LONGEST_WORD: usize = 64;

/// Returns the word in `known` that is most similar to `word`, ignoring case. A word that contains `word` wins.
pub(super) fn nearest<'a>(word: &str, known: &[&'a str]) -> &'a str {
    let lower: String = word.chars().take(LONGEST_WORD).flat_map(char::to_lowercase).collect();
    let difference = |candidate: &&&str| {
        let candidate = candidate.to_lowercase();
        (!candidate.contains(&lower), strsim::osa_distance(&lower, &candidate))
    };
    known.iter().min_by_key(difference).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggests_the_most_similar_word() {
        let known = ["creditLimit", "resetSeconds", "actorField", "matchPolicy", "label", "comment"];
        assert_eq!(nearest("credit_limit", &known), "creditLimit");
        assert_eq!(nearest("resetSecond", &known), "resetSeconds");
        assert_eq!(nearest("LABLE", &known), "label");
        assert_eq!(nearest("limit", &known), "creditLimit");
    }
}
