//! Bounds the lines about refused attempts, so that no client can fill the disk with them.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::caller::Caller;
use super::change::Change;
use divvy_core::clock::Timestamp;
use divvy_telemetry::logging::LogThrottle;

/// Lines per second about refused attempts of all strangers together.
pub const STRANGERS_PER_SECOND: u64 = 10;
/// Lines per second about refused attempts of one user.
pub const USER_PER_SECOND: u64 = 25;
/// Maximum number of users with a throttle of their own. Others share one.
const MAX_USERS: usize = 1_024;

/// A refused attempt without a line.
#[derive(Debug, Clone)]
pub struct OmittedAttempt {
    pub caller: Caller,
    pub change: Change,
    pub error: String,
}

/// The throttle of one user, or of several together.
#[derive(Debug)]
pub struct UserThrottle {
    pub lines: LogThrottle,
    /// The last attempt without a line. It stands for the others if no line follows.
    last_omitted: Mutex<Option<OmittedAttempt>>,
}

impl UserThrottle {
    fn at_rate(rate: u64) -> Arc<Self> {
        Arc::new(Self { lines: LogThrottle::at_rate(rate), last_omitted: Mutex::default() })
    }

    /// Remembers an attempt without a line.
    pub fn remember(&self, attempt: OmittedAttempt) {
        *self.last_omitted.lock() = Some(attempt);
    }

    /// Returns the last attempt without a line, and the number of those before it, and forgets them. Returns `None` if
    /// every attempt has a line, or if another line may follow in this second.
    pub fn take_omitted(&self, now: Timestamp) -> Option<(OmittedAttempt, u64)> {
        let count = self.lines.take_omitted(now)?;
        match self.last_omitted.lock().take() {
            Some(last) => Some((last, count.saturating_sub(1))),
            None => {
                // It has been counted, and not been remembered yet.
                self.lines.omit(count);
                None
            }
        }
    }

    /// Takes omitted attempts back, because they could not be reported.
    pub fn put_back(&self, attempt: OmittedAttempt, before: u64) {
        self.lines.omit(1 + before);
        self.last_omitted.lock().get_or_insert(attempt);
    }
}

/// Throttles for the lines about refused attempts.
#[derive(Debug)]
pub struct RefusalThrottle {
    strangers: Arc<UserThrottle>,
    users: Mutex<HashMap<Box<str>, Arc<UserThrottle>>>,
    /// Throttle that users beyond [`MAX_USERS`] share.
    other_users: Arc<UserThrottle>,
}

impl RefusalThrottle {
    /// Creates throttles without omitted lines.
    pub fn new() -> Self {
        let (strangers, other_users) =
            (UserThrottle::at_rate(STRANGERS_PER_SECOND), UserThrottle::at_rate(USER_PER_SECOND));
        Self { strangers, users: Mutex::default(), other_users }
    }

    /// Returns the throttle for this caller; `None` if it is not a client.
    pub fn of(&self, caller: &Caller) -> Option<Arc<UserThrottle>> {
        if caller.is_stranger() {
            return Some(Arc::clone(&self.strangers));
        }
        if !caller.is_client() {
            return None;
        }
        let mut users = self.users.lock();
        if let Some(known) = users.get(caller.user()) {
            return Some(Arc::clone(known));
        }
        if users.len() >= MAX_USERS {
            return Some(Arc::clone(&self.other_users));
        }
        let new = UserThrottle::at_rate(USER_PER_SECOND);
        users.insert(caller.user().into(), Arc::clone(&new));
        Some(new)
    }

    /// Returns all throttles.
    pub fn all(&self) -> Vec<Arc<UserThrottle>> {
        let users = self.users.lock();
        users.values().chain([&self.strangers, &self.other_users]).map(Arc::clone).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_has_a_throttle_and_their_number_is_bounded() {
        let throttles = RefusalThrottle::new();
        let of = |user: &str| {
            let caller = Caller::client("resp", Some(([127, 0, 0, 1], 5).into()), Some(user.into()));
            throttles.of(&caller).unwrap()
        };
        let (ann, bob) = (of("ann"), of("bob"));
        assert!(Arc::ptr_eq(&ann, &of("ann")) && !Arc::ptr_eq(&ann, &bob));
        for number in 0..2 * MAX_USERS {
            of(&number.to_string());
        }
        assert_eq!(throttles.users.lock().len(), MAX_USERS);
        assert!(Arc::ptr_eq(&of("last"), &throttles.other_users) && Arc::ptr_eq(&ann, &of("ann")));
        let stranger = Caller::client("resp", Some(([127, 0, 0, 1], 5).into()), None);
        assert!(Arc::ptr_eq(&throttles.of(&stranger).unwrap(), &throttles.strangers));
        assert!(throttles.of(&Caller::file()).is_none() && throttles.of(&Caller::signal()).is_none());
    }
}
