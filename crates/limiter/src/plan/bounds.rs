//! Bounds on a request.

/// Maximum number of requests in a group.
pub const MAX_TOGETHER: usize = 16;
/// Maximum length of a name that a client gives a reservation (bytes).
pub const MAX_CLIENT_ID: usize = 255;
/// Maximum length of an idempotency key (bytes).
pub const MAX_IDEMPOTENCY_KEY: usize = 255;
/// Default for the maximum TTL of reservations (seconds).
pub const DEFAULT_MAX_RESERVATION_TTL: u32 = 600;
