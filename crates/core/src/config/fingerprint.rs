//! A short fingerprint of rules, for comparing two servers or two loads.

use siphasher::sip128::{Hasher128, SipHasher13};
use std::hash::Hasher;

use super::{Format, write};
use crate::rules::Rule;

/// Returns 32 hexadecimal digits that depend only on the rules, their lists and their order, not on the file's format or the
/// machine. They are not secret, and deliberate collisions are possible.
pub fn fingerprint(rules: &[Rule]) -> String {
    let mut hasher = SipHasher13::new();
    // Every rule can be written as JSON.
    hasher.write(write(rules, Format::Json).unwrap_or_default().as_bytes());
    for list in rules.iter().filter_map(|rule| rule.list.as_ref()?.list()) {
        hasher.write(format!("\n{:032x}", list.digest()).as_bytes());
    }
    format!("{:032x}", hasher.finish128().as_u128())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    fn of(text: &str, format: Format) -> String {
        fingerprint(parse(text, format, "rules").unwrap().rules.rules())
    }

    #[test]
    fn fingerprint_depends_on_the_rules_not_the_file() {
        let ini = of("; mine\n[default]\ncreditLimit = 5\nresetSeconds = 60\n", Format::Ini);
        assert_eq!(ini.len(), 32);
        assert_eq!(ini, of(r#"{"default": {"creditLimit": 5, "resetSeconds": 60}}"#, Format::Json));
        assert_ne!(ini, of(r#"{"default": {"creditLimit": 6, "resetSeconds": 60}}"#, Format::Json));
    }
}
