//! A short fingerprint of rules, to compare two servers or two loads.

use siphasher::sip128::{Hasher128, SipHasher13};
use std::hash::Hasher;

use super::{Format, write};
use crate::rules::Rule;

/// 32 hexadecimal digits that are the same for the same rules in the same order, whatever their file's format, and on
/// every machine. It is not secret, and not safe against deliberate collisions.
pub fn fingerprint(rules: &[Rule]) -> String {
    let mut hasher = SipHasher13::new();
    // Every rule can be written as JSON.
    hasher.write(write(rules, Format::Json).unwrap_or_default().as_bytes());
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
    fn it_is_the_rules_and_not_the_file_s() {
        let ini = of("; mine\n[default]\ncreditLimit = 5\nresetSeconds = 60\n", Format::Ini);
        assert_eq!(ini.len(), 32);
        assert_eq!(ini, of(r#"{"default": {"creditLimit": 5, "resetSeconds": 60}}"#, Format::Json));
        assert_ne!(ini, of(r#"{"default": {"creditLimit": 6, "resetSeconds": 60}}"#, Format::Json));
    }
}
