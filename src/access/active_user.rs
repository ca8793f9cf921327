//! A user in force.

use std::ops::Deref;

use super::user::User;
use crate::rules::Scope;

/// A user in force, with its compiled scope.
#[derive(Debug)]
pub struct ActiveUser {
    user: User,
    scope: Scope,
}

impl ActiveUser {
    /// Compiles the scope of a user.
    pub fn new(user: User) -> Self {
        Self { scope: user.scope.compile(), user }
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
