//! Keys in Redis that go with a bucket's key: its reservations, and the records of reservations and idempotent requests.
//!
//! The reserved credits of a bucket have a key of their own, so that the original Divvy, and servers that do not
//! support reservations, still read the bucket. The key holds credits by their ends, and expires with the last of them.
//! Every script on a bucket subtracts them. In addition, each reservation and each idempotent request has a record with
//! a key of its own, which expires when it may be forgotten. Only Redis's memory bounds their number.
//!
//! The name of the key with reservations is derived from the bucket's name, so a script needs no further argument for
//! it. A hit must not name both keys: while a slot moves to another node, a cluster would refuse the hit (`TRYAGAIN`),
//! because most buckets have only one of the two. In a cluster, these keys begin with the tag of their slot, which the
//! script gets as an argument. Asks with records name all of their keys, and are refused while the slot moves.

use crate::topology::{Layout, tag_of};
use divvy_core::algorithm::{ReservationAsk, Resolution, Run, run_of};
use divvy_store::contract::Action;

/// Prefix of the key with a bucket's reservations. The bucket's name follows.
pub const RESERVED: &str = "divvy.reserved:";
/// Prefixes of the keys of records.
const RESERVATION: &[u8] = b"divvy.reservation:";
const ANSWER: &[u8] = b"divvy.verdict:";

/// Returns the name of the action's record, which has this key, without a tag. Returns `None` if the action has no record.
pub fn name(action: Action, key: &[u8]) -> Option<Vec<u8>> {
    match action {
        Action::Reservation(_) => Some([RESERVATION, key].concat()),
        Action::Idempotent { .. } => Some([ANSWER, key].concat()),
        Action::Ask(_) | Action::Forget => None,
    }
}

/// Returns the keys of a call on the bucket with this name, whose asks have records with these names. Without records, the script
/// of a cluster gets the tag of the bucket's slot as its last argument.
pub fn keys(bucket: Vec<u8>, records: &[Vec<u8>], layout: Layout, arguments: &mut Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let tag = if layout == Layout::Cluster { tag_of(&bucket) } else { String::new() };
    if records.is_empty() {
        if !tag.is_empty() {
            arguments.push(tag.into());
        }
        return vec![bucket];
    }
    let reserved = [tag.as_bytes(), RESERVED.as_bytes(), &bucket].concat();
    let records = records.iter().map(|record| [tag.as_bytes(), record].concat());
    [bucket, reserved].into_iter().chain(records).collect()
}

/// Returns the ask as an argument of the scripts. `at` is its time.
pub fn action_text(ask: ReservationAsk, at: &str, generation: u64) -> String {
    // 0 stands for whichever reservation has the name.
    let run = ask.run().map_or(0, Run::get);
    match ask {
        ReservationAsk::Reserve { credits, ttl_seconds } => {
            format!("reserve {credits} {at} {ttl_seconds} {generation} {run}", run = run_of(generation))
        }
        ReservationAsk::Commit { cost, charges: true, .. } => format!("commit {cost} {at} {run} late"),
        ReservationAsk::Commit { cost, charges: false, .. } => format!("commit {cost} {at} {run}"),
        ReservationAsk::Release { .. } => format!("release 0 {at} {run}"),
        // A TTL is never 0, so 0 can stand for the original TTL.
        ReservationAsk::Renew { ttl_seconds, .. } => format!("renew {} {at} {run}", ttl_seconds.unwrap_or(0)),
    }
}

/// Reads a resolution as the scripts write it.
pub fn resolution(word: &str) -> Option<Resolution> {
    Some(match word {
        "done" => Resolution::Done,
        "late" => Resolution::Late,
        "repeated" => Resolution::Repeated,
        "gone" => Resolution::Gone,
        "different" => Resolution::Different,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the keys, and the number of arguments.
    fn names(bucket: &str, layout: Layout, records: &[&str]) -> (Vec<String>, usize) {
        let records: Vec<_> = records.iter().map(|record| record.as_bytes().to_vec()).collect();
        let mut arguments = Vec::new();
        let keys = keys(bucket.into(), &records, layout, &mut arguments);
        (keys.into_iter().map(|key| String::from_utf8(key).unwrap()).collect(), arguments.len())
    }

    #[test]
    fn all_keys_are_in_the_slot_of_the_bucket_and_a_hit_names_only_its_bucket() {
        let bucket = "{user1000}divvy:a=b:c:5:60";
        let one = names(bucket, Layout::OneServer, &["divvy.reservation:r", "divvy.verdict:s"]);
        let reserved = "divvy.reserved:{user1000}divvy:a=b:c:5:60";
        assert_eq!(one.0, [bucket, reserved, "divvy.reservation:r", "divvy.verdict:s"]);
        let tagged = names(bucket, Layout::Cluster, &["divvy.reservation:r"]);
        assert_eq!(
            tagged.0,
            [bucket.to_owned(), format!("{{8583}}{reserved}"), "{8583}divvy.reservation:r".to_owned()]
        );
        assert_eq!((one.1, tagged.1), (0, 0));
        assert_eq!(names(bucket, Layout::OneServer, &[]), (vec![bucket.to_owned()], 0));
        assert_eq!(names(bucket, Layout::Cluster, &[]), (vec![bucket.to_owned()], 1), "the tag");
    }
}
