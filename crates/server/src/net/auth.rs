//! Logins: a front's side of the [`Authority`], the identity of a connection's client ([`Gate`]), and of a request's over HTTP or
//! gRPC ([`RequestOrigin`]).
//!
//! How credentials are sent depends on the protocol.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::accept::network;
use super::sessions::Sessions;
use crate::errors::ErrorClient;
use crate::http::auth::Refusal;
use crate::operations::{self, PassedCheck};
use divvy_access::{Authority, Category, ClientIdentity, Forbidden, Given, LoginError, TokenError};
use divvy_core::clock::Clock;
use divvy_limiter::{Answers, Limiter, PlanBuilder, Scope};
use divvy_telemetry::logging::LogThrottle;
use divvy_telemetry::metrics::{self, FrontAccess};

/// Number of failing attempts in a row after which a connection of RESP or the line protocol is closed.
pub const MAX_FAILED_LOGINS: u8 = 8;

/// Logs the clients of one front in. Failing attempts are counted and logged.
#[derive(Debug)]
pub struct Guard {
    /// Knows the users and their rights.
    pub authority: Arc<Authority>,
    /// Whether there are users besides `default`.
    pub has_users: bool,
    /// Sessions of the live page; `None` if this front accepts none.
    pub sessions: Option<Arc<Sessions>>,
    front: &'static str,
    counts: FrontAccess,
}

impl Guard {
    /// Creates a guard without sessions. `front` is the front's name in the log and in metrics. `has_users` says that there
    /// are users besides `default`.
    pub fn new(authority: Arc<Authority>, front: &'static str, has_users: bool, metrics: &metrics::Access) -> Self {
        Self { authority, front, has_users, sessions: None, counts: metrics.front(front) }
    }

    /// Verifies credentials. Counts and logs a failing attempt, and delays the answer to it. Stops waiting once `left` ends.
    ///
    /// # Errors
    /// [`LoginError`]
    pub async fn log_in(
        &self,
        given: &Given<'_>,
        peer: Option<SocketAddr>,
        left: impl Future<Output = ()>,
    ) -> Result<ClientIdentity, LoginError> {
        let front = self.front;
        let failed = || {
            static WRONG: LogThrottle = LogThrottle::new();
            self.counts.wrong_passwords.inc();
            let peer = peer.map(tracing::field::display);
            WRONG.say(|more| tracing::warn!(front, peer, more, "wrong password"));
        };
        let login = self.authority.log_in(given, peer.map(|peer| network(peer.ip())), failed, left).await;
        if let Err(LoginError::QueueFull) = login {
            static FULL: LogThrottle = LogThrottle::new();
            self.counts.logins_refused.inc();
            let peer = peer.map(tracing::field::display);
            FULL.say(|more| tracing::warn!(front, peer, more, "too many logins are being verified"));
        }
        login
    }

    /// Verifies a token for one actor. Counts and logs an invalid one, and delays the answer to it.
    pub async fn verify_actor_token(&self, token: &[u8], peer: Option<SocketAddr>) -> Option<ClientIdentity> {
        let failed = |reason: TokenError| {
            static INVALID: LogThrottle = LogThrottle::new();
            self.counts.invalid_tokens.inc();
            let (front, peer) = (self.front, peer.map(tracing::field::display));
            INVALID.say(|more| tracing::warn!(front, peer, %reason, more, "invalid token"));
        };
        self.authority.verify_actor_token(token, Clock::system().now(), failed).await
    }

    /// Counts a request that was refused because its client lacks the category.
    pub fn count_forbidden(&self) {
        self.counts.forbidden.inc();
    }
}

/// The guards of the fronts; `None` for a front that is open to all clients.
#[derive(Debug, Clone, Default)]
pub struct FrontGuards {
    /// Guard of the line protocol.
    pub line: Option<Arc<Guard>>,
    /// Guard of RESP.
    pub resp: Option<Arc<Guard>>,
    /// Guard of gRPC.
    pub grpc: Option<Arc<Guard>>,
    /// Guard of all HTTP requests that read or change counters and rules, except those below.
    pub http: Option<Arc<Guard>>,
    /// Guard of hits over HTTP.
    pub hit: Option<Arc<Guard>>,
    /// Guard of checks for gateways over HTTP.
    pub check: Option<Arc<Guard>>,
    /// Guard of the metrics over HTTP.
    pub metrics: Option<Arc<Guard>>,
}

/// The login of one connection. It is open once the client has a user, or from the start if the front is open.
#[derive(Debug, Clone)]
pub struct Gate {
    guard: Option<Arc<Guard>>,
    /// The client's address.
    pub peer: SocketAddr,
    /// Name in the client's certificate.
    certificate: Option<Arc<str>>,
    identity: ClientIdentity,
    /// Whether the client has sent credentials. They count instead of the certificate until the gate is reset.
    has_logged_in: bool,
    /// Number of failing attempts to log in since the last one that succeeded.
    failed: u8,
}

impl Gate {
    /// Creates a gate for a connection from `peer`. It is open if there is no `guard`, or if the certificate is that of
    /// a user.
    pub fn new(guard: Option<Arc<Guard>>, peer: SocketAddr, certificate: Option<Arc<str>>) -> Self {
        let mut gate =
            Self { guard, peer, certificate, identity: ClientIdentity::OPEN, has_logged_in: false, failed: 0 };
        gate.reset();
        gate
    }

    /// Brings the client's rights up to date. Call this before each request.
    #[inline]
    pub fn refresh(&mut self) {
        if let Some(guard) = &self.guard
            && guard.authority.refresh(&mut self.identity)
            && !self.identity.is_admitted()
            && !self.has_logged_in
        {
            // The certificate may belong to a new user.
            self.reset();
        }
    }

    /// Returns the client for a note about an error.
    pub fn error_client(&self) -> ErrorClient {
        ErrorClient { peer: Some(self.peer), user: self.identity.name().map(Into::into) }
    }

    /// Returns whether the client may send requests.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.identity.is_admitted()
    }

    /// Checks whether the client may send a request of this category.
    ///
    /// # Errors
    /// It may not.
    #[inline]
    pub fn may(&self, category: Category) -> Result<(), Forbidden> {
        self.identity.may(category)
    }

    /// Returns the client's identity.
    pub fn identity(&self) -> &ClientIdentity {
        &self.identity
    }

    /// Returns the guard; `None` if the front is open.
    pub fn guard(&self) -> Option<&Guard> {
        self.guard.as_deref()
    }

    /// Opens the gate for the right credentials. Wrong ones change nothing. Stops waiting once `left` ends.
    ///
    /// # Errors
    /// [`LoginError`]. It is `Wrong` if there is no guard.
    pub async fn open(&mut self, given: &Given<'_>, left: impl Future<Output = ()>) -> Result<(), LoginError> {
        let Some(guard) = self.guard.clone() else { return Err(LoginError::Wrong) };
        // Boxed: a login is rare, and each request's future would include its size.
        let login = Box::pin(guard.log_in(given, Some(self.peer), left)).await;
        match login {
            Ok(identity) => {
                self.identity = identity;
                self.has_logged_in = true;
                self.failed = 0;
                Ok(())
            }
            Err(error) => {
                self.failed = self.failed.saturating_add(1);
                Err(error)
            }
        }
    }

    /// Returns whether the client has failed to log in so often that its connection must be closed.
    pub fn is_exhausted(&self) -> bool {
        self.failed >= MAX_FAILED_LOGINS
    }

    /// Restores the state of a new connection.
    pub fn reset(&mut self) {
        self.has_logged_in = false;
        self.identity = match &self.guard {
            None => ClientIdentity::OPEN,
            Some(guard) => {
                let known = self.certificate.as_ref().and_then(|name| guard.authority.by_certificate(name));
                known.unwrap_or_else(|| guard.authority.unknown())
            }
        };
    }
}

/// Where a request over HTTP or gRPC comes from.
pub struct RequestOrigin {
    /// The address of the client.
    pub peer: SocketAddr,
    /// Name in the client's certificate.
    pub certificate: Option<Arc<str>>,
    /// The check that the request passed; `None` until it passes a guard.
    passed_check: Mutex<Option<PassedCheck>>,
    /// The answer of the guard, which is asked once, maybe before the request's body has come in.
    pub admitted: OnceLock<Result<(), Refusal>>,
}

impl RequestOrigin {
    /// Returns the origin of a request that has not passed a guard.
    pub fn new(peer: SocketAddr, certificate: Option<Arc<str>>) -> Self {
        Self { peer, certificate, passed_check: Mutex::new(None), admitted: OnceLock::new() }
    }

    /// Sets the identity of the client, whose request needs this category.
    pub fn identify(&self, identity: ClientIdentity, authority: &Arc<Authority>, category: Category) {
        *self.passed_check.lock() = Some(PassedCheck { authority: Arc::clone(authority), identity, category });
    }

    /// Returns whether the credentials of the client were verified by a guard.
    pub fn has_passed(&self) -> bool {
        self.passed_check.lock().is_some()
    }

    /// Calls `read` with the identity that the client had when it passed its guard.
    fn with_identity<T>(&self, read: impl FnOnce(&ClientIdentity) -> T) -> T {
        read(self.passed_check.lock().as_ref().map_or(&ClientIdentity::OPEN, |check| &check.identity))
    }

    /// Returns the name of the client for the audit log. See [`caller_name`](operations::caller_name).
    pub fn caller_name(&self) -> Option<Arc<str>> {
        self.with_identity(operations::caller_name)
    }

    /// Returns the client for a note about an error.
    pub fn error_client(&self) -> ErrorClient {
        self.with_identity(|identity| ErrorClient { peer: Some(self.peer), user: identity.name().map(Into::into) })
    }

    /// Returns whether the client has a token for one actor.
    pub fn has_actor_token(&self) -> bool {
        self.with_identity(ClientIdentity::has_actor_token)
    }

    /// Returns the check that the request passed, with the rights that its user has now; `None` if no guard asked for one.
    pub fn passed_check(&self) -> Option<PassedCheck> {
        let mut check = self.passed_check.lock();
        if let Some(check) = &mut *check {
            check.refresh();
        }
        check.clone()
    }

    /// Calls `begin` with the scope that the client's user has now. The request may have waited for its body, or for other requests,
    /// since it passed its guard.
    pub fn within_scope<T>(&self, begin: impl FnOnce(&Scope) -> T) -> T {
        match &mut *self.passed_check.lock() {
            Some(check) => {
                check.refresh();
                begin(check.identity.scope())
            }
            None => begin(&Scope::EVERYTHING),
        }
    }

    /// Asks the limiter on behalf of the client. See [`Limiter::ask`].
    ///
    /// # Errors
    /// The error of `add`. Nothing is asked then.
    pub async fn ask<E>(
        &self,
        limiter: &Arc<Limiter>,
        add: impl FnOnce(&mut PlanBuilder) -> Result<(), E>,
    ) -> Result<Answers, E> {
        let asked = self.within_scope(|scope| limiter.ask(scope, add))?;
        Ok(asked.answers().await)
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;
    use crate::tests::{authority, user, users};
    use divvy_access::{User, Users};

    fn guard() -> Guard {
        let users = Users::new([User::with_password("secret")]).unwrap();
        let metrics = metrics::Metrics::new();
        let authority = Authority::new(users, metrics.access.password_hashes.clone());
        Guard::new(Arc::new(authority), "resp", false, &metrics.access)
    }

    #[tokio::test]
    async fn logins_without_a_place_in_the_queue_are_counted() {
        let file = format!("user app on {} +@hit ~*\n", divvy_access::SlowHash::of("secret").unwrap());
        let metrics = metrics::Metrics::new();
        let authority = authority(&file, &metrics);
        let guard = Guard::new(Arc::new(authority), "resp", true, &metrics.access);
        let peer = Some(SocketAddr::from(([127, 0, 0, 1], 1)));
        let passwords: Vec<_> = (0..100).map(|number| number.to_string()).collect();
        let attempts = passwords.iter().map(|password| {
            let given = Given::User { name: b"app", password: password.as_bytes() };
            let guard = &guard;
            Box::pin(async move { guard.log_in(&given, peer, pending()).await })
        });
        let mut attempts: Vec<_> = attempts.collect();
        let mut full = 0;
        for attempt in &mut attempts {
            let result = futures_util::poll!(attempt.as_mut());
            full += u64::from(matches!(result, std::task::Poll::Ready(Err(LoginError::QueueFull))));
        }
        assert!(full > 0 && guard.counts.logins_refused.get() == full, "{full}");
        assert_eq!(metrics.access.front("resp").logins_refused.get(), full);
    }

    #[tokio::test]
    async fn gate_is_exhausted_by_failing_attempts_in_a_row() {
        let mut gate = Gate::new(Some(Arc::new(guard())), SocketAddr::from(([127, 0, 0, 1], 1)), None);
        gate.failed = MAX_FAILED_LOGINS - 2;
        assert_eq!(gate.open(&Given::Password(b"wrong"), pending()).await, Err(LoginError::Wrong));
        assert!(!gate.is_exhausted());
        assert_eq!(gate.open(&Given::Password(b"secret"), pending()).await, Ok(()));
        gate.failed += MAX_FAILED_LOGINS - 1;
        assert_eq!(gate.open(&Given::Password(b"wrong"), pending()).await, Err(LoginError::Wrong));
        assert!(gate.is_exhausted() && gate.is_open());
    }

    #[tokio::test]
    async fn lost_login_is_not_replaced_by_the_certificate() {
        let up = "user up on cert:up +@all ~*\n";
        let app = user("app", "secret", "+@hit ~*");
        let metrics = metrics::Metrics::new();
        let authority = authority(&(up.to_owned() + &app), &metrics);
        let guard = Arc::new(Guard::new(Arc::new(authority), "resp", true, &metrics.access));
        let mut gate = Gate::new(Some(Arc::clone(&guard)), SocketAddr::from(([127, 0, 0, 1], 1)), Some("up".into()));
        assert_eq!(gate.identity().name(), Some("up"));
        assert!(gate.open(&Given::User { name: b"app", password: b"secret" }, pending()).await.is_ok());
        guard.authority.replace(users(up));
        gate.refresh();
        assert!(!gate.is_open(), "{:?}", gate.identity());
        gate.reset();
        assert_eq!(gate.identity().name(), Some("up"));
    }
}
