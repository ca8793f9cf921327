//! A user in force.

use std::ops::Deref;
use std::sync::OnceLock;

use super::user::User;
use crate::rules::Scope;

/// A user in force, with its compiled scope.
#[derive(Debug)]
pub struct ActiveUser {
    user: User,
    scope: Scope,
    /// The version of the users that turned the user on.
    since: OnceLock<u64>,
}

impl ActiveUser {
    /// Compiles the scope of a user.
    pub fn new(user: User) -> Self {
        Self { scope: user.scope.compile(), user, since: OnceLock::new() }
    }

    /// Returns the version of the users that turned the user on.
    pub fn since(&self) -> u64 {
        self.since.get().copied().unwrap_or_default()
    }

    /// Sets it, once the earlier version is known.
    pub(super) fn set_since(&self, version: u64) {
        // It is set only once.
        let _ = self.since.set(version);
    }

    /// Returns the compiled scope, which all clients of the user share.
    pub fn compiled_scope(&self) -> &Scope {
        &self.scope
    }
}

impl Deref for ActiveUser {
    type Target = User;

    fn deref(&self) -> &User {
        &self.user
    }
}
