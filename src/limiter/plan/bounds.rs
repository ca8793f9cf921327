//! Bounds on what a request may bring.

/// Requests in a group, at most.
pub const MAX_TOGETHER: usize = 16;
/// Longest name that a client may give a reservation (bytes).
pub const MAX_CLIENT_ID: usize = 255;
/// Longest idempotency key (bytes).
pub const MAX_IDEMPOTENCY_KEY: usize = 255;
/// The longest time of a reservation, unless the operator sets another (seconds).
pub const DEFAULT_MAX_RESERVATION_TTL: u32 = 60;
