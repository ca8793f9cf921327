//! The client, file or signal that a change comes from.

use std::net::SocketAddr;
use std::sync::Arc;

/// Stands for a user or an address that does not exist.
const NONE: &str = "-";

/// The user, the front and the address that a change comes from.
#[derive(Debug, Clone)]
pub struct Caller {
    user: Option<Arc<str>>,
    front: &'static str,
    address: Option<SocketAddr>,
    is_stranger: bool,
}

impl Caller {
    /// Creates the caller of a front. `user` is `None` for a client that has not authenticated.
    pub fn client(front: &'static str, address: Option<SocketAddr>, user: Option<Arc<str>>) -> Self {
        let is_stranger = user.is_none() && address.is_some();
        Self { user, front, address, is_stranger }
    }

    /// Returns the caller of a client who has a name, but is as unknown to the operator as one who has not authenticated.
    pub fn as_stranger(self) -> Self {
        Self { is_stranger: true, ..self }
    }

    /// Creates the caller for a file that has changed.
    pub const fn file() -> Self {
        Self { user: None, front: "file", address: None, is_stranger: false }
    }

    /// Creates the caller for a signal to the process.
    pub const fn signal() -> Self {
        Self { user: None, front: "signal", address: None, is_stranger: false }
    }

    /// Returns whether this is a client that has not authenticated, or a customer with a token.
    pub fn is_stranger(&self) -> bool {
        self.is_stranger
    }

    /// Returns whether this is a client, and not a file or a signal.
    pub fn is_client(&self) -> bool {
        self.address.is_some() || self.user.is_some()
    }

    /// Returns the user's name, or `-`.
    pub fn user(&self) -> &str {
        self.user.as_deref().unwrap_or(NONE)
    }

    /// Returns the front's name.
    pub fn front(&self) -> &'static str {
        self.front
    }

    /// Returns the address as text, or `-`.
    pub fn address(&self) -> String {
        self.address.map_or_else(|| NONE.to_owned(), |address| address.to_string())
    }
}
