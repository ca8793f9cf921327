//! The authority: decides who a client is, by the users in force. A client's identity has its user and its rights.

use std::collections::hash_map::{Entry, RandomState};
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{self, Relaxed},
};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;

use super::tokens::{TokenError, TokenGrant, TokenKeys};
use super::user::{Categories, Category, User};
use super::users::{ActiveUser, Credential, Given, Login, Users};
use divvy_core::clock::Timestamp;
use divvy_core::rules::Scope;
use divvy_telemetry::metrics::Counter;

/// Pause before the answer to a failing attempt.
const PAUSE: Duration = Duration::from_millis(100);

/// Maximum number of failing attempts that pause at a time. Others wait for them, so that the whole server answers a
/// few hundred failing attempts a second.
const MAX_PAUSES: usize = 32;

/// Reason why an attempt to log in failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LoginError {
    /// No user has these credentials.
    #[error("no user has these credentials")]
    Wrong,
    /// The credentials were not verified, because too many others wait for this.
    #[error("too many logins are being verified: try again")]
    QueueFull,
    /// The client left before its turn.
    #[error("the client left before its login was verified")]
    ClientLeft,
}

/// Decides who a client is. Shared by all fronts.
#[derive(Debug)]
pub struct Authority {
    users: ArcSwap<Users>,
    /// Number of the version of the users. It changes after the users.
    revision: AtomicU64,
    /// Keys of tokens for one actor; `None` if there are no such tokens.
    token_keys: Option<ArcSwap<TokenKeys>>,
    checks: Arc<CheckQueue>,
    pauses: Semaphore,
    pause: Duration,
    /// Number of argon2id hashes that were computed.
    computed: Counter,
}

impl Authority {
    /// Creates an authority for these users. `computed` counts argon2id hashes.
    pub fn new(users: Users, computed: Counter) -> Self {
        Self {
            users: ArcSwap::from_pointee(users),
            revision: AtomicU64::new(1),
            token_keys: None,
            checks: CheckQueue::new(),
            pauses: Semaphore::new(MAX_PAUSES),
            pause: PAUSE,
            computed,
        }
    }

    /// Accepts tokens for one actor that were made with these keys.
    #[must_use]
    pub fn with_token_keys(self, keys: Option<TokenKeys>) -> Self {
        Self { token_keys: keys.map(ArcSwap::from_pointee), ..self }
    }

    /// Replaces the keys of tokens for one actor, if there are any. Requests that begin after this see the new ones.
    pub fn replace_token_keys(&self, keys: TokenKeys) {
        if let Some(in_force) = &self.token_keys {
            in_force.store(Arc::new(keys));
        }
    }

    /// Replaces all users at once. Requests that begin after this see the new ones.
    pub fn replace(&self, users: Users) {
        let users = users.after(&self.users.load());
        self.users.store(Arc::new(users));
        self.revision.fetch_add(1, Ordering::Release);
    }

    /// Returns the users in force.
    pub fn users(&self) -> Arc<Users> {
        self.users.load_full()
    }

    /// Brings an identity up to date. Call it before each request: it costs one comparison unless the users were
    /// replaced. A user who is gone, off, or without the credential has no rights then. Returns whether the users were
    /// replaced.
    #[inline]
    pub fn refresh(&self, identity: &mut ClientIdentity) -> bool {
        let revision = self.revision.load(Ordering::Acquire);
        let is_outdated = identity.revision != revision;
        if is_outdated {
            self.renew(identity, revision);
        }
        is_outdated
    }

    #[cold]
    fn renew(&self, identity: &mut ClientIdentity, revision: u64) {
        let users = self.users.load();
        let user = identity.user.as_ref().and_then(|user| users.still(&user.name, &identity.credential)).cloned();
        let credential = identity.credential.clone();
        match user.map(|user| Login { user, credential }) {
            Some(login) => *identity = ClientIdentity::new(login, revision),
            None => {
                identity.revision = revision;
                identity.revoke();
            }
        }
    }

    /// Returns the identity of a client with these credentials if they were verified before.
    pub fn recall(&self, given: &Given<'_>) -> Option<ClientIdentity> {
        let revision = self.revision.load(Ordering::Acquire);
        self.users.load().verified.get(given).map(|login| ClientIdentity::new(login, revision))
    }

    /// Returns the identity of a client that has to log in first.
    pub fn unknown(&self) -> ClientIdentity {
        ClientIdentity {
            revision: self.revision.load(Ordering::Acquire),
            rights: Categories::NONE,
            scope: Scope::nothing(),
            ..ClientIdentity::OPEN
        }
    }

    /// Returns the identity of a client with a certificate with this name.
    pub fn by_certificate(&self, name: &Arc<str>) -> Option<ClientIdentity> {
        let revision = self.revision.load(Ordering::Acquire);
        self.users.load().by_certificate(name).map(|login| ClientIdentity::new(login, revision))
    }

    /// Verifies credentials from this address. The answer to a failing attempt takes longer, whether the user exists or
    /// not. The answer to credentials that were verified before waits for nothing. Calls `failed` before the pause, which
    /// the client may not wait for. Stops waiting once `left` ends.
    ///
    /// # Errors
    /// [`LoginError`]
    pub async fn log_in(
        &self,
        given: &Given<'_>,
        address: Option<IpAddr>,
        failed: impl FnOnce(),
        left: impl Future<Output = ()>,
    ) -> Result<ClientIdentity, LoginError> {
        // The revision is read before the users. So if they are replaced in between, the identity is outdated at its first use.
        let revision = self.revision.load(Ordering::Acquire);
        let users = self.users.load_full();
        let mut left = pin!(left);
        let verified = self.verify(&users, given, (address, revision), left.as_mut()).await;
        if verified.as_ref().err() == Some(&LoginError::Wrong) {
            failed();
            let _pausing = unless_left(left, self.pauses.acquire()).await?;
            tokio::time::sleep(self.pause).await;
        }
        verified.map(|login| ClientIdentity::new(login, revision))
    }

    /// Returns whether a bearer token has to be verified as a token for one actor.
    pub fn is_actor_token(&self, token: &[u8]) -> bool {
        self.token_keys.is_some() && TokenKeys::is_token(token)
    }

    /// Verifies a token for one actor at this time. The answer to a failing attempt takes longer. Calls `failed` before the
    /// pause, which the client may not wait for.
    pub async fn verify_actor_token(
        &self,
        token: &[u8],
        now: Timestamp,
        failed: impl FnOnce(TokenError),
    ) -> Option<ClientIdentity> {
        let revision = self.revision.load(Ordering::Acquire);
        let keys = self.token_keys.as_ref()?.load_full();
        match keys.open(token, now) {
            Ok(grant) => Some(ClientIdentity::of_token(grant, revision)),
            Err(error) => {
                failed(error);
                // The semaphore is never closed.
                let _pausing = self.pauses.acquire().await;
                tokio::time::sleep(self.pause).await;
                None
            }
        }
    }

    async fn verify(
        &self,
        users: &Arc<Users>,
        given: &Given<'_>,
        (address, revision): (Option<IpAddr>, u64),
        mut left: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<Login, LoginError> {
        if let Some(login) = users.verified.get(given) {
            return Ok(login);
        }
        let check = match users.check_digests(given) {
            Ok(login) => return Ok(login),
            Err(check) => check.ok_or(LoginError::Wrong)?,
        };
        let place = self.checks.enter(address, given, revision)?;
        // Many requests with the same credentials may have waited for their turn.
        let known = |place: &Place| match users.verified.get(given) {
            Some(login) => Some(Ok(login)),
            None => place.are_wrong().then_some(Err(LoginError::Wrong)),
        };
        let turn = unless_left(left.as_mut(), place.turn()).await?;
        if let Some(known) = known(&place) {
            return known;
        }
        let thread = unless_left(left, place.thread()).await?;
        if let Some(known) = known(&place) {
            return known;
        }
        self.computed.inc_by(check.len() as u64);
        let secret = given.secret().to_vec();
        // The turn ends with the computation, even if the client is gone. Otherwise it ends after the result is remembered,
        // so that the next one finds it.
        let computing = spawn_blocking(move || (check.run(&secret), (thread, turn, place)));
        let Ok((login, (_thread, _turn, place))) = computing.await else { return Err(LoginError::Wrong) };
        match login {
            Some(login) => {
                place.set_right();
                users.verified.insert(given, &login);
                Ok(login)
            }
            None => {
                place.set_wrong();
                Err(LoginError::Wrong)
            }
        }
    }
}

/// Waits for a turn.
///
/// # Errors
/// The client left before.
async fn unless_left<T>(
    left: Pin<&mut impl Future<Output = ()>>,
    turn: impl Future<Output = T>,
) -> Result<T, LoginError> {
    tokio::select! {
        biased;
        turn = turn => Ok(turn),
        () = left => Err(LoginError::ClientLeft),
    }
}

/// A client's identity. It is valid for one version of the users: see [`Authority::refresh`].
#[derive(Debug, Clone)]
pub struct ClientIdentity {
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

impl ClientIdentity {
    /// The identity of a client without a name that may do everything.
    pub const OPEN: Self = Self {
        user: None,
        credential: Credential::None,
        rights: Categories::ALL,
        scope: Scope::EVERYTHING,
        revision: 0,
    };

    fn new(Login { user, credential }: Login, revision: u64) -> Self {
        let (rights, scope) = (user.rights(), user.compiled_scope.clone());
        Self { user: Some(user), credential, rights, scope, revision }
    }

    /// Returns the identity of a client with a token for one actor. Its user is in no file, and has no right but the status
    /// of that actor.
    fn of_token(grant: TokenGrant, revision: u64) -> Self {
        let scope = grant.into_scope();
        // No user of a file has a colon in its name.
        let name = format!("token:{}", scope.actor_text().unwrap_or_default());
        let rights = Categories::NONE.with(Category::Status);
        let user = ActiveUser::new(User { is_on: true, granted: rights, scope, ..User::new(&name) });
        let scope = user.compiled_scope.clone();
        Self { user: Some(Arc::new(user)), credential: Credential::ActorToken, rights, scope, revision }
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

    /// Returns the version of the users since which the user is on and has the same credentials.
    pub fn login_since(&self) -> Option<u64> {
        self.user.as_ref().map(|user| user.since())
    }

    /// Takes all rights away.
    pub fn revoke(&mut self) {
        (self.rights, self.scope) = (Categories::NONE, Scope::nothing());
    }
}

/// Maximum number of threads that compute argon2id at a time. Each needs up to 256 MiB.
pub const MAX_CHECKS: usize = 2;
/// Maximum number of addresses with logins in the queue. Those whose last attempt failed get a place only while half of
/// the places are free.
const MAX_ADDRESSES: usize = 1_024;
/// Number of failing addresses after which all of them are forgotten.
const MAX_SUSPECTS: usize = 65_536;
/// Maximum number of different credentials in the queue from one address.
const MAX_OF_ADDRESS: usize = 32;

/// The queue.
#[derive(Debug)]
pub struct CheckQueue {
    state: Mutex<State>,
    threads: Arc<Semaphore>,
    /// The thread for addresses whose last attempt failed.
    thread_of_suspects: Arc<Semaphore>,
    /// Makes keys of credentials, which clients cannot predict.
    keys: RandomState,
}

#[derive(Debug, Default)]
struct State {
    addresses: HashMap<Option<IpAddr>, Address>,
    /// The addresses whose last attempt failed.
    suspects: HashSet<Option<IpAddr>>,
}

/// The logins of one address.
#[derive(Debug)]
struct Address {
    turn: Arc<Semaphore>,
    /// The credentials in the queue, by their keys.
    credentials: HashMap<u64, Credentials>,
}

/// Credentials in the queue.
#[derive(Debug, Default)]
struct Credentials {
    places: usize,
    /// Set once they turn out to be wrong.
    are_wrong: Arc<AtomicBool>,
}

/// A place in the queue, until it is dropped.
#[derive(Debug)]
pub struct Place {
    queue: Arc<CheckQueue>,
    address: Option<IpAddr>,
    credentials: u64,
    are_wrong: Arc<AtomicBool>,
    turn: Arc<Semaphore>,
}

/// A thread for a check, until it is dropped, and that for suspects if it is theirs.
type Thread = (OwnedSemaphorePermit, Option<OwnedSemaphorePermit>);

impl CheckQueue {
    /// Creates an empty queue.
    pub fn new() -> Arc<Self> {
        let semaphore = |permits| Arc::new(Semaphore::new(permits));
        Arc::new(Self {
            state: Mutex::default(),
            threads: semaphore(MAX_CHECKS),
            thread_of_suspects: semaphore(1),
            keys: RandomState::new(),
        })
    }

    /// Takes a place for a login from this address. `revision` is the version of the users. A login with the same
    /// credentials as another one in the queue always has a place, because only one of them is checked.
    ///
    /// # Errors
    /// The queue is full.
    pub fn enter(
        self: &Arc<Self>,
        address: Option<IpAddr>,
        given: &Given<'_>,
        revision: u64,
    ) -> Result<Place, LoginError> {
        let key = self.keys.hash_one((given, revision));
        let State { addresses, suspects } = &mut *self.state.lock();
        let count = addresses.len();
        let places = if suspects.contains(&address) { MAX_ADDRESSES / 2 } else { MAX_ADDRESSES };
        let logins = match addresses.entry(address) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(_) if count >= places => return Err(LoginError::QueueFull),
            Entry::Vacant(new) => {
                new.insert(Address { turn: Arc::new(Semaphore::new(1)), credentials: HashMap::new() })
            }
        };
        let count = logins.credentials.len();
        let credentials = match logins.credentials.entry(key) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(_) if count >= MAX_OF_ADDRESS => return Err(LoginError::QueueFull),
            Entry::Vacant(new) => new.insert(Credentials::default()),
        };
        credentials.places += 1;
        let (are_wrong, turn) = (Arc::clone(&credentials.are_wrong), Arc::clone(&logins.turn));
        Ok(Place { queue: Arc::clone(self), address, credentials: key, are_wrong, turn })
    }
}

impl Place {
    /// Waits for the turn of the address, which ends when the permit is dropped.
    pub async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        // Neither semaphore is ever closed.
        Arc::clone(&self.turn).acquire_owned().await.ok()
    }

    /// Waits for a thread. Take the [turn](Self::turn) first.
    pub async fn thread(&self) -> Option<Thread> {
        let queue = &self.queue;
        let is_suspect = queue.state.lock().suspects.contains(&self.address);
        let of_suspects = match is_suspect {
            true => Some(Arc::clone(&queue.thread_of_suspects).acquire_owned().await.ok()?),
            false => None,
        };
        let thread = Arc::clone(&queue.threads).acquire_owned().await.ok()?;
        Some((thread, of_suspects))
    }

    /// Returns whether the same credentials turned out to be wrong while this login waited.
    pub fn are_wrong(&self) -> bool {
        self.are_wrong.load(Relaxed)
    }

    /// Records that the credentials are wrong.
    pub fn set_wrong(&self) {
        self.are_wrong.store(true, Relaxed);
        let suspects = &mut self.queue.state.lock().suspects;
        if suspects.len() >= MAX_SUSPECTS {
            suspects.clear();
        }
        suspects.insert(self.address);
    }

    /// Records that the credentials are right.
    pub fn set_right(&self) {
        self.queue.state.lock().suspects.remove(&self.address);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let addresses = &mut self.queue.state.lock().addresses;
        let Some(logins) = addresses.get_mut(&self.address) else { return };
        if let Entry::Occupied(mut credentials) = logins.credentials.entry(self.credentials) {
            credentials.get_mut().places -= 1;
            if credentials.get().places == 0 {
                credentials.remove();
            }
        }
        if logins.credentials.is_empty() {
            addresses.remove(&self.address);
        }
    }
}

#[cfg(test)]
mod tests;
