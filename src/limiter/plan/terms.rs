//! The terms of a reservation, and the names that clients give reservations and leases.

use super::bounds::MAX_CLIENT_ID;

/// The terms of a reservation.
#[derive(Debug)]
pub(super) struct Terms {
    pub ttl_seconds: Option<u32>,
    /// The longest time of anything but a lease (seconds).
    pub max_ttl_seconds: u32,
    pub record_id: Vec<u8>,
    /// No counter is asked for more than it can hold.
    pub is_clamped: bool,
}

/// Whether a client may give this name to a reservation.
pub(super) fn is_client_id(id: &[u8]) -> bool {
    (1..=MAX_CLIENT_ID).contains(&id.len())
}

/// Appends the record id of a reservation that the client named.
pub(super) fn write_client_record_id(id: &[u8], out: &mut Vec<u8>) {
    out.push(b'c');
    out.extend_from_slice(id);
}
