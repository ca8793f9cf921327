//! Describes the combined grant of a stack for people.

use super::{Quota, Rule};

/// Describes the grant of a stack: `100 in 60 s for each key; 5,000 a day from 00:00 Europe/Berlin for each key`.
pub fn describe_stack(members: &[&Rule]) -> String {
    let words = |rule: &&&Rule| match rule.quota {
        Quota::Always { .. } => None,
        Quota::Never => Some(format!("[{rule}] denies everything")),
        Quota::Limited(_) if rule.actor_fields.is_empty() => Some(grants(rule)),
        Quota::Limited(_) => Some(format!("{} for each {}", grants(rule), rule.actor_fields.join(" and "))),
    };
    let limits: Vec<_> = members.iter().filter_map(|rule| words(&rule)).collect();
    if limits.is_empty() { "always allows".to_owned() } else { limits.join("; ") }
}

/// Describes the grant of one rule: `5,000 a day from 00:00 UTC at the cost in tokens`.
fn grants(rule: &Rule) -> String {
    let limit = rule.settings.describe_limit(in_thousands);
    [limit].into_iter().chain(rule.cost_words()).collect::<Vec<_>>().join(" ")
}

/// Writes a comma before every three digits.
fn in_thousands(credits: u64) -> String {
    let digits = credits.to_string();
    let commas = |(place, digit): (usize, char)| {
        let is_after_comma = place > 0 && (digits.len() - place).is_multiple_of(3);
        is_after_comma.then_some(',').into_iter().chain([digit])
    };
    digits.chars().enumerate().flat_map(commas).collect()
}

#[cfg(test)]
mod tests {
    use super::in_thousands;

    #[test]
    fn commas_separate_thousands() {
        assert_eq!([7, 999, 1_000, 12_345_678].map(in_thousands), ["7", "999", "1,000", "12,345,678"]);
    }
}
