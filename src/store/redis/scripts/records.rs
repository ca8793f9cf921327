//! What is kept beside a bucket in Redis: reservations, and asks that are answered once. Their names, what the scripts are asked,
//! and what they answer.
//!
//! What is reserved of a bucket has a key of its own, beside the bucket's: so that one stays what others read there, the
//! original Divvy and servers that know of no reservations. It holds credits by their ends, and is gone with the last of them.
//! Every script on a bucket subtracts them. Each reservation has a record besides, which is gone when it may be forgotten; so
//! has each ask that is answered once. How many there may be is bounded by Redis's own memory, not here.
//!
//! The name of the first follows from the bucket's, so a script finds it without being told its key. A hit must not name both:
//! a cluster refuses that (`TRYAGAIN`) as long as the slot moves to another node, since most buckets have but one of them. The
//! keys of a slot begin with its tag there, which is told. Asks that have records name all of their keys, and are refused then.

use crate::algorithm::{Fate, ReservationAsk};
use crate::store::contract::Action;
use crate::store::redis::topology::{Layout, tag_of};

/// The prefix of the key with a bucket's reservations. The bucket's name follows.
pub const RESERVED: &str = "divvy.reserved:";
/// Before the keys of the records.
const RESERVATION: &[u8] = b"divvy.reservation:";
const ANSWER: &[u8] = b"divvy.verdict:";

/// The name of the record with this key, which the action is about, but for its tag; `None` where there is no record.
pub fn name(action: Action, key: &[u8]) -> Option<Vec<u8>> {
    match action {
        Action::Reservation(_) => Some([RESERVATION, key].concat()),
        Action::Idempotent { .. } => Some([ANSWER, key].concat()),
        Action::Ask(_) | Action::Forget => None,
    }
}

/// What the names beside that of the bucket begin with, for the script of a call that does not name them.
pub fn tag(bucket: &[u8], records: &[Vec<u8>], layout: Layout) -> Option<String> {
    (layout == Layout::Cluster && records.is_empty()).then(|| tag_of(bucket))
}

/// The further keys of a call on the bucket of that name, which asks about records with these names.
pub fn other_keys(bucket: &[u8], records: &[Vec<u8>], layout: Layout) -> Vec<Vec<u8>> {
    if records.is_empty() {
        return Vec::new();
    }
    let tag = if layout == Layout::Cluster { tag_of(bucket) } else { String::new() };
    let records = records.iter().map(|record| [tag.as_bytes(), record].concat());
    std::iter::once([tag.as_bytes(), RESERVED.as_bytes(), bucket].concat()).chain(records).collect()
}

/// Returns what follows the ask of an idempotent request in the arguments of the scripts.
pub fn once(fingerprint: u64) -> String {
    format!(" once {fingerprint}")
}

/// What the scripts call the ask; `at` is its time as they read it.
pub fn text(ask: ReservationAsk, at: &str, generation: u64) -> String {
    match ask {
        ReservationAsk::Reserve { credits, ttl_seconds } => {
            format!("reserve {credits} {at} {ttl_seconds} {generation}")
        }
        ReservationAsk::Commit { cost, charges: true } => format!("commit {cost} {at} late"),
        ReservationAsk::Commit { cost, charges: false } => format!("commit {cost} {at}"),
        ReservationAsk::Release => format!("release 0 {at}"),
        // None of these is 0, which stands for the time that it was made for.
        ReservationAsk::Renew { ttl_seconds } => format!("renew {} {at}", ttl_seconds.unwrap_or(0)),
    }
}

/// What an ask came to, as the scripts call it.
pub fn fate(word: &str) -> Option<Fate> {
    Some(match word {
        "done" => Fate::Done,
        "late" => Fate::Late,
        "repeated" => Fate::Repeated,
        "gone" => Fate::Gone,
        "different" => Fate::Different,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(bucket: &str, layout: Layout, records: &[&str]) -> Vec<String> {
        let records: Vec<_> = records.iter().map(|record| record.as_bytes().to_vec()).collect();
        let keys = other_keys(bucket.as_bytes(), &records, layout);
        keys.into_iter().map(|key| String::from_utf8(key).unwrap()).collect()
    }

    #[test]
    fn all_names_are_in_the_bucket_s_slot_and_a_hit_names_its_bucket_alone() {
        let of_one = names("{x}divvy:a=b:c:5:60", Layout::OneServer, &["divvy.reservation:r", "divvy.verdict:s"]);
        assert_eq!(of_one, ["divvy.reserved:{x}divvy:a=b:c:5:60", "divvy.reservation:r", "divvy.verdict:s"]);
        let tagged = names("{user1000}divvy:a=b:c:5:60", Layout::Cluster, &["divvy.reservation:r"]);
        assert_eq!(tagged, ["{8583}divvy.reserved:{user1000}divvy:a=b:c:5:60", "{8583}divvy.reservation:r"]);
        for layout in [Layout::OneServer, Layout::Cluster] {
            assert!(names("divvy:a=b:c:5:60", layout, &[]).is_empty());
        }
        assert_eq!(tag(b"{user1000}divvy", &[], Layout::Cluster).as_deref(), Some("{8583}"));
        assert_eq!(tag(b"{user1000}divvy", &[], Layout::OneServer), None);
    }
}
