//! The queue of logins that wait for argon2id. Addresses take turns in it, so that a flood from one address delays a login
//! from another by about one check.
//!
//! A login waits first for the turn of its address, and then for a thread, in order of arrival. So each address has at
//! most one check at work or in the second queue. Addresses whose last attempt failed share one of the threads, and half
//! of the places: however many they are, another address waits for one check of theirs. A login that is dropped leaves
//! all queues.

use std::collections::hash_map::{Entry, RandomState};
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::users::Given;

/// Maximum number of threads that compute argon2id at a time. Each needs up to 256 MiB.
pub const MAX_CHECKS: usize = 2;
/// Maximum number of addresses with logins in the queue. Those whose last attempt failed get a place only while half of
/// the places are free.
const MAX_ADDRESSES: usize = 1_024;
/// Number of failing addresses after which the older half of them is forgotten.
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
    suspects: Suspects,
}

/// The addresses whose last attempt failed, the newer and the older ones.
#[derive(Debug, Default)]
struct Suspects {
    new: HashSet<Option<IpAddr>>,
    old: HashSet<Option<IpAddr>>,
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

/// There are too many logins in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueFull;

/// A place in the queue, until it is dropped.
#[derive(Debug)]
pub struct Place {
    queue: Arc<CheckQueue>,
    address: Option<IpAddr>,
    credentials: u64,
    are_wrong: Arc<AtomicBool>,
    turn: Arc<Semaphore>,
}

/// A thread for a check, until it is dropped.
#[derive(Debug)]
pub struct Thread {
    _thread: OwnedSemaphorePermit,
    _of_suspects: Option<OwnedSemaphorePermit>,
}

impl Suspects {
    fn contains(&self, address: &Option<IpAddr>) -> bool {
        self.new.contains(address) || self.old.contains(address)
    }

    fn insert(&mut self, address: Option<IpAddr>) {
        if self.new.len() >= MAX_SUSPECTS / 2 && !self.new.contains(&address) {
            self.old = std::mem::take(&mut self.new);
        }
        self.new.insert(address);
    }

    fn remove(&mut self, address: &Option<IpAddr>) {
        self.new.remove(address);
        self.old.remove(address);
    }
}

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
    ) -> Result<Place, QueueFull> {
        let key = self.keys.hash_one((given, revision));
        let State { addresses, suspects } = &mut *self.state.lock();
        let count = addresses.len();
        let places = if suspects.contains(&address) { MAX_ADDRESSES / 2 } else { MAX_ADDRESSES };
        let logins = match addresses.entry(address) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(_) if count >= places => return Err(QueueFull),
            Entry::Vacant(new) => {
                new.insert(Address { turn: Arc::new(Semaphore::new(1)), credentials: HashMap::new() })
            }
        };
        let count = logins.credentials.len();
        let credentials = match logins.credentials.entry(key) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(_) if count >= MAX_OF_ADDRESS => return Err(QueueFull),
            Entry::Vacant(new) => new.insert(Credentials::default()),
        };
        credentials.places += 1;
        let (are_wrong, turn) = (Arc::clone(&credentials.are_wrong), Arc::clone(&logins.turn));
        Ok(Place { queue: Arc::clone(self), address, credentials: key, are_wrong, turn })
    }

    #[cfg(test)]
    pub fn threads(&self) -> &Semaphore {
        &self.threads
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
        Some(Thread { _thread: thread, _of_suspects: of_suspects })
    }

    /// Returns whether the same credentials turned out to be wrong while this login waited.
    pub fn are_wrong(&self) -> bool {
        self.are_wrong.load(Relaxed)
    }

    /// Records that the credentials are wrong.
    pub fn set_wrong(&self) {
        self.are_wrong.store(true, Relaxed);
        self.queue.state.lock().suspects.insert(self.address);
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
mod tests {
    use std::pin::pin;

    use futures_util::poll;

    use super::*;

    fn address(last: u8) -> Option<IpAddr> {
        Some([192, 0, 2, last].into())
    }

    fn enter(queue: &Arc<CheckQueue>, from: u8, password: usize) -> Result<Place, QueueFull> {
        queue.enter(address(from), &Given::Password(password.to_string().as_bytes()), 1)
    }

    #[tokio::test]
    async fn floods_from_other_addresses_delay_a_login_by_one_check() {
        let queue = CheckQueue::new();
        let floods: Vec<_> = (0..MAX_CHECKS as u8)
            .map(|from| (0..MAX_OF_ADDRESS).map(|n| enter(&queue, from, n).unwrap()).collect::<Vec<_>>())
            .collect();
        let mut at_work = Vec::new();
        for flood in &floods {
            at_work.push((flood[0].turn().await, flood[0].thread().await));
        }
        let waiting = floods.iter().flatten().map(|place| async { (place.turn().await, place.thread().await) });
        let mut waiting: Vec<_> = waiting.map(Box::pin).collect();
        for attempt in &mut waiting {
            assert!(poll!(attempt.as_mut()).is_pending());
        }
        let place = enter(&queue, 99, 0).unwrap();
        let mut login = pin!(async { (place.turn().await, place.thread().await) });
        assert!(poll!(login.as_mut()).is_pending());
        at_work.pop();
        for attempt in &mut waiting {
            assert!(poll!(attempt.as_mut()).is_pending(), "the attempts that came first wait for their address");
        }
        assert!(poll!(login.as_mut()).is_ready());
    }

    #[tokio::test]
    async fn one_address_leaves_a_thread_to_the_others() {
        let queue = CheckQueue::new();
        let (first, second, other) =
            (enter(&queue, 1, 1).unwrap(), enter(&queue, 1, 2).unwrap(), enter(&queue, 2, 1).unwrap());
        let (_turn, _thread) = (first.turn().await, first.thread().await);
        assert!(poll!(pin!(second.turn())).is_pending());
        let mut both = pin!(async { (other.turn().await, other.thread().await) });
        assert!(poll!(both.as_mut()).is_ready());
    }

    #[tokio::test]
    async fn login_that_leaves_gives_up_its_turn() {
        let queue = CheckQueue::new();
        let places: Vec<_> = (0..3).map(|n| enter(&queue, 1, n).unwrap()).collect();
        let turn = places[0].turn().await;
        let mut last = pin!(places[2].turn());
        {
            let mut left = pin!(places[1].turn());
            assert!(poll!(left.as_mut()).is_pending() && poll!(last.as_mut()).is_pending());
        }
        drop(turn);
        assert!(poll!(last.as_mut()).is_ready());
    }

    #[test]
    fn places_are_bounded_and_free_again_when_they_are_left() {
        let queue = CheckQueue::new();
        let mut places: Vec<_> = (0..MAX_OF_ADDRESS).map(|n| enter(&queue, 1, n).unwrap()).collect();
        assert_eq!(enter(&queue, 1, MAX_OF_ADDRESS).unwrap_err(), QueueFull);
        places.push(enter(&queue, 1, 0).unwrap());
        places.push(enter(&queue, 2, 0).unwrap());
        drop(places.remove(0));
        assert!(enter(&queue, 1, MAX_OF_ADDRESS).is_err(), "another login with the same credentials waits");
        drop(places.remove(0));
        assert!(enter(&queue, 1, MAX_OF_ADDRESS).is_ok());
        let many: Vec<_> = (0..MAX_ADDRESSES as u128)
            .map(|n| queue.enter(Some(IpAddr::V6(n.into())), &Given::Password(b""), 1))
            .collect();
        assert_eq!(many.iter().filter(|place| place.is_err()).count(), 2, "two other addresses have places");
        drop((many, places));
        assert!(queue.state.lock().addresses.is_empty());
    }

    #[tokio::test]
    async fn failing_addresses_leave_a_thread_and_half_of_the_places_to_the_others() {
        let queue = CheckQueue::new();
        let enter = |address: u128| queue.enter(Some(IpAddr::V6(address.into())), &Given::Password(b"x"), 1);
        (0..1_024).for_each(|address| enter(address).unwrap().set_wrong());
        let flood: Vec<_> = (0..1_024).filter_map(|address| enter(address).ok()).collect();
        assert_eq!(flood.len(), MAX_ADDRESSES / 2);
        let mut waiting: Vec<_> = flood.iter().map(|place| Box::pin(place.thread())).collect();
        let mut at_work = Vec::new();
        for login in &mut waiting {
            at_work.extend(match poll!(login.as_mut()) {
                std::task::Poll::Ready(thread) => thread,
                std::task::Poll::Pending => None,
            });
        }
        assert_eq!(at_work.len(), 1);
        let first = enter(2_000).unwrap();
        assert!(poll!(pin!(first.thread())).is_ready(), "an address without a failing attempt");

        let (after_success, other) = (enter(0).unwrap(), enter(1).unwrap());
        after_success.set_right();
        assert!(poll!(pin!(after_success.thread())).is_ready());
        assert!(poll!(pin!(other.thread())).is_pending());
    }

    #[test]
    fn failing_addresses_are_bounded() {
        let mut suspects = Suspects::default();
        let address = |number: u128| Some(IpAddr::V6(number.into()));
        (0..200_000).for_each(|number| suspects.insert(address(number)));
        assert!(suspects.new.len() + suspects.old.len() <= MAX_SUSPECTS);
        assert!(suspects.contains(&address(199_999)) && !suspects.contains(&address(0)));
    }

    #[test]
    fn wrong_credentials_are_known_to_logins_with_the_same_ones() {
        let queue = CheckQueue::new();
        let (first, same) = (enter(&queue, 1, 1).unwrap(), enter(&queue, 1, 1).unwrap());
        let others = [
            enter(&queue, 1, 2),
            enter(&queue, 2, 1),
            queue.enter(address(1), &Given::Password(b"1"), 2),
            queue.enter(address(1), &Given::Token(b"1"), 1),
        ];
        first.set_wrong();
        assert!(same.are_wrong() && others.into_iter().all(|other| !other.unwrap().are_wrong()));
    }
}
