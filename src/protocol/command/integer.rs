//! Numbers among the arguments, by Redis's rules.

/// Redis reads an integer only from the text that it would write for it: without a plus sign or leading zeros.
pub(super) fn integer(text: &[u8]) -> Option<i64> {
    let number = std::str::from_utf8(text).ok()?.parse().ok()?;
    (itoa::Buffer::new().format(number).as_bytes() == text).then_some(number)
}

/// The number of a connection.
pub(super) fn client_id(text: &[u8]) -> Option<u64> {
    integer(text).and_then(|id| u64::try_from(id).ok()).filter(|id| *id > 0)
}
