//! Authentication: passwords, and the state of a connection's client.
//!
//! How a password is sent depends on the protocol.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use subtle::ConstantTimeEq;

use crate::logging::LogThrottle;
use crate::metrics;
use crate::metrics::Counter;

/// Maximum length of a password, as in Redis (bytes).
pub const MAX_PASSWORD_BYTES: usize = 512;

/// The user of everyone who has given the password, or needs none.
pub const DEFAULT_USER: &str = "default";

/// A password. It never prints itself.
pub struct Password {
    /// The password, padded with zeros, so that a comparison takes the same time for any length.
    padded: [u8; MAX_PASSWORD_BYTES],
    length: usize,
}

/// Reason why a text cannot be a password: one of the protocols could not carry it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadPassword {
    /// The text has no characters.
    #[error("it is empty")]
    Empty,
    /// The text exceeds [`MAX_PASSWORD_BYTES`].
    #[error("it has more than {MAX_PASSWORD_BYTES} bytes")]
    TooLong,
    /// White space at either end. The HTTP front trims a token.
    #[error("it starts or ends with white space")]
    OuterSpace,
    /// A control character could end a line or a header early.
    #[error("it contains a control character, such as a line break")]
    Control,
}

impl Password {
    /// Checks that all protocols can carry the password.
    ///
    /// # Errors
    /// [`BadPassword`]: one of them cannot.
    pub fn new(text: &str) -> Result<Self, BadPassword> {
        if text.is_empty() {
            return Err(BadPassword::Empty);
        }
        if text.trim() != text {
            return Err(BadPassword::OuterSpace);
        }
        if text.chars().any(char::is_control) {
            return Err(BadPassword::Control);
        }
        let padded = pad(text.as_bytes()).ok_or(BadPassword::TooLong)?;
        Ok(Self { padded, length: text.len() })
    }

    /// Compares in a time that depends neither on the password nor on the matching part of `given`.
    pub fn matches(&self, given: &[u8]) -> bool {
        let Some(padded) = pad(given) else { return false };
        bool::from(self.padded.ct_eq(&padded) & self.length.ct_eq(&given.len()))
    }
}

fn pad(text: &[u8]) -> Option<[u8; MAX_PASSWORD_BYTES]> {
    let mut padded = [0; MAX_PASSWORD_BYTES];
    padded.get_mut(..text.len())?.copy_from_slice(text);
    Some(padded)
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(***)")
    }
}

/// The password of one front. Counts and logs wrong ones.
#[derive(Debug)]
pub struct Guard {
    password: Arc<Password>,
    front: &'static str,
    wrong: Counter,
}

impl Guard {
    /// Creates a guard. `front` is the front's name in the log and in metrics.
    pub fn new(password: Arc<Password>, front: &'static str, metrics: &metrics::Access) -> Self {
        Self { password, front, wrong: metrics.wrong_passwords(front) }
    }

    /// Returns whether `given` is the password. Counts and logs nothing.
    pub fn knows(&self, given: &[u8]) -> bool {
        self.password.matches(given)
    }

    /// Returns whether `given` is the password. Counts and logs a wrong one.
    pub fn lets_in(&self, given: &[u8], peer: Option<SocketAddr>) -> bool {
        static WRONG: LogThrottle = LogThrottle::new();
        let is_right = self.password.matches(given);
        if !is_right {
            self.wrong.inc();
            let (front, peer) = (self.front, peer.map(tracing::field::display));
            WRONG.say(|more| tracing::warn!(front, peer, more, "wrong password"));
        }
        is_right
    }
}

/// The passwords of the fronts; `None` for a front that is open to all clients.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// The line protocol.
    pub line: Option<Arc<Guard>>,
    /// RESP.
    pub resp: Option<Arc<Guard>>,
    /// gRPC.
    pub grpc: Option<Arc<Guard>>,
    /// Requests over HTTP that read or change counters and rules, except the following ones.
    pub http: Option<Arc<Guard>>,
    /// Hits over HTTP.
    pub hit: Option<Arc<Guard>>,
    /// Checks for gateways over HTTP.
    pub check: Option<Arc<Guard>>,
    /// The metrics over HTTP.
    pub metrics: Option<Arc<Guard>>,
}

/// Authentication of one connection: open once the client has given the password, or from the start without one.
#[derive(Debug, Clone)]
pub struct Gate {
    guard: Option<Arc<Guard>>,
    peer: SocketAddr,
    is_open: bool,
}

impl Gate {
    /// Creates a gate for a connection from `peer`. It is open if there is no `guard`.
    pub fn new(guard: Option<Arc<Guard>>, peer: SocketAddr) -> Self {
        Self { is_open: guard.is_none(), guard, peer }
    }

    /// Returns the client's address.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Returns whether the client may send requests.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Returns whether there is a password.
    pub fn has_password(&self) -> bool {
        self.guard.is_some()
    }

    /// Opens the gate if `given` is the password. A wrong one changes nothing.
    pub fn open(&mut self, given: &[u8]) -> bool {
        let is_right = self.guard.as_ref().is_some_and(|guard| guard.lets_in(given, Some(self.peer)));
        self.is_open |= is_right;
        is_right
    }

    /// Restores the state of a new connection.
    pub fn reset(&mut self) {
        self.is_open = self.guard.is_none();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_protocol_can_carry_a_valid_password() {
        for (text, problem) in [
            ("", BadPassword::Empty),
            (" x", BadPassword::OuterSpace),
            ("x\n", BadPassword::OuterSpace),
            ("x\r\nHIT", BadPassword::Control),
            ("x\0", BadPassword::Control),
            (&"x".repeat(513), BadPassword::TooLong),
        ] {
            assert_eq!(Password::new(text).err(), Some(problem), "{text:?}");
        }
        for text in ["x", "correct horse", "pässword==\"", &"x".repeat(512)] {
            assert!(Password::new(text).unwrap().matches(text.as_bytes()), "{text:?}");
        }
    }

    #[test]
    fn only_the_password_matches() {
        let password = Password::new("secret").unwrap();
        for wrong in [&b""[..], b"secre", b"secret\0", b"secret ", b"Secret", &[b's'; 600]] {
            assert!(!password.matches(wrong), "{}", wrong.escape_ascii());
        }
    }

    #[test]
    fn password_does_not_print_itself() {
        let password = Password::new("secret").unwrap();
        assert!(!format!("{password:?} {password:#?}").contains("secret"));
    }

    #[test]
    fn gate_opens_for_the_password_and_stays_open() {
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        let password = Arc::new(Password::new("secret").unwrap());
        let guard = Guard::new(password, "resp", &metrics::Metrics::new().access);
        let wrong = guard.wrong.clone();
        let mut gate = Gate::new(Some(Arc::new(guard)), peer);
        assert!(!gate.is_open() && !gate.open(b"wrong") && !gate.is_open());
        assert!(gate.open(b"secret") && gate.is_open());
        assert!(!gate.open(b"wrong") && gate.is_open());
        gate.reset();
        assert!(!gate.is_open());
        assert!(Gate::new(None, peer).is_open());
        assert_eq!(wrong.get(), 2);
    }

    proptest! {
        #[test]
        fn password_matches_only_itself(password in "[!-~]{1,40}", given in "[!-~]{0,40}") {
            prop_assert_eq!(Password::new(&password).unwrap().matches(given.as_bytes()), password == given);
        }
    }
}
