//! What the commit path synchronizes with: the real primitives, or, with the feature `model` in tests, the model
//! checker's, which has control at each of them. Nothing here decides anything.
//!
//! tokio's channel stays as it is: for the model checker its operations are single steps, and wakers are the checker's.

pub use tokio::sync::oneshot;

#[cfg(all(test, feature = "model"))]
pub use self::model::*;
#[cfg(not(all(test, feature = "model")))]
pub use self::real::*;

#[cfg(not(all(test, feature = "model")))]
mod real {
    pub use std::sync::atomic;

    pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
    pub use tokio::task::yield_now;

    /// Runs `work` on a thread that may block. `work` runs to its end, or not at all, even when the result is not waited
    /// for; `None` when it panicked or the runtime is shutting down.
    pub async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        tokio::task::spawn_blocking(work).await.ok()
    }
}

#[cfg(all(test, feature = "model"))]
mod model {
    use std::ops::{Deref, DerefMut};

    pub use shuttle::future::yield_now;
    pub use shuttle::sync::atomic;
    use shuttle::sync::{self, MutexGuard as ShuttleGuard};

    use super::oneshot;

    /// As parking_lot's: a panic elsewhere does not poison it.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(sync::Mutex<T>);

    /// Empty only while a [`Condvar`] waits.
    pub struct MutexGuard<'a, T>(Option<ShuttleGuard<'a, T>>);

    impl<T> Mutex<T> {
        pub fn new(value: T) -> Self {
            Self(sync::Mutex::new(value))
        }

        pub fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(Some(self.0.lock().unwrap()))
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.0.as_ref().unwrap()
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().unwrap()
        }
    }

    #[derive(Debug, Default)]
    pub struct Condvar(sync::Condvar);

    impl Condvar {
        pub fn new() -> Self {
            Self(sync::Condvar::new())
        }

        pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            guard.0 = Some(self.0.wait(guard.0.take().unwrap()).unwrap());
        }

        pub fn notify_one(&self) {
            self.0.notify_one();
        }
    }

    #[derive(Debug, Default)]
    pub struct RwLock<T>(sync::RwLock<T>);

    pub use shuttle::sync::RwLockReadGuard;

    impl<T> RwLock<T> {
        pub fn new(value: T) -> Self {
            Self(sync::RwLock::new(value))
        }

        pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
            self.0.try_read().ok()
        }

        pub fn write(&self) -> sync::RwLockWriteGuard<'_, T> {
            self.0.write().unwrap()
        }
    }

    pub async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let (done, worked) = oneshot::channel();
        shuttle::thread::spawn(move || drop(done.send(work())));
        worked.await.ok()
    }
}
