//! The credentials of a client.

use std::sync::Arc;

use super::secret::{Digest, SlowHash};

/// Credentials that a client gives to log in. The debug format hides passwords.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum Given<'a> {
    /// A user and its password.
    User {
        /// Name of the user.
        name: &'a [u8],
        /// The password.
        password: &'a [u8],
    },
    /// The password of the user `default`.
    Password(&'a [u8]),
    /// A bearer token: any user's `#` hash is of it, or it is the password of `default`.
    Token(&'a [u8]),
}

impl<'a> Given<'a> {
    /// Returns the password or the token.
    pub(super) fn secret(&self) -> &'a [u8] {
        match self {
            Self::User { password, .. } => password,
            Self::Password(secret) | Self::Token(secret) => secret,
        }
    }
}

impl std::fmt::Debug for Given<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::User { name, .. } => write!(f, "User({})", name.escape_ascii()),
            Self::Password(_) => f.write_str("Password(***)"),
            Self::Token(_) => f.write_str("Token(***)"),
        }
    }
}

/// The credential that a client has logged in with. A user who has lost it has no rights anymore.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credential {
    /// None: a part of the server that is open, or a client that has not logged in.
    None,
    /// A SHA-256 hash of the user.
    Digest(Digest),
    /// An argon2id hash of the user.
    SlowHash(Arc<SlowHash>),
    /// A client certificate with this name.
    Certificate(Arc<str>),
    /// A token for one actor. It is verified for each request, and belongs to no user of the file.
    ActorToken,
}
