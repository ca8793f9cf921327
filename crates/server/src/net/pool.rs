//! Buffers that the connections of a thread share. A connection that waits for its client holds none.
//!
//! Otherwise, ten thousand clients that have each sent one burst would keep gigabytes. Recently used memory is also
//! likely to be in the processor's caches. Each pool has a bound per item and a bound in total.

use std::cell::RefCell;
use std::thread::LocalKey;

/// Maximum number of items in a pool.
const MAX_KEPT: usize = 256;
/// Maximum memory of an item that is kept (bytes).
pub const MAX_ITEM: usize = 256 * 1024;
/// Maximum memory of all items in a pool (bytes).
const MAX_HELD: usize = 4 * 1024 * 1024;

/// A type with a pool on each thread.
pub trait Pooled: Default + 'static {
    fn pool() -> &'static LocalKey<RefCell<Pool<Self>>>;

    /// Returns the memory that the item holds (bytes).
    fn held(&self) -> usize;
}

/// The unused items of one thread.
pub struct Pool<T> {
    kept: Vec<T>,
    /// Memory of all items (bytes).
    held: usize,
}

impl<T: Pooled> Pool<T> {
    pub const fn new() -> Self {
        Self { kept: Vec::new(), held: 0 }
    }

    fn take(&mut self) -> T {
        let item = self.kept.pop().unwrap_or_default();
        self.held = self.held.saturating_sub(item.held());
        item
    }

    fn give(&mut self, item: T) {
        let held = item.held();
        if held <= MAX_ITEM && self.held + held <= MAX_HELD && self.kept.len() < MAX_KEPT {
            self.held += held;
            self.kept.push(item);
        }
    }
}

/// Takes an item out of the pool, or creates one.
pub fn take<T: Pooled>() -> T {
    T::pool().with_borrow_mut(Pool::take)
}

/// Returns an item to the pool, ready for the next use. Drops it if it is too large or the pool is full.
pub fn give<T: Pooled>(item: T) {
    T::pool().with_borrow_mut(|pool| pool.give(item));
}

/// Declares a pool for a type. `held` computes the memory of an item.
macro_rules! pooled {
    ($type:ty, $held:expr) => {
        impl $crate::net::pool::Pooled for $type {
            fn pool() -> &'static std::thread::LocalKey<std::cell::RefCell<$crate::net::pool::Pool<Self>>> {
                thread_local! {
                    static KEPT: std::cell::RefCell<$crate::net::pool::Pool<$type>> =
                        const { std::cell::RefCell::new($crate::net::pool::Pool::new()) };
                }
                &KEPT
            }

            fn held(&self) -> usize {
                let held: fn(&Self) -> usize = $held;
                held(self)
            }
        }
    };
}
pub(crate) use pooled;

#[cfg(test)]
mod tests {
    use super::*;

    /// An item with this number of bytes.
    #[derive(Default)]
    struct Item(usize);

    pooled!(Item, |item| item.0);

    #[test]
    fn item_is_reused_unless_it_is_large() {
        let mut pool = Pool::new();
        pool.give(Item(MAX_ITEM));
        pool.give(Item(MAX_ITEM + 1));
        assert_eq!((pool.kept.len(), pool.held), (1, MAX_ITEM));
        assert_eq!(pool.take().0, MAX_ITEM);
        assert_eq!((pool.take().0, pool.held), (0, 0), "a new one");
    }

    #[test]
    fn pool_is_bounded_in_bytes_and_in_items() {
        let mut pool = Pool::new();
        (0..100).for_each(|_| pool.give(Item(MAX_ITEM)));
        assert_eq!(pool.held, MAX_HELD);
        let mut pool = Pool::new();
        (0..2 * MAX_KEPT).for_each(|_| pool.give(Item(1)));
        assert_eq!(pool.kept.len(), MAX_KEPT);
    }

    #[test]
    fn each_type_has_its_own_pool_on_each_thread() {
        give(Item(7));
        std::thread::spawn(|| assert_eq!(take::<Item>().0, 0)).join().unwrap();
        assert_eq!(take::<Item>().0, 7);
    }
}
