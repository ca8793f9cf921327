use super::*;
use divvy_telemetry::metrics::Metrics;
use futures_util::poll;
use std::pin::pin;

#[test]
fn shares_never_exceed_the_budget_and_are_returned() {
    let memory = BufferMemory::new(100, Metrics::new());
    let (mut one, mut other) = (memory.share(), memory.share());
    assert_eq!(one.resize(60), Ok(()));
    assert_eq!(other.resize(41), Err(BudgetExceeded));
    assert_eq!(other.resize(40), Ok(()));
    assert_eq!(one.resize(61), Err(BudgetExceeded));
    assert_eq!(memory.used.load(Relaxed), 100, "a refusal changes nothing");
    assert_eq!(one.resize(10), Ok(()));
    assert_eq!(other.resize(90), Ok(()));
    assert_eq!(other.resize(usize::MAX), Err(BudgetExceeded));
    drop(other);
    assert_eq!(memory.used.load(Relaxed), 10);
    drop(one);
    assert_eq!(memory.used.load(Relaxed), 0);
}

fn free(memory: &RequestMemory) -> usize {
    memory.free.available_permits() * WORK_UNIT
}

#[test]
fn request_memory_grows_within_the_budget_and_is_returned() {
    let budget = BufferMemory::new(0, Metrics::new());
    let mut holders: Vec<_> = (0..2 * WORK_MEMORY / MAX_PART).map(|_| RequestMemory::new(&budget)).collect();
    for memory in &mut holders {
        assert!(memory.fits(OWN), "its own part");
        let mut weight = OWN;
        while memory.fits(weight + 1) {
            weight = memory.bound;
        }
    }
    assert_eq!(free(&holders[0]), 0);
    assert!(!holders[0].fits(MAX_PART + 1), "a part is never larger");
    assert_eq!((holders[0].give_back(), holders[0].give_back()), (true, false));
    assert!(holders.last_mut().unwrap().fits(OWN + 1));
    drop(holders);
    assert_eq!(free(&RequestMemory::new(&budget)), WORK_MEMORY);
}

#[tokio::test]
async fn large_request_waits_without_holding_memory() {
    let budget = BufferMemory::new(0, Metrics::new());
    let (mut one, mut other) = (RequestMemory::new(&budget), RequestMemory::new(&budget));
    assert!(one.fits(OWN + 1) && other.fits(OWN + 1));
    {
        let mut waits = pin!(other.wait_for(WORK_MEMORY + 1));
        assert!(poll!(waits.as_mut()).is_pending());
        assert_eq!(free(&one), 0, "all that is left is kept for the waiter");
        one.give_back();
        assert!(poll!(waits.as_mut()).is_ready());
    }
    assert!(other.fits(MAX_PART) && !one.fits(OWN + 1));
    {
        // If a waiting holder leaves, its place in the queue becomes free.
        let mut leaves = pin!(one.wait_for(1));
        assert!(poll!(leaves.as_mut()).is_pending());
    }
    other.give_back();
    assert_eq!(free(&one), WORK_MEMORY);
}

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
fn pool_is_bounded_in_bytes() {
    let mut pool = Pool::new();
    (0..100).for_each(|_| pool.give(Item(MAX_ITEM)));
    assert_eq!(pool.held, MAX_HELD);
}

#[test]
fn each_type_has_its_own_pool_on_each_thread() {
    give(Item(7));
    std::thread::spawn(|| assert_eq!(take::<Item>().0, 0)).join().unwrap();
    assert_eq!(take::<Item>().0, 7);
}
