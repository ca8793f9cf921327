//! Working memory shared by the connections of one thread: a connection that waits for its client holds none.
//!
//! Otherwise, ten thousand clients that each sent one burst would keep gigabytes. Recently used memory is also still in
//! the processor's caches. Each pool is bounded, per item and in total.

use std::cell::RefCell;
use std::thread::LocalKey;

/// How many are kept for the next borrower, on each thread.
const MAX_KEPT: usize = 256;
/// An item that holds more is not kept (bytes).
pub const MAX_ITEM: usize = 256 * 1024;
/// What the items of one pool may hold together (bytes).
const MAX_HELD: usize = 4 * 1024 * 1024;

/// Something that a thread keeps a pool of.
pub trait Pooled: Default + 'static {
    fn pool() -> &'static LocalKey<RefCell<Pool<Self>>>;

    /// The memory that an item holds (bytes).
    fn held(&self) -> usize;
}

/// The items that wait for a borrower, on one thread.
pub struct Pool<T> {
    kept: Vec<T>,
    /// What they hold together (bytes).
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

/// One that was given back, or a new one.
pub fn take<T: Pooled>() -> T {
    T::pool().with_borrow_mut(Pool::take)
}

/// Gives it back, as it is to be found. It is dropped when it is large, or the pool is full.
pub fn give<T: Pooled>(item: T) {
    T::pool().with_borrow_mut(|pool| pool.give(item));
}

/// Declares a pool for a type, and how much memory one of its items holds.
macro_rules! pooled {
    ($type:ty, $held:expr) => {
        impl $crate::server::net::pool::Pooled for $type {
            fn pool() -> &'static std::thread::LocalKey<std::cell::RefCell<$crate::server::net::pool::Pool<Self>>> {
                thread_local! {
                    static KEPT: std::cell::RefCell<$crate::server::net::pool::Pool<$type>> =
                        const { std::cell::RefCell::new($crate::server::net::pool::Pool::new()) };
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
pub(in crate::server) use pooled;

#[cfg(test)]
mod tests {
    use super::*;

    /// Of this many bytes.
    #[derive(Default)]
    struct Item(usize);

    pooled!(Item, |item| item.0);

    #[test]
    fn an_item_is_lent_again_unless_it_is_large() {
        let mut pool = Pool::new();
        pool.give(Item(MAX_ITEM));
        pool.give(Item(MAX_ITEM + 1));
        assert_eq!((pool.kept.len(), pool.held), (1, MAX_ITEM));
        assert_eq!(pool.take().0, MAX_ITEM);
        assert_eq!((pool.take().0, pool.held), (0, 0), "a new one");
    }

    #[test]
    fn a_pool_is_bounded_in_bytes_and_in_items() {
        let mut pool = Pool::new();
        (0..100).for_each(|_| pool.give(Item(MAX_ITEM)));
        assert_eq!(pool.held, MAX_HELD);
        let mut pool = Pool::new();
        (0..2 * MAX_KEPT).for_each(|_| pool.give(Item(1)));
        assert_eq!(pool.kept.len(), MAX_KEPT);
    }

    #[test]
    fn each_type_has_a_pool_of_its_own_on_each_thread() {
        give(Item(7));
        std::thread::spawn(|| assert_eq!(take::<Item>().0, 0)).join().unwrap();
        assert_eq!(take::<Item>().0, 7);
    }
}
