//! Synchronization primitives. In tests, those that are created under the model checker are the checker's, and it takes
//! control at each of them. All others are the real ones.
//!
//! tokio's channel is used in both cases. For the model checker its operations are single steps, and the wakers are the
//! checker's.

pub use tokio::sync::oneshot;

/// Runs `work` on a thread that may block. `work` either completes or never starts, even if the caller leaves.
/// Returns `None` if it panicked, or if the runtime is shutting down.
pub async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (done, worked) = oneshot::channel();
    spawn_blocking(move || drop(done.send(work())));
    worked.await.ok()
}

#[cfg(not(test))]
pub use self::real::*;
#[cfg(test)]
pub use self::tested::*;

#[cfg(not(test))]
mod real {
    pub use std::sync::atomic;

    pub use parking_lot::{Mutex, MutexGuard, RwLock, RwLockWriteGuard};

    /// Starts `work` on a thread that may block, unless the runtime is shutting down.
    pub fn spawn_blocking(work: impl FnOnce() + Send + 'static) {
        tokio::task::spawn_blocking(work);
    }

    /// Returns whether the model checker runs this code.
    pub const fn is_modeled() -> bool {
        false
    }
}

#[cfg(test)]
mod tested {
    use std::cell::Cell;
    use std::ops::{Deref, DerefMut};

    thread_local! {
        /// Whether the model checker runs on this thread, as it does with all threads of a schedule.
        static IS_MODELED: Cell<bool> = const { Cell::new(false) };
    }

    /// Returns whether the model checker runs this code.
    pub fn is_modeled() -> bool {
        IS_MODELED.get()
    }

    /// Runs the model checker. Primitives created within are the checker's.
    pub fn model(check: impl FnOnce()) {
        struct Reset;
        impl Drop for Reset {
            fn drop(&mut self) {
                IS_MODELED.set(false);
            }
        }
        IS_MODELED.set(true);
        let _reset = Reset;
        check();
    }

    pub fn spawn_blocking(work: impl FnOnce() + Send + 'static) {
        if is_modeled() {
            shuttle::thread::spawn(work);
        } else {
            tokio::task::spawn_blocking(work);
        }
    }

    /// Declares a primitive that is one of two, with the methods that both have.
    macro_rules! either {
        ($name:ident $(<$value:ident>)?, $real:ty, $modeled:ty, $of:ty,
         $(fn $method:ident(&self $(, $arg:ident: $type:ty)*) $(-> $returned:ty)?;)*) => {
            #[derive(Debug)]
            pub enum $name$(<$value>)? {
                Real($real),
                Modeled($modeled),
            }

            #[allow(dead_code, reason = "all atomics have the same methods")]
            impl$(<$value>)? $name$(<$value>)? {
                pub fn new(value: $of) -> Self {
                    if is_modeled() { Self::Modeled(<$modeled>::new(value)) } else { Self::Real(<$real>::new(value)) }
                }

                $(
                    pub fn $method(&self $(, $arg: $type)*) $(-> $returned)? {
                        match self {
                            Self::Real(real) => real.$method($($arg),*),
                            Self::Modeled(modeled) => modeled.$method($($arg),*),
                        }
                    }
                )*
            }

            impl$(<$value: Default>)? Default for $name$(<$value>)? {
                fn default() -> Self {
                    Self::new(Default::default())
                }
            }
        };
    }

    /// A guard that is one of two.
    pub enum Guard<R, M> {
        Real(R),
        Modeled(M),
    }

    impl<R: Deref, M: Deref<Target = R::Target>> Deref for Guard<R, M> {
        type Target = R::Target;

        fn deref(&self) -> &R::Target {
            match self {
                Self::Real(guard) => guard,
                Self::Modeled(guard) => guard,
            }
        }
    }

    impl<R: DerefMut, M: DerefMut<Target = R::Target>> DerefMut for Guard<R, M> {
        fn deref_mut(&mut self) -> &mut R::Target {
            match self {
                Self::Real(guard) => guard,
                Self::Modeled(guard) => guard,
            }
        }
    }

    pub type MutexGuard<'a, T> = Guard<parking_lot::MutexGuard<'a, T>, shuttle::sync::MutexGuard<'a, T>>;
    pub type RwLockReadGuard<'a, T> = Guard<parking_lot::RwLockReadGuard<'a, T>, shuttle::sync::RwLockReadGuard<'a, T>>;
    pub type RwLockWriteGuard<'a, T> =
        Guard<parking_lot::RwLockWriteGuard<'a, T>, shuttle::sync::RwLockWriteGuard<'a, T>>;

    either!(Mutex<T>, parking_lot::Mutex<T>, shuttle::sync::Mutex<T>, T,);
    either!(RwLock<T>, parking_lot::RwLock<T>, shuttle::sync::RwLock<T>, T,);

    // Like parking_lot's, locks are not poisoned by a panic.
    impl<T> Mutex<T> {
        pub fn lock(&self) -> MutexGuard<'_, T> {
            match self {
                Self::Real(mutex) => MutexGuard::Real(mutex.lock()),
                Self::Modeled(mutex) => MutexGuard::Modeled(mutex.lock().unwrap()),
            }
        }
    }

    impl<T> RwLock<T> {
        pub fn read(&self) -> RwLockReadGuard<'_, T> {
            match self {
                Self::Real(lock) => RwLockReadGuard::Real(lock.read()),
                Self::Modeled(lock) => RwLockReadGuard::Modeled(lock.read().unwrap()),
            }
        }

        pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
            match self {
                Self::Real(lock) => lock.try_read().map(RwLockReadGuard::Real),
                Self::Modeled(lock) => lock.try_read().ok().map(RwLockReadGuard::Modeled),
            }
        }

        pub fn write(&self) -> RwLockWriteGuard<'_, T> {
            match self {
                Self::Real(lock) => RwLockWriteGuard::Real(lock.write()),
                Self::Modeled(lock) => RwLockWriteGuard::Modeled(lock.write().unwrap()),
            }
        }
    }

    pub mod atomic {
        use std::sync::atomic as real;
        pub use std::sync::atomic::Ordering;

        use shuttle::sync::atomic as modeled;

        use super::is_modeled;

        macro_rules! either_atomic {
            ($name:ident, $of:ty $(, $method:ident)*) => {
                either!(
                    $name, real::$name, modeled::$name, $of,
                    fn load(&self, order: Ordering) -> $of;
                    fn store(&self, value: $of, order: Ordering);
                    fn swap(&self, value: $of, order: Ordering) -> $of;
                    fn compare_exchange(&self, from: $of, to: $of, order: Ordering, failed: Ordering) -> Result<$of, $of>;
                    $(fn $method(&self, value: $of, order: Ordering) -> $of;)*
                );
            };
        }

        either_atomic!(AtomicBool, bool);
        either_atomic!(AtomicU8, u8);
        either_atomic!(AtomicU32, u32, fetch_add, fetch_max);
        either_atomic!(AtomicU64, u64, fetch_add, fetch_or);
        either_atomic!(AtomicUsize, usize, fetch_add, fetch_sub);
    }
}
