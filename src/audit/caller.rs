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
}

impl Caller {
    /// Creates the caller of a front. `user` is `None` for a client that has not authenticated.
    pub fn client(front: &'static str, address: Option<SocketAddr>, user: Option<Arc<str>>) -> Self {
        Self { user, front, address }
    }

    /// Creates the caller for a file that has changed.
    pub const fn file() -> Self {
        Self { user: None, front: "file", address: None }
    }

    /// Creates the caller for a signal to the process.
    pub const fn signal() -> Self {
        Self { user: None, front: "signal", address: None }
    }

    /// Returns whether this is a client that has not authenticated.
    pub fn is_stranger(&self) -> bool {
        self.user.is_none() && self.address.is_some()
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
