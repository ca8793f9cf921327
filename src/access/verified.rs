//! Credentials that were verified, so that argon2id runs once for each.

use std::collections::HashMap;

use parking_lot::RwLock;
use siphasher::sip128::{Hasher128, SipHasher24};
use std::hash::Hasher;
use std::sync::Arc;

use super::active_user::ActiveUser;
use super::credentials::{Credential, Given};

/// Maximum number of remembered credentials. Only those of users of the file are remembered.
const MAX_REMEMBERED: usize = 16 * 1024;
/// Bytes of the key.
const KEY_BYTES: usize = 16;

/// A successful login.
#[derive(Debug, Clone)]
pub struct Login {
    pub user: Arc<ActiveUser>,
    pub credential: Credential,
}

/// Verified credentials, by a keyed hash of 128 bits: memory contains no password, and no hash that a client can
/// compute. They belong to one version of the users.
pub struct Verified {
    /// `None` if the system had no random bytes. Nothing is remembered then.
    key: Option<[u8; KEY_BYTES]>,
    logins: RwLock<HashMap<u128, Login>>,
}

impl Verified {
    pub fn new() -> Self {
        let mut key = [0; KEY_BYTES];
        let filled = getrandom::getrandom(&mut key);
        if let Err(error) = &filled {
            tracing::error!(%error, "no random bytes: each login is verified again");
        }
        Self { key: filled.is_ok().then_some(key), logins: RwLock::default() }
    }

    /// Returns those logins that `still` finds, as it finds them.
    pub fn filtered(&self, still: impl Fn(&Login) -> Option<Login>) -> Self {
        let logins = self.logins.read();
        let kept = logins.iter().filter_map(|(key, login)| Some((*key, still(login)?))).collect();
        Self { key: self.key, logins: RwLock::new(kept) }
    }

    /// Returns the login with these credentials, if they were verified before.
    pub fn get(&self, given: &Given<'_>) -> Option<Login> {
        let key = self.key_of(given)?;
        self.logins.read().get(&key).cloned()
    }

    /// Remembers a login. If there are too many, one with argon2id replaces one without.
    pub fn insert(&self, given: &Given<'_>, login: &Login) {
        let Some(key) = self.key_of(given) else { return };
        let mut logins = self.logins.write();
        if logins.len() >= MAX_REMEMBERED {
            // It costs little to verify a SHA-256 hash again.
            if !is_slow(login) {
                return;
            }
            let replaced = logins.iter().find(|(_, known)| !is_slow(known)).map(|(key, _)| *key);
            let Some(replaced) = replaced else { return };
            logins.remove(&replaced);
        }
        logins.insert(key, login.clone());
    }

    fn key_of(&self, given: &Given<'_>) -> Option<u128> {
        let mut hasher = SipHasher24::new_with_key(self.key.as_ref()?);
        let (kind, name) = match given {
            Given::User { name, .. } => (0, *name),
            Given::Password(_) => (1, &b""[..]),
            Given::Token(_) => (2, &b""[..]),
        };
        hasher.write_u8(kind);
        // With its length, the name cannot be confused with the beginning of the secret.
        hasher.write_usize(name.len());
        hasher.write(name);
        hasher.write(given.secret());
        Some(hasher.finish128().as_u128())
    }
}

/// Returns whether argon2id verified the login.
fn is_slow(login: &Login) -> bool {
    matches!(login.credential, Credential::SlowHash(_))
}

impl std::fmt::Debug for Verified {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Verified")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::User;
    use crate::access::secret::{Digest, SlowHash};

    #[test]
    fn only_equal_credentials_are_remembered() {
        let verified = Verified::new();
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
        for number in 0..2 * MAX_REMEMBERED {
            verified.insert(&Given::Token(number.to_string().as_bytes()), &login);
        }
        assert_eq!(verified.logins.read().len(), MAX_REMEMBERED);
    }

    #[test]
    fn tokens_take_no_place_of_passwords() {
        let verified = Verified::new();
        let user = Arc::new(ActiveUser::new(User::unrestricted()));
        let token = Login { user, credential: Credential::Digest(Digest::of(b"token")) };
        let slow = Arc::new(SlowHash::of("password").unwrap());
        let password = Login { credential: Credential::SlowHash(slow), ..token.clone() };
        for number in 0..MAX_REMEMBERED {
            verified.insert(&Given::Token(number.to_string().as_bytes()), &token);
        }
        verified.insert(&Given::Token(b"another"), &token);
        assert!(verified.get(&Given::Token(b"another")).is_none());
        verified.insert(&Given::Password(b"password"), &password);
        assert!(verified.get(&Given::Password(b"password")).is_some());
        assert_eq!(verified.logins.read().len(), MAX_REMEMBERED);
    }
}
