//! The identity of a client: its user, and its rights.

use std::sync::Arc;

use super::active_user::ActiveUser;
use super::category::{Categories, Category};
use super::credentials::Credential;
use super::tokens::TokenGrant;
use super::user::User;
use super::verified::Login;
use crate::rules::Scope;

/// A client's identity. It is valid for one version of the users: see [`super::Authority::refresh`].
#[derive(Debug, Clone)]
pub struct Identity {
    /// `None` for a client without a name.
    user: Option<Arc<ActiveUser>>,
    credential: Credential,
    rights: Categories,
    scope: Scope,
    revision: u64,
}

/// The user lacks the category of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the category {0} is needed")]
pub struct Forbidden(pub Category);

impl Identity {
    /// The identity of a client without a name that may do everything.
    pub const OPEN: Self = Self {
        user: None,
        credential: Credential::None,
        rights: Categories::ALL,
        scope: Scope::EVERYTHING,
        revision: 0,
    };

    pub(super) fn new(Login { user, credential }: Login, revision: u64) -> Self {
        let (rights, scope) = (user.rights(), user.compiled_scope().clone());
        Self { user: Some(user), credential, rights, scope, revision }
    }

    /// Returns the identity of a client with a token for one actor. Its user is in no file, and has no right but the status
    /// of that actor.
    pub(super) fn of_token(grant: TokenGrant, revision: u64) -> Self {
        let scope = grant.into_scope();
        // No user of a file has a colon in its name.
        let name = format!("token:{}", scope.actor_text().unwrap_or_default());
        let rights = Categories::NONE.with(Category::Status);
        let user = ActiveUser::new(User { is_on: true, granted: rights, scope, ..User::new(&name) });
        let scope = user.compiled_scope().clone();
        Self { user: Some(Arc::new(user)), credential: Credential::ActorToken, rights, scope, revision }
    }

    pub(super) fn unknown(revision: u64) -> Self {
        let (rights, scope) = (Categories::NONE, Scope::nothing());
        Self { user: None, credential: Credential::None, rights, scope, revision }
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

    /// Returns whether the client has a token for one actor: it is a customer of the operator's product.
    pub fn has_actor_token(&self) -> bool {
        self.credential == Credential::ActorToken
    }

    /// Returns the user's name; `None` for a client without one.
    pub fn name(&self) -> Option<&str> {
        self.user.as_ref().map(|user| &*user.name)
    }

    /// Returns the rules and the actor that the client may use.
    #[inline]
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    pub(super) fn user(&self) -> Option<&Arc<ActiveUser>> {
        self.user.as_ref()
    }

    /// Returns the version of the users since which the user is on and has the credential of the login.
    pub fn login_since(&self) -> Option<u64> {
        self.user().map(|user| user.since(&self.credential))
    }

    pub(super) fn credential(&self) -> &Credential {
        &self.credential
    }

    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    /// Takes all rights away.
    pub fn revoke(&mut self) {
        (self.rights, self.scope) = (Categories::NONE, Scope::nothing());
    }

    /// Takes over the user's state in this version of the users. Without one, the client has no rights anymore.
    pub(super) fn renew(&mut self, user: Option<&Arc<ActiveUser>>, revision: u64) {
        self.revision = revision;
        match user {
            Some(user) => {
                (self.rights, self.scope) = (user.rights(), user.compiled_scope().clone());
                self.user = Some(Arc::clone(user));
            }
            None => self.revoke(),
        }
    }
}
