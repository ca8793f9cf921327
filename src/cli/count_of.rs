//! Counts with their noun.

/// Returns the count for people: `1 rule`, `2 rules`.
pub fn count_of(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}
