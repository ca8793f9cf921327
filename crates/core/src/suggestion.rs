//! Suggests corrections for misspelled words, and lists words.

/// Maximum length that is compared, which is longer than every known word.
const LONGEST_WORD: usize = 64;
/// A shorter word is not searched for inside known words.
const SHORTEST_PART: usize = 3;
/// Two words that are at least this similar (Jaro-Winkler, from 0 to 1) count as a misspelling.
const MIN_SIMILARITY: f64 = 0.85;

/// Returns the word in `known` that `word` probably stands for, ignoring case. A word that contains `word` wins.
pub fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let lower: String = word.chars().take(LONGEST_WORD).flat_map(char::to_lowercase).collect();
    let is_long = lower.chars().count() >= SHORTEST_PART;
    let likeness = |candidate: &str| {
        let candidate = candidate.to_lowercase();
        if is_long && candidate.contains(&lower) { 1.0 } else { strsim::jaro_winkler(&lower, &candidate) }
    };
    let scored = known.iter().map(|candidate| (likeness(candidate), *candidate));
    let best = scored.filter(|(likeness, _)| *likeness >= MIN_SIMILARITY).reduce(|a, b| if b.0 > a.0 { b } else { a });
    best.map(|(_, candidate)| candidate)
}

/// Returns the advice for an unknown word: the word that was probably meant, and all known words.
pub fn advice(nearest: Option<&str>, known: &[&str]) -> String {
    let quoted: Vec<_> = known.iter().map(|word| format!("`{word}`")).collect();
    match nearest {
        Some(nearest) => format!("did you mean `{nearest}`? The values are {}", list(&quoted, "and")),
        None => format!("write {}", list(&quoted, "or")),
    }
}

/// Lists words: `4, 11 and 18`.
pub fn list(words: &[String], conjunction: &str) -> String {
    match words {
        [most @ .., last] if !most.is_empty() => format!("{} {conjunction} {last}", most.join(", ")),
        words => words.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::testing::cases;

    const KEYS: [&str; 8] =
        ["creditLimit", "resetSeconds", "per", "window", "actorField", "matchPolicy", "label", "comment"];
    const ALGORITHMS: [&str; 3] = ["fixed-window", "leaky-bucket", "concurrency"];

    #[test]
    fn suggests_the_most_similar_word() {
        let rows = "credit_limit => creditLimit|creditlimit => creditLimit|resetSecond => resetSeconds|LABLE => label|\
            limit => creditLimit|seconds => resetSeconds|actor => actorField|policy => matchPolicy";
        for (word, meant) in cases(rows) {
            assert_eq!(nearest(word, &KEYS), Some(meant), "{word}");
        }
    }

    #[test]
    fn nothing_is_suggested_for_an_unrelated_word() {
        for word in ["foo", "", "x", "zzzzzz", "priority"] {
            assert_eq!(nearest(word, &KEYS), None, "{word}");
        }
    }

    #[test]
    fn advice_names_all_words() {
        assert_eq!(
            advice(Some("leaky-bucket"), &ALGORITHMS),
            "did you mean `leaky-bucket`? The values are `fixed-window`, `leaky-bucket` and `concurrency`"
        );
        assert_eq!(advice(None, &ALGORITHMS[..1]), "write `fixed-window`");
    }
}
