//! The users in force, as one value that a reload replaces.

use std::collections::{BTreeMap, HashMap};
use std::iter::repeat_n;
use std::sync::Arc;

use super::active_user::ActiveUser;
use super::credentials::{Credential, Given};
use super::secret::{Digest, MAX_PASSWORD_BYTES, SlowHash};
use super::user::{DEFAULT_USER, User};
use super::verified::{Login, Verified};

/// Maximum number of different costs that decoys have. `divvy access check` warns of the second one.
const MAX_COSTS: usize = 4;

/// The users of one version of the access file, and of `--requirepass`.
#[derive(Debug)]
pub struct Users {
    by_name: HashMap<Arc<str>, Arc<ActiveUser>>,
    by_digest: HashMap<Digest, Arc<ActiveUser>>,
    by_certificate: HashMap<Arc<str>, Arc<ActiveUser>>,
    /// Hashes of unknown passwords. For each cost, there are as many as the greatest number of hashes that a user has with
    /// this cost. So each failing attempt checks hashes with the same costs, whether the user exists or not.
    decoys: Vec<Arc<SlowHash>>,
    verified: Verified,
    /// Number of the version, from 0.
    version: u64,
}

/// The argon2id hashes to check for a login.
#[derive(Debug)]
pub struct SlowCheck {
    /// The hashes of the user, and decoys.
    hashes: Vec<Arc<SlowHash>>,
    /// The user, and the number of its own hashes, which come first.
    candidate: Option<(Arc<ActiveUser>, usize)>,
}

impl Users {
    /// Prepares the users.
    ///
    /// # Errors
    /// The system provides no random bytes.
    pub fn new(users: impl IntoIterator<Item = User>) -> Result<Self, String> {
        let (mut by_name, mut by_digest, mut by_certificate) = (HashMap::new(), HashMap::new(), HashMap::new());
        for user in users {
            let user = Arc::new(ActiveUser::new(user));
            by_digest.extend(user.digests.iter().map(|digest| (*digest, Arc::clone(&user))));
            by_certificate.extend(user.certificates.iter().map(|name| (Arc::clone(name), Arc::clone(&user))));
            by_name.insert(Arc::clone(&user.name), user);
        }
        let decoys = decoys(by_name.values())?;
        Ok(Self { by_name, by_digest, by_certificate, decoys, verified: Verified::new(), version: 0 })
    }

    /// Takes over the verified credentials of the version before that users still have. So argon2id is not computed again
    /// after a reload. Also takes over since when a user is on and has its credentials.
    #[must_use]
    pub fn after(mut self, earlier: &Self) -> Self {
        self.version = earlier.version + 1;
        for (name, user) in &self.by_name {
            let before = earlier.by_name.get(name).filter(|before| before.is_on);
            user.set_since(before.map(Arc::as_ref), self.version);
        }
        self.verified = earlier.verified.filtered(|login| {
            let user = Arc::clone(self.still(&login.user.name, &login.credential)?);
            Some(Login { user, credential: login.credential.clone() })
        });
        self
    }

    /// Returns the user with this name, even if it is off.
    pub fn user(&self, name: &[u8]) -> Option<&Arc<ActiveUser>> {
        self.by_name.get(std::str::from_utf8(name).ok()?)
    }

    /// Returns all users, by name.
    pub fn sorted(&self) -> Vec<&Arc<ActiveUser>> {
        let mut users: Vec<_> = self.by_name.values().collect();
        users.sort_by(|a, b| a.name.cmp(&b.name));
        users
    }

    /// Returns the user of a client certificate with this name.
    pub fn by_certificate(&self, name: &Arc<str>) -> Option<Login> {
        let user = self.by_certificate.get(name).filter(|user| user.is_on)?;
        Some(Login { user: Arc::clone(user), credential: Credential::Certificate(Arc::clone(name)) })
    }

    /// Returns the user with this name, if it is on and still has the credential.
    pub fn still(&self, name: &str, credential: &Credential) -> Option<&Arc<ActiveUser>> {
        let user = self.by_name.get(name).filter(|user| user.is_on)?;
        user.has(credential).then_some(user)
    }

    /// Returns the login with credentials that were verified before.
    pub fn recall(&self, given: &Given<'_>) -> Option<Login> {
        self.verified.get(given)
    }

    /// Checks the SHA-256 hashes. If they do not decide, returns the argon2id hashes to check, if there are any.
    pub fn check_digests(&self, given: &Given<'_>) -> Result<Login, Option<SlowCheck>> {
        if given.secret().len() > MAX_PASSWORD_BYTES {
            return Err(None);
        }
        let digest = Digest::of(given.secret());
        let candidate = match given {
            Given::User { name, .. } => self.user(name),
            Given::Password(_) => self.user(DEFAULT_USER.as_bytes()),
            Given::Token(_) => self.by_digest.get(&digest).or_else(|| self.user(DEFAULT_USER.as_bytes())),
        };
        if let Some(user) = candidate.filter(|user| user.is_on && has_digest(user, &digest)) {
            let login = Login { user: Arc::clone(user), credential: Credential::Digest(digest) };
            self.verified.insert(given, &login);
            return Ok(login);
        }
        Err(self.slow_check(candidate))
    }

    fn slow_check(&self, candidate: Option<&Arc<ActiveUser>>) -> Option<SlowCheck> {
        if self.decoys.is_empty() {
            return None;
        }
        let own = candidate.map_or(&[][..], |user| &user.slow_hashes);
        let mut decoys = self.decoys.clone();
        for hash in own {
            // It takes the place of a decoy.
            if let Some(place) = decoys.iter().position(|decoy| decoy.cost() == hash.cost()) {
                decoys.swap_remove(place);
            }
        }
        let hashes = own.iter().map(|hash| Arc::new(hash.clone())).chain(decoys).collect();
        Some(SlowCheck { hashes, candidate: candidate.map(|user| (Arc::clone(user), own.len())) })
    }

    /// Remembers a login that [`SlowCheck::run`] found.
    pub fn remember(&self, given: &Given<'_>, login: &Login) {
        self.verified.insert(given, login);
    }
}

impl SlowCheck {
    /// Returns the number of hashes to check.
    pub fn len(&self) -> usize {
        self.hashes.len()
    }

    /// Checks all hashes. Takes milliseconds of a processor for each.
    pub fn run(&self, secret: &[u8]) -> Option<Login> {
        let mut found = None;
        for (index, hash) in self.hashes.iter().enumerate() {
            let (matches, is_own) = (hash.matches(secret), |own: &usize| index < *own);
            if let Some((user, _)) = self.candidate.as_ref().filter(|(user, own)| matches && user.is_on && is_own(own))
            {
                found = Some(Login { user: Arc::clone(user), credential: Credential::SlowHash(Arc::clone(hash)) });
            }
        }
        found
    }
}

/// Compares with every hash of the user.
fn has_digest(user: &User, digest: &Digest) -> bool {
    user.digests.iter().fold(false, |found, own| found | own.matches(digest))
}

/// Returns the decoys for the costliest [`MAX_COSTS`] costs.
fn decoys<'a>(users: impl Iterator<Item = &'a Arc<ActiveUser>>) -> Result<Vec<Arc<SlowHash>>, String> {
    let mut by_cost = BTreeMap::new();
    for user in users {
        let mut own = BTreeMap::new();
        for hash in &user.slow_hashes {
            own.entry(hash.cost()).or_insert((hash, 0)).1 += 1;
        }
        for (cost, (hash, count)) in own {
            let most = &mut by_cost.entry(cost).or_insert((hash, 0)).1;
            *most = count.max(*most);
        }
    }
    let mut all: Vec<(&SlowHash, usize)> = by_cost.into_values().collect();
    let work = |hash: &SlowHash| u64::from(hash.cost().0) * u64::from(hash.cost().1);
    all.sort_by_key(|(hash, _)| std::cmp::Reverse(work(hash)));
    let mut decoys = Vec::new();
    for (hash, count) in all.into_iter().take(MAX_COSTS) {
        decoys.extend(repeat_n(Arc::new(hash.decoy()?), count));
    }
    Ok(decoys)
}

#[cfg(test)]
mod tests;
