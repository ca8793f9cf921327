//! The terms of a reservation, and names that clients give to reservations and leases.

use super::bounds::MAX_CLIENT_ID;

/// The terms of a reservation.
#[derive(Debug)]
pub(super) struct Terms {
    pub ttl_seconds: Option<u32>,
    /// Maximum TTL of a reservation that is not a lease (seconds).
    pub max_ttl_seconds: u32,
    pub record_id: Vec<u8>,
    /// Whether each counter sets aside at most as many credits as it can hold.
    pub is_clamped: bool,
}

/// Returns whether a client may give this name to a reservation.
pub(super) fn is_client_id(id: &[u8]) -> bool {
    (1..=MAX_CLIENT_ID).contains(&id.len())
}

/// Appends the record id of a reservation that the client named.
pub(super) fn write_client_record_id(id: &[u8], out: &mut Vec<u8>) {
    out.push(b'c');
    out.extend_from_slice(id);
}
