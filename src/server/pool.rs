//! Working memory that the connections of one thread lend each other: who waits for its client holds none.
//!
//! Ten thousand clients that once sent a burst each would keep gigabytes otherwise; and memory that was used a moment
//! ago is in the processor's caches.

use std::cell::RefCell;
use std::thread::LocalKey;

/// How many are kept for the next borrower, on each thread.
const MAX_KEPT: usize = 256;

/// Something that a thread keeps a pool of.
pub trait Pooled: Default + 'static {
    fn pool() -> &'static LocalKey<RefCell<Vec<Self>>>;
}

/// One that was given back, or a new one.
pub fn take<T: Pooled>() -> T {
    T::pool().with_borrow_mut(Vec::pop).unwrap_or_default()
}

/// Gives it back, as it is to be found.
pub fn give<T: Pooled>(item: T) {
    T::pool().with_borrow_mut(|kept| {
        if kept.len() < MAX_KEPT {
            kept.push(item);
        }
    });
}

/// Declares a pool for a type.
macro_rules! pooled {
    ($type:ty) => {
        impl $crate::server::pool::Pooled for $type {
            fn pool() -> &'static std::thread::LocalKey<std::cell::RefCell<Vec<Self>>> {
                thread_local! {
                    static KEPT: std::cell::RefCell<Vec<$type>> = const { std::cell::RefCell::new(Vec::new()) };
                }
                &KEPT
            }
        }
    };
}
pub(super) use pooled;
