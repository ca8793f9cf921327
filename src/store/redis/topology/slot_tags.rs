//! Hash tags by slot: what Redis is to keep beside another key of a cluster begins with the tag of that key's slot.
//!
//! A tag is the smallest number that Redis puts into the slot, in decimals, so it is the same on all servers and in all
//! versions. It follows from the slot alone: there is nothing in it of a client's own bytes, among which there may be braces.

use std::sync::LazyLock;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use redis::cluster_routing::Slot;

/// Slots of every cluster.
const SLOTS: usize = 16_384;
/// More numbers than are needed to have one in each slot: the tests see to that.
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

/// The tag of the slot in which the key of that name is, braces and all. The slot follows from the name as Redis has it: from
/// what is between its first braces, if it has any with something between them.
pub fn tag_of(name: &[u8]) -> String {
    let number = TAGS.get(&Slot::for_key(name)).copied().unwrap_or_default();
    format!("{{{number}}}")
}

/// Whether a cluster keeps the keys with these names in one slot.
pub fn share_slot(one: &[u8], other: &[u8]) -> bool {
    Slot::for_key(one) == Slot::for_key(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_slot_has_a_tag_that_is_in_it() {
        assert_eq!(TAGS.len(), SLOTS);
        for (slot, number) in &*TAGS {
            assert_eq!(Slot::for_key(format!("{{{number}}}whatever {{}}")), *slot);
        }
        // As Redis tells by CLUSTER KEYSLOT. They must never change: other servers look for the same names.
        assert_eq!([tag_of(b"foo"), tag_of(b"{user1000}.following")], ["{43681}", "{8583}"]);
    }

    proptest! {
        #[test]
        fn what_begins_with_the_tag_is_in_the_name_s_slot(name in prop::collection::vec(
            prop_oneof![Just(b'{'), Just(b'}'), any::<u8>()], 0..20)
        ) {
            let beside = [tag_of(&name).as_bytes(), b"divvy.reserved:", &name].concat();
            prop_assert_eq!(Slot::for_key(beside), Slot::for_key(&name));
        }
    }
}
