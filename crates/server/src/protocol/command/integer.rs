//! Numbers in arguments, by Redis's rules.

use super::error::CommandError;

/// Parses an integer as Redis does: without a plus sign or leading zeros.
pub(super) fn integer(text: &[u8]) -> Option<i64> {
    let number = std::str::from_utf8(text).ok()?.parse().ok()?;
    (itoa::Buffer::new().format(number).as_bytes() == text).then_some(number)
}

/// Parses the number of a connection.
pub(super) fn client_id(text: &[u8]) -> Option<u64> {
    integer(text).and_then(|id| u64::try_from(id).ok()).filter(|id| *id > 0)
}

/// Parses a whole number from 1. `what` is the option's name.
pub(super) fn positive(what: &'static str, value: &[u8]) -> Result<u64, CommandError> {
    let number = integer(value).and_then(|number| u64::try_from(number).ok()).filter(|number| *number > 0);
    number.ok_or_else(|| CommandError::not_positive(what, value))
}
