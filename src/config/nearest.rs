//! Suggests what a misspelt word was meant to be.

/// No known word is nearly as long; what comes after it is not looked at.
const LONGEST_WORD: usize = 64;

/// The word of `known` that is most like `word`, whatever its case; one that contains it is likest.
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
    fn suggests_what_was_meant() {
        let known = ["creditLimit", "resetSeconds", "actorField", "matchPolicy", "label", "comment"];
        assert_eq!(nearest("credit_limit", &known), "creditLimit");
        assert_eq!(nearest("resetSecond", &known), "resetSeconds");
        assert_eq!(nearest("LABLE", &known), "label");
        assert_eq!(nearest("limit", &known), "creditLimit");
    }
}
