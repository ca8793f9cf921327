//! A stripe stays within its memory, and uses it, while counters of all kinds come and go.

use proptest::prelude::*;

use super::TOLERATED_EXCESS;
use super::*;
use crate::journal::SegmentMarks;
use divvy_core::algorithm::{SlidingLogState, TokenBucketState};

const MEMORY: usize = 64 << 10;
/// Memory that one counter may add after the stripe has made room.
const ONE_MORE: usize = 4 << 10;

#[derive(Debug, Clone, Copy)]
enum Kind {
    Window,
    Bucket,
    Log(usize),
}

fn kinds() -> impl Strategy<Value = Kind> {
    prop_oneof![Just(Kind::Window), Just(Kind::Bucket), (0..40usize).prop_map(Kind::Log)]
}

fn state(kind: Kind) -> State {
    let now = Timestamp::from_nanos(1);
    match kind {
        Kind::Window => State::FixedWindow(WindowState { ends: now, count: 7 }),
        Kind::Bucket => State::TokenBucket(TokenBucketState { mark: now, count: 7, session: now, own_capacity: 0 }),
        Kind::Log(length) => State::SlidingLog(SlidingLogState { times: vec![now; length].into() }),
    }
}

fn add(stripe: &mut Stripe, hash: u64, kind: Kind, marks: &SegmentMarks, is_clean: bool) {
    let mark = if is_clean { marks.clean() as Mark } else { marks.open() as Mark };
    stripe.make_room(marks);
    stripe.set(None, hash, Some(state(kind)), Timestamp::from_nanos(1), stripe.loaded_tags(mark, true));
}

fn is_within_memory(stripe: &Stripe) -> bool {
    stripe.bytes() <= MEMORY + MEMORY / TOLERATED_EXCESS + ONE_MORE
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Regression test: buckets used to grow by doubling. Beyond half of the memory, they exceeded it. Then each new
    /// bucket evicted two others, until almost none were left.
    #[test]
    fn clean_counters_of_all_kinds_stay_within_the_memory_and_fill_it(
        phases in prop::collection::vec((prop::collection::vec(kinds(), 1..4), 1..4_000usize), 1..5),
    ) {
        let (mut stripe, marks) = (Stripe::new(MEMORY), SegmentMarks::default());
        let mut next = 0u64;
        for (kinds, count) in phases {
            for kind in kinds.iter().cycle().take(count) {
                next = next.wrapping_add(0x9E37_79B9_7F4A_7C15);
                add(&mut stripe, next, *kind, &marks, true);
                prop_assert!(is_within_memory(&stripe), "{} bytes", stripe.bytes());
            }
            let is_full = stripe.lacks_counters;
            prop_assert!(!is_full || stripe.least_bytes() > MEMORY * 3 / 5, "{} counters in {}", stripe.slots.len(), stripe.least_bytes());
        }
    }
}

#[test]
fn excess_memory_of_dirty_counters_is_freed() {
    const COUNTERS: u32 = 5_000;
    for kind in [Kind::Window, Kind::Bucket, Kind::Log(20)] {
        let (mut stripe, marks) = (Stripe::new(MEMORY), SegmentMarks::default());
        for counter in 0..u64::from(COUNTERS) {
            add(&mut stripe, counter << 48, kind, &marks, false);
        }
        assert_eq!(stripe.slots.len(), COUNTERS as usize, "no counter may be evicted");
        assert!(stripe.excess() > MEMORY);
        stripe.give_back(&marks);
        assert_eq!(stripe.slots.len(), COUNTERS as usize);
        marks.set_clean(marks.close());
        stripe.give_back(&marks);
        assert!(stripe.bytes() <= MEMORY && stripe.excess() == 0, "{kind:?}: {}", stripe.bytes());
        assert!(stripe.least_bytes() > MEMORY * 9 / 10, "{kind:?}: {}", stripe.least_bytes());
        let kept = (0..u64::from(COUNTERS)).filter_map(|counter| stripe.slots.find(counter << 48));
        assert!(kept.into_iter().all(|index| stripe.state(Some(index)).as_deref() == Some(&state(kind))), "{kind:?}");
    }
}
