//! The identity of a client: its user, and its rights.

use std::sync::Arc;

use super::category::{Categories, Category};
use super::credentials::Credential;
use super::scope_text::ScopeText;
use super::user::User;
use super::verified::Login;

/// A client's identity. It is valid for one version of the users: see [`super::Authority::refresh`].
#[derive(Debug, Clone)]
pub struct Identity {
    /// `None` for a client without a name.
    user: Option<Arc<User>>,
    credential: Credential,
    rights: Categories,
    revision: u64,
}

/// The user lacks the category of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the category {0} is needed")]
pub struct Forbidden(pub Category);

impl Identity {
    /// The identity of a client without a name that may do everything.
    pub const OPEN: Self = Self { user: None, credential: Credential::None, rights: Categories::ALL, revision: 0 };

    pub(super) fn new(Login { user, credential }: Login, revision: u64) -> Self {
        Self { rights: user.rights(), user: Some(user), credential, revision }
    }

    pub(super) fn unknown(revision: u64) -> Self {
        Self { user: None, credential: Credential::None, rights: Categories::NONE, revision }
    }

    /// Checks whether the client may send a request of this category. All fronts call this before a request is planned.
    ///
    /// # Errors
    /// It may not.
    #[inline]
    pub fn may(&self, category: Category) -> Result<(), Forbidden> {
        if self.rights.contains(category) { Ok(()) } else { Err(Forbidden(category)) }
    }

    /// Returns whether the client may send any request. Otherwise it has to log in first.
    #[inline]
    pub fn is_admitted(&self) -> bool {
        !self.rights.is_empty()
    }

    /// Returns the user's name; `None` for a client without one.
    pub fn name(&self) -> Option<&str> {
        self.user.as_ref().map(|user| &*user.name)
    }

    /// Returns the scope of the user; `None` if everything is in scope.
    pub fn scope(&self) -> Option<&ScopeText> {
        self.user.as_ref().filter(|user| user.is_scoped()).map(|user| &user.scope)
    }

    pub(super) fn user(&self) -> Option<&Arc<User>> {
        self.user.as_ref()
    }

    pub(super) fn credential(&self) -> &Credential {
        &self.credential
    }

    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    /// Takes over the user's state in this version of the users. Without one, the client has no rights anymore.
    pub(super) fn renew(&mut self, user: Option<&Arc<User>>, revision: u64) {
        self.revision = revision;
        self.rights = user.map_or(Categories::NONE, |user| user.rights());
        if let Some(user) = user {
            self.user = Some(Arc::clone(user));
        }
    }
}
