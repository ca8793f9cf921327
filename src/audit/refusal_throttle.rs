//! Bounds the lines about refused attempts, so that no client can fill the disk with them.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::caller::Caller;
use crate::logging::LogThrottle;

/// Lines per second about refused attempts of all strangers together.
pub const STRANGERS_PER_SECOND: u64 = 10;
/// Lines per second about refused attempts of one user.
pub const USER_PER_SECOND: u64 = 25;
/// Maximum number of users with a throttle of their own. Others share one.
const MAX_USERS: usize = 1_024;

/// Throttles for the lines about refused attempts.
#[derive(Debug)]
pub struct RefusalThrottle {
    strangers: Arc<LogThrottle>,
    users: Mutex<HashMap<Box<str>, Arc<LogThrottle>>>,
    /// Throttle that users beyond [`MAX_USERS`] share.
    other_users: Arc<LogThrottle>,
}

impl RefusalThrottle {
    /// Creates throttles without omitted lines.
    pub fn new() -> Self {
        let throttle = |rate| Arc::new(LogThrottle::at_rate(rate));
        let (strangers, other_users) = (throttle(STRANGERS_PER_SECOND), throttle(USER_PER_SECOND));
        Self { strangers, users: Mutex::default(), other_users }
    }

    /// Returns the throttle for this caller; `None` if it is not a client.
    pub fn of(&self, caller: &Caller) -> Option<Arc<LogThrottle>> {
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
        let new = Arc::new(LogThrottle::at_rate(USER_PER_SECOND));
        users.insert(caller.user().into(), Arc::clone(&new));
        Some(new)
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
