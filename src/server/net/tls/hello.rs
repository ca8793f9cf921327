//! The first bytes of a TLS connection.

/// Type of the first record of a TLS connection (RFC 8446, 5.1).
pub const HANDSHAKE: u8 = 22;
/// First byte of the version in that record.
const VERSION: u8 = 3;

/// Returns whether a connection's first bytes begin a TLS handshake.
pub fn is_handshake(first: &[u8]) -> bool {
    first.starts_with(&[HANDSHAKE, VERSION])
}
