//! Hash tags by slot: a key that must be in the slot of another key of a cluster begins with the tag of that slot.
//!
//! A tag is the smallest number, in decimal, that Redis puts into the slot. So it is the same on all servers and in all
//! versions. It depends only on the slot, and contains no bytes from clients, which could be braces.

use std::sync::LazyLock;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use redis::cluster_routing::Slot;

/// The number of slots of every cluster.
const SLOTS: usize = 16_384;
/// Enough numbers to have one in each slot, as a test checks.
const MOST_TRIES: u32 = 1 << 20;

static TAGS: LazyLock<HashMap<Slot, u32, RandomState>> = LazyLock::new(|| {
    let mut tags = HashMap::with_capacity_and_hasher(SLOTS, RandomState::default());
    for number in 0..MOST_TRIES {
        tags.entry(Slot::for_key(itoa::Buffer::new().format(number))).or_insert(number);
        if tags.len() == SLOTS {
            break;
        }
    }
    tags
});

/// Returns the tag of the key's slot, with braces. Redis computes the slot from the text between the key's first
/// braces, or from the whole key if there is no such text.
pub fn tag_of(name: &[u8]) -> String {
    let number = TAGS.get(&Slot::for_key(name)).copied().unwrap_or_default();
    format!("{{{number}}}")
}

/// Returns whether a cluster keeps the two keys in one slot.
pub fn share_slot(one: &[u8], other: &[u8]) -> bool {
    Slot::for_key(one) == Slot::for_key(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_slot_has_a_tag() {
        assert_eq!(TAGS.len(), SLOTS);
        for (slot, number) in &*TAGS {
            assert_eq!(Slot::for_key(format!("{{{number}}}whatever {{}}")), *slot);
        }
        // The slots are those of Redis's CLUSTER KEYSLOT. They must never change, because other servers use the same
        // names.
        assert_eq!([tag_of(b"foo"), tag_of(b"{user1000}.following")], ["{43681}", "{8583}"]);
    }

    proptest! {
        #[test]
        fn key_that_begins_with_the_tag_is_in_the_same_slot(name in prop::collection::vec(
            prop_oneof![Just(b'{'), Just(b'}'), any::<u8>()], 0..20)
        ) {
            let tagged = [tag_of(&name).as_bytes(), b"divvy.reserved:", &name].concat();
            prop_assert_eq!(Slot::for_key(tagged), Slot::for_key(&name));
        }
    }
}
