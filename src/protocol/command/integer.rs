//! Numbers in arguments, by Redis's rules.

/// Parses an integer as Redis does: without a plus sign or leading zeros.
pub(super) fn integer(text: &[u8]) -> Option<i64> {
    let number = std::str::from_utf8(text).ok()?.parse().ok()?;
    (itoa::Buffer::new().format(number).as_bytes() == text).then_some(number)
}

/// Parses the number of a connection.
pub(super) fn client_id(text: &[u8]) -> Option<u64> {
    integer(text).and_then(|id| u64::try_from(id).ok()).filter(|id| *id > 0)
}
