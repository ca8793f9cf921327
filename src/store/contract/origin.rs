//! The origin of requests.

/// A number that stands for a client's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Origin(u128);

impl Origin {
    pub fn new(address: u128) -> Self {
        Self(address)
    }
}
