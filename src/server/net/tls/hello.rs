//! How a connection over TLS begins.

/// The type of the record that begins every connection over TLS (RFC 8446, 5.1).
pub const HANDSHAKE: u8 = 22;
/// The first byte of every version's number there.
const VERSION: u8 = 3;

/// Whether a connection's first bytes begin a TLS handshake.
pub fn is_handshake(first: &[u8]) -> bool {
    first.starts_with(&[HANDSHAKE, VERSION])
}
