//! A user in force.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use super::credentials::Credential;
use super::user::User;
use crate::rules::Scope;

/// A user in force, with its compiled scope.
#[derive(Debug)]
pub struct ActiveUser {
    user: User,
    scope: Scope,
    /// Each credential, and the version of the users since which the user is on and has it.
    since: OnceLock<Vec<(Credential, u64)>>,
}

impl ActiveUser {
    /// Compiles the scope of a user.
    pub fn new(user: User) -> Self {
        Self { scope: user.scope.compile(), user, since: OnceLock::new() }
    }

    /// Returns the version of the users since which the user is on and has the credential.
    pub fn since(&self, credential: &Credential) -> u64 {
        let since = self.since.get().and_then(|since| since.iter().find(|(known, _)| known == credential));
        since.map_or(0, |(_, version)| *version)
    }

    /// Sets it for each credential. `before` is the user in the version before this one, if it was on.
    pub(super) fn set_since(&self, before: Option<&Self>, version: u64) {
        let with_since = |credential: Credential| {
            let kept = before.filter(|before| before.has(&credential));
            let since = kept.map_or(version, |before| before.since(&credential));
            (credential, since)
        };
        let digests = self.digests.iter().map(|digest| Credential::Digest(*digest));
        let hashes = self.slow_hashes.iter().map(|hash| Credential::SlowHash(Arc::new(hash.clone())));
        let certificates = self.certificates.iter().map(|name| Credential::Certificate(Arc::clone(name)));
        // It is set only once.
        let _ = self.since.set(digests.chain(hashes).chain(certificates).map(with_since).collect());
    }

    /// Returns whether the user has the credential.
    pub(super) fn has(&self, credential: &Credential) -> bool {
        match credential {
            Credential::None | Credential::ActorToken => false,
            Credential::Digest(digest) => self.digests.contains(digest),
            Credential::SlowHash(hash) => self.slow_hashes.contains(hash),
            Credential::Certificate(name) => self.certificates.contains(name),
        }
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
