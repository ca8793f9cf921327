//! Describes the combined grant of a stack for people.

use super::{Quota, Rule};

/// Describes the grant of a stack: `100 in 60 s and 5,000 a day from 00:00 Europe/Berlin, for each key`.
pub fn describe_stack(members: &[&Rule]) -> String {
    let limits: Vec<_> = members.iter().filter(|rule| !matches!(rule.quota, Quota::Always { .. })).collect();
    let actors = |rule: &Rule| format!("for each {}", rule.actor_fields.join(" and "));
    let is_shared =
        limits.windows(2).all(|pair| matches!(pair, [one, other] if one.actor_fields == other.actor_fields));
    let words = |rule: &&&Rule| {
        let mut text = grants(rule);
        if !is_shared && !rule.actor_fields.is_empty() {
            text.push(' ');
            text.push_str(&actors(rule));
        }
        text
    };
    let mut text = limits.iter().map(words).collect::<Vec<_>>().join(" and ");
    if let Some(rule) = limits.first().filter(|rule| is_shared && !rule.actor_fields.is_empty()) {
        text.push_str(", ");
        text.push_str(&actors(rule));
    }
    if text.is_empty() { "always allows".to_owned() } else { text }
}

/// Describes the grant of one rule: `5,000 a day from 00:00 UTC at the cost in tokens`.
fn grants(rule: &Rule) -> String {
    let settings = rule.settings.to_string();
    let mut text = match settings.strip_prefix("allows ").and_then(|grants| grants.split_once(' ')) {
        Some((credits, time)) => format!("{} {time}", in_thousands(credits)),
        None => settings,
    };
    for words in rule.cost_words() {
        text.push_str(&format!(" {words}"));
    }
    text
}

/// Inserts a comma before every three digits.
fn in_thousands(digits: &str) -> String {
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
        assert_eq!(["7", "999", "1000", "12345678"].map(in_thousands), ["7", "999", "1,000", "12,345,678"]);
    }
}
