//! The origin of requests.

/// A number that stands for a client's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Origin(pub u128);
