//! The users in force, as one value that a reload replaces, and the credentials of clients. Credentials that were verified
//! are remembered, so that argon2id runs once for each.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::iter::repeat_n;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use parking_lot::RwLock;
use siphasher::sip128::{Hasher128, SipHasher24};

use super::user::{DEFAULT_USER, Digest, MAX_PASSWORD_BYTES, SlowHash, User, fill_randomly};
use divvy_core::rules::Scope;

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
    /// Credentials that were verified before.
    pub(super) verified: Verified,
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
        Ok(Self { by_name, by_digest, by_certificate, decoys, verified: Verified::new()?, version: 0 })
    }

    /// Takes over the verified credentials of the version before that users still have. So argon2id is not computed again
    /// after a reload. Also takes over since when a user is on and has the same credentials.
    #[must_use]
    pub fn after(mut self, earlier: &Self) -> Self {
        self.version = earlier.version + 1;
        for (name, user) in &self.by_name {
            let before = earlier.by_name.get(name).filter(|before| before.is_on && before.has_credentials_of(user));
            // It is set only once.
            let _ = user.since.set(before.map_or(self.version, |before| before.since()));
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
            if let Some(place) = decoys.iter().position(|decoy| decoy.cost == hash.cost) {
                decoys.swap_remove(place);
            }
        }
        let hashes = own.iter().map(|hash| Arc::new(hash.clone())).chain(decoys).collect();
        Some(SlowCheck { hashes, candidate: candidate.map(|user| (Arc::clone(user), own.len())) })
    }
}

impl SlowCheck {
    /// Returns the number of hashes to check.
    pub fn len(&self) -> usize {
        self.hashes.len()
    }

    /// Checks all hashes. Takes milliseconds of a processor for each.
    pub fn run(&self, secret: &[u8]) -> Option<Login> {
        // All hashes are checked, even after one that matches.
        let matching: Vec<bool> = self.hashes.iter().map(|hash| hash.matches(secret)).collect();
        let (user, own) = self.candidate.as_ref().filter(|(user, _)| user.is_on)?;
        let (hash, _) = self.hashes.iter().zip(matching).take(*own).rfind(|(_, matches)| *matches)?;
        Some(Login { user: Arc::clone(user), credential: Credential::SlowHash(Arc::clone(hash)) })
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
        for hash in &user.slow_hashes {
            let count = user.slow_hashes.iter().filter(|other| other.cost == hash.cost).count();
            let (_, most) = by_cost.entry(hash.cost).or_insert((hash, 0));
            *most = count.max(*most);
        }
    }
    let mut all: Vec<(&SlowHash, usize)> = by_cost.into_values().collect();
    let work = |hash: &SlowHash| u64::from(hash.cost.0) * u64::from(hash.cost.1);
    all.sort_by_key(|(hash, _)| std::cmp::Reverse(work(hash)));
    let mut decoys = Vec::new();
    for (hash, count) in all.into_iter().take(MAX_COSTS) {
        decoys.extend(repeat_n(Arc::new(hash.decoy()?), count));
    }
    Ok(decoys)
}

/// A user in force, with its compiled scope.
#[derive(Debug)]
pub struct ActiveUser {
    user: User,
    /// Its scope, which all its clients share.
    pub(super) compiled_scope: Scope,
    since: OnceLock<u64>,
}

impl ActiveUser {
    /// Compiles the scope of a user.
    pub fn new(user: User) -> Self {
        Self { compiled_scope: user.scope.compile(), user, since: OnceLock::new() }
    }

    /// Returns the version of the users since which the user is on and has the same credentials.
    pub fn since(&self) -> u64 {
        self.since.get().copied().unwrap_or_default()
    }

    fn has_credentials_of(&self, other: &User) -> bool {
        let same_hashes = self.digests == other.digests && self.slow_hashes == other.slow_hashes;
        same_hashes && self.certificates == other.certificates
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
}

impl Deref for ActiveUser {
    type Target = User;

    fn deref(&self) -> &User {
        &self.user
    }
}

/// Bytes of the key.
const KEY_BYTES: usize = 16;

/// A successful login.
#[derive(Debug, Clone)]
pub struct Login {
    pub user: Arc<ActiveUser>,
    pub credential: Credential,
}

/// Verified credentials, by a keyed hash of 128 bits: memory contains no password, and no hash that a client can
/// compute. They belong to one version of the users. Only right ones are remembered, so the file bounds their number.
pub(super) struct Verified {
    key: [u8; KEY_BYTES],
    logins: RwLock<HashMap<u128, Login>>,
}

impl Verified {
    fn new() -> Result<Self, String> {
        let mut key = [0; KEY_BYTES];
        fill_randomly(&mut key)?;
        Ok(Self { key, logins: RwLock::default() })
    }

    /// Returns those logins that `still` finds, as it finds them.
    fn filtered(&self, still: impl Fn(&Login) -> Option<Login>) -> Self {
        let logins = self.logins.read();
        let kept = logins.iter().filter_map(|(key, login)| Some((*key, still(login)?))).collect();
        Self { key: self.key, logins: RwLock::new(kept) }
    }

    /// Returns the login with these credentials, if they were verified before.
    pub fn get(&self, given: &Given<'_>) -> Option<Login> {
        self.logins.read().get(&self.key_of(given)).cloned()
    }

    /// Remembers a login.
    pub fn insert(&self, given: &Given<'_>, login: &Login) {
        self.logins.write().insert(self.key_of(given), login.clone());
    }

    fn key_of(&self, given: &Given<'_>) -> u128 {
        let mut hasher = SipHasher24::new_with_key(&self.key);
        // The kind and all lengths are hashed, too, so a name cannot be confused with the beginning of a secret.
        given.hash(&mut hasher);
        hasher.finish128().as_u128()
    }
}

impl std::fmt::Debug for Verified {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Verified")
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a hash with this cost: memory in KiB, passes, and one lane.
    fn hash((memory, passes): (u32, u32)) -> SlowHash {
        let params = argon2::Params::new(memory, passes, 1, None).unwrap();
        SlowHash::with_params(b"password", params).unwrap()
    }

    fn user(name: &str, is_on: bool, costs: &[(u32, u32)]) -> User {
        User { is_on, slow_hashes: costs.iter().copied().map(hash).collect(), ..User::new(name) }
    }

    /// Returns the costs of the hashes that a failing attempt checks, sorted.
    fn costs(users: &Users, name: &str) -> Vec<(u32, u32)> {
        let given = Given::User { name: name.as_bytes(), password: b"wrong" };
        let check = users.check_digests(&given).unwrap_err().unwrap();
        let mut costs: Vec<_> = check.hashes.iter().map(|hash| (hash.cost.0, hash.cost.1)).collect();
        costs.sort_unstable();
        costs
    }

    #[test]
    fn failing_attempts_check_hashes_with_the_same_costs() {
        let users = Users::new([
            user("cheap", true, &[(8, 1), (8, 1)]),
            user("slow", true, &[(8, 3)]),
            user("both", false, &[(8, 3), (64, 1)]),
            user("none", true, &[]),
        ])
        .unwrap();
        for name in ["cheap", "slow", "both", "none", "nobody", ""] {
            assert_eq!(costs(&users, name), [(8, 1), (8, 1), (8, 3), (64, 1)], "{name}");
        }
    }

    #[test]
    fn decoys_have_few_costs() {
        let users = Users::new((1..8).map(|passes| user(&format!("u{passes}"), true, &[(8, passes)]))).unwrap();
        let costliest = [(8, 4), (8, 5), (8, 6), (8, 7)];
        assert_eq!(costs(&users, "nobody"), costliest);
        assert_eq!(costs(&users, "u5"), costliest);
        assert_eq!(costs(&users, "u1"), [&[(8, 1)], &costliest[..]].concat());
    }

    #[test]
    fn only_equal_credentials_are_remembered() {
        let verified = Verified::new().unwrap();
        let login = Login { user: Arc::new(ActiveUser::new(User::unrestricted())), credential: Credential::None };
        verified.insert(&Given::User { name: b"ab", password: b"c" }, &login);
        assert!(verified.get(&Given::User { name: b"ab", password: b"c" }).is_some());
        for other in [
            Given::User { name: b"a", password: b"bc" },
            Given::User { name: b"", password: b"abc" },
            Given::User { name: b"ab", password: b"C" },
            Given::Password(b"c"),
            Given::Token(b"c"),
            Given::Token(b"abc"),
        ] {
            assert!(verified.get(&other).is_none(), "{other:?}");
        }
    }
}
