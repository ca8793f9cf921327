//! What a batch asks of Redis, call by call, in the batch's order: which of its actions belong to one key, and which take
//! effect together.

use std::collections::BTreeMap;

use hashbrown::HashMap;

use super::{bucket_name, records};
use crate::algorithm::{Ask, Limit};
use crate::store::contract::{Batch, Entry, Unit};
use crate::store::record_key;
use crate::store::redis::topology::{Layout, share_slot};

/// What one call asks.
pub enum Asked {
    OfOne(Actions),
    Together(Together),
}

/// Groups, or actions under several limits, and what else is asked of their buckets, in the batch's order.
#[derive(Default)]
pub struct Together {
    /// Each is a group, one action on each of several buckets, or a single action.
    pub steps: Vec<Vec<Actions>>,
    /// Another call on these buckets follows: it must not overtake this one because Redis has forgotten the script.
    pub has_successor: bool,
}

impl Asked {
    /// Where its actions are in the batch.
    pub fn indices(&self) -> impl Iterator<Item = usize> {
        let (one, several) = match self {
            Self::OfOne(actions) => (std::slice::from_ref(actions), &[][..]),
            Self::Together(together) => (&[][..], together.steps.as_slice()),
        };
        one.iter().chain(several.iter().flatten()).flat_map(|actions| actions.indices.iter().copied())
    }
}

/// The actions on one bucket.
#[derive(Clone)]
pub struct Actions {
    /// The bucket's key in Redis.
    pub key: Vec<u8>,
    pub limit: Limit,
    /// Where the actions are in the batch; at least one, ascending.
    pub indices: Vec<usize>,
    /// The record's name, of each of them that has one.
    pub records: Vec<Vec<u8>>,
    pub meaning: Meaning,
}

/// What the key holds.
#[derive(Clone, Copy)]
pub enum Meaning {
    /// Divvy's credits.
    Window,
    /// An algorithm's state.
    Bucket,
}

impl Actions {
    pub fn entries<'a>(&'a self, batch: &'a Batch) -> impl Iterator<Item = &'a Entry> {
        self.indices.iter().filter_map(|index| batch.entries.get(*index))
    }
}

/// Actions that one call takes together at most: Redis does nothing else meanwhile.
const MAX_TOGETHER: usize = 128;

/// What a batch asks, in calls of which none touches a bucket of another, but for very many actions on buckets of groups.
pub fn asked_by(batch: &Batch, layout: Layout) -> Vec<Asked> {
    if let [entry] = batch.entries.as_slice() {
        // As most batches are that are not pipelined: there is nothing to find again.
        return vec![Asked::OfOne(actions(0, batch.key(entry), entry))];
    }
    let without_groups = if batch.has_groups() { None } else { by_bucket(batch.units(0).flat_map(members)) };
    if let Some(asked) = without_groups {
        return asked;
    }
    let mut asked = Vec::new();
    for steps in connected(batch, layout) {
        let singles = steps.iter().map(|step| if let [single] = step.as_slice() { Some(single.clone()) } else { None });
        match singles.collect::<Option<Vec<_>>>().and_then(|singles| by_bucket(singles.into_iter())) {
            Some(by_bucket) => asked.extend(by_bucket),
            None => asked.extend(in_calls(steps).map(Asked::Together)),
        }
    }
    asked
}

fn members(unit: Unit<'_>) -> Vec<Actions> {
    unit.members().map(|(index, key, entry)| actions(index, key, entry)).collect()
}

/// Returns the unit as one step. A reservation that a cluster keeps in several slots is settled in a step for each bucket,
/// because no call reaches all of them.
fn steps(unit: Unit<'_>, layout: Layout) -> Vec<Vec<Actions>> {
    let members = members(unit);
    let settles = unit.entries.iter().all(|entry| entry.action.settles_reservation());
    let is_torn = || members.windows(2).any(|two| matches!(two, [one, next] if !share_slot(&one.key, &next.key)));
    if layout == Layout::Cluster && settles && is_torn() {
        return members.into_iter().map(|member| vec![member]).collect();
    }
    vec![members]
}

/// All actions on one bucket are one call, in the order in which buckets are named first; `None` when one is asked under two
/// limits, of which a script knows one.
fn by_bucket(actions: impl Iterator<Item = Actions>) -> Option<Vec<Asked>> {
    let mut by_bucket: Vec<Actions> = Vec::new();
    let mut places: Places = HashMap::default();
    for new in actions {
        match places.get(&new.key).and_then(|place| by_bucket.get_mut(*place)) {
            Some(known) if known.limit != new.limit => return None,
            Some(known) => {
                known.indices.extend(new.indices);
                known.records.extend(new.records);
            }
            None => {
                places.insert(new.key.clone(), by_bucket.len());
                by_bucket.push(new);
            }
        }
    }
    Some(by_bucket.into_iter().map(Asked::OfOne).collect())
}

/// The batch's units, those together that have buckets in common, directly or by others.
fn connected(batch: &Batch, layout: Layout) -> Vec<Vec<Vec<Actions>>> {
    let steps: Vec<_> = batch.units(0).flat_map(|unit| steps(unit, layout)).collect();
    // Each unit has one before it, or itself, that it belongs with.
    let mut belongs: Vec<usize> = (0..steps.len()).collect();
    let mut first: HashMap<&[u8], usize, foldhash::fast::RandomState> = HashMap::default();
    for (place, step) in steps.iter().enumerate() {
        for member in step {
            let (one, other) =
                (begin(&mut belongs, *first.entry(&member.key).or_insert(place)), begin(&mut belongs, place));
            if let Some(later) = belongs.get_mut(one.max(other)) {
                *later = one.min(other);
            }
        }
    }
    drop(first);
    let mut sets: BTreeMap<usize, Vec<Vec<Actions>>> = BTreeMap::new();
    for (place, step) in steps.into_iter().enumerate() {
        sets.entry(begin(&mut belongs, place)).or_default().push(step);
    }
    sets.into_values().collect()
}

/// The first unit of those that this one belongs with.
fn begin(belongs: &mut [usize], place: usize) -> usize {
    let (mut begin, mut at) = (place, place);
    while let Some(before) = belongs.get(begin).copied().filter(|before| *before != begin) {
        begin = before;
    }
    // The way is shorter the next time.
    while at != begin {
        let Some(next) = belongs.get_mut(at) else { break };
        at = std::mem::replace(next, begin);
    }
    begin
}

fn in_calls(steps: Vec<Vec<Actions>>) -> impl Iterator<Item = Together> {
    let mut steps = steps.into_iter().peekable();
    std::iter::from_fn(move || {
        let mut call = Together { steps: vec![steps.next()?], has_successor: false };
        let mut actions: usize = call.steps.iter().map(Vec::len).sum();
        while let Some(step) = steps.next_if(|step| actions + step.len() <= MAX_TOGETHER) {
            actions += step.len();
            call.steps.push(step);
        }
        call.has_successor = steps.peek().is_some();
        Some(call)
    })
}

type Places = HashMap<Vec<u8>, usize, foldhash::fast::RandomState>;

/// The bucket of this entry, and no other action on it. `key` is the entry's.
fn actions(index: usize, key: &[u8], entry: &Entry) -> Actions {
    let (bucket, records) = match records::name(entry.action, key) {
        Some(record) => (record_key::bucket(key), vec![record]),
        None => (key, Vec::new()),
    };
    let (key, meaning) = match bucket_name::window(bucket, &entry.limit) {
        Some(key) => (key, Meaning::Window),
        None => (bucket_name::other(bucket, &entry.limit), Meaning::Bucket),
    };
    Actions { key, limit: entry.limit, indices: vec![index], records, meaning }
}

/// What the scripts call the ask, and its cost.
pub fn words(ask: Ask) -> (&'static str, u64) {
    match ask {
        Ask::Look { cost } => ("look", cost),
        Ask::Take { cost } => ("take", cost),
        Ask::Overdraw { cost } => ("overdraw", cost),
        Ask::Charge { cost } => ("charge", cost),
        Ask::Refund { cost } => ("refund", cost),
        Ask::Drain { cost, strict: false } => ("drain", cost),
        Ask::Drain { cost, strict: true } => ("strict", cost),
        Ask::Replay { cost, strict: false } => ("replay", cost),
        Ask::Replay { cost, strict: true } => ("strictreplay", cost),
    }
}

/// What the scripts call forgetting, which costs nothing.
pub const FORGET: (&str, u64) = ("forget", 0);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::ReservationAsk;
    use crate::clock::Timestamp;
    use crate::store::testing::{TAKE, window};

    /// The indices of each call's actions, for units of one-letter buckets.
    fn calls(units: &[&str]) -> Vec<(Vec<usize>, bool)> {
        let mut batch = Batch::default();
        for unit in units {
            let first = batch.len();
            for bucket in unit.bytes() {
                batch.push(window(1, 1), TAKE, Timestamp::EPOCH, |key| key.push(bucket));
            }
            batch.group(first);
        }
        let told = |asked: Asked| (asked.indices().collect(), matches!(asked, Asked::Together(_)));
        asked_by(&batch, Layout::OneServer).into_iter().map(told).collect()
    }

    #[test]
    fn without_groups_each_bucket_has_a_call() {
        assert_eq!(calls(&["a"]), [(vec![0], false)]);
        assert_eq!(calls(&["a", "b", "a"]), [(vec![0, 2], false), (vec![1], false)]);
    }

    #[test]
    fn what_has_buckets_in_common_with_a_group_is_one_call_in_the_batch_s_order() {
        assert_eq!(calls(&["ab"]), [(vec![0, 1], true)]);
        assert_eq!(calls(&["a", "ab", "c", "b", "c"]), [(vec![0, 1, 2, 4], true), (vec![3, 5], false)]);
        assert_eq!(calls(&["ab", "cd", "e"]), [(vec![0, 1], true), (vec![2, 3], true), (vec![4], false)]);
        assert_eq!(calls(&["ab", "cd", "bc", "a"]), [(vec![0, 1, 2, 3, 4, 5, 6], true)]);
    }

    #[test]
    fn a_bucket_that_is_asked_under_two_limits_is_asked_step_by_step() {
        let mut batch = Batch::default();
        for (bucket, credits) in [(b'a', 1), (b'b', 1), (b'a', 2), (b'a', 1), (b'b', 1)] {
            let limit = window(credits, 1).counting(window(1, 1).tally());
            batch.push(limit, TAKE, Timestamp::EPOCH, |key| key.push(bucket));
        }
        let told = |asked: Asked| (asked.indices().collect::<Vec<_>>(), matches!(asked, Asked::Together(_)));
        let calls: Vec<_> = asked_by(&batch, Layout::OneServer).into_iter().map(told).collect();
        assert_eq!(calls, [(vec![0, 2, 3], true), (vec![1, 4], false)]);
    }

    #[test]
    fn reservation_in_several_slots_of_a_cluster_is_settled_bucket_by_bucket() {
        let mut batch = Batch::default();
        for bucket in [b"{a}1", b"{a}2", b"{b}3"] {
            batch.push_reservation(ReservationAsk::Release, b"id", |key| {
                key.extend_from_slice(bucket);
                Some(window(1, 1))
            });
        }
        batch.group(0);
        let calls = |batch: &Batch, layout| -> Vec<Vec<usize>> {
            asked_by(batch, layout).iter().map(|asked| asked.indices().collect()).collect()
        };
        assert_eq!(calls(&batch, Layout::OneServer), [vec![0, 1, 2]]);
        assert_eq!(calls(&batch, Layout::Cluster), [vec![0], vec![1], vec![2]]);
        batch.truncate(2);
        batch.group(0);
        assert_eq!(calls(&batch, Layout::Cluster), [vec![0, 1]]);
    }

    #[test]
    fn very_many_actions_are_several_calls_of_which_the_first_ones_have_successors() {
        let steps =
            (0..100).map(|index| vec![actions(index, b"a", &entry()), actions(index, b"b", &entry())]).collect();
        let calls: Vec<_> = in_calls(steps).map(|call| (call.steps.len(), call.has_successor)).collect();
        assert_eq!(calls, [(64, true), (36, false)]);
    }

    fn entry() -> Entry {
        Entry::new(0..0, window(1, 1), TAKE, Timestamp::EPOCH)
    }
}
