//! Synchronization primitives: the real ones, or the model checker's (feature `model` in tests). The checker takes
//! control at each of them.
//!
//! tokio's channel is used in both cases. For the model checker its operations are single steps, and the wakers are the
//! checker's.

pub use tokio::sync::oneshot;

#[cfg(all(test, feature = "model"))]
pub use self::model::*;
#[cfg(not(all(test, feature = "model")))]
pub use self::real::*;

#[cfg(not(all(test, feature = "model")))]
mod real {
    pub use std::sync::atomic;

    pub use parking_lot::{Mutex, MutexGuard, RwLock, RwLockWriteGuard};
    pub use tokio::task::yield_now;

    /// Runs `work` on a thread that may block. `work` either completes or never starts, even if the caller leaves.
    /// Returns `None` if it panicked, or if the runtime is shutting down.
    pub async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        tokio::task::spawn_blocking(work).await.ok()
    }
}

#[cfg(all(test, feature = "model"))]
mod model {
    pub use shuttle::future::yield_now;
    use shuttle::sync;
    pub use shuttle::sync::{MutexGuard, atomic};

    use super::oneshot;

    /// A mutex that, like parking_lot's, is not poisoned by a panic.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub fn new(value: T) -> Self {
            Self(sync::Mutex::new(value))
        }

        pub fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap()
        }
    }

    #[derive(Debug, Default)]
    pub struct RwLock<T>(sync::RwLock<T>);

    pub use shuttle::sync::{RwLockReadGuard, RwLockWriteGuard};

    impl<T> RwLock<T> {
        pub fn new(value: T) -> Self {
            Self(sync::RwLock::new(value))
        }

        pub fn read(&self) -> RwLockReadGuard<'_, T> {
            self.0.read().unwrap()
        }

        pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
            self.0.try_read().ok()
        }

        pub fn write(&self) -> RwLockWriteGuard<'_, T> {
            self.0.write().unwrap()
        }
    }

    pub async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let (done, worked) = oneshot::channel();
        shuttle::thread::spawn(move || drop(done.send(work())));
        worked.await.ok()
    }
}
