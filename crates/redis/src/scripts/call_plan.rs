//! Divides a batch into calls: actions by bucket, and groups by the buckets that they share.

use std::collections::BTreeMap;

use hashbrown::HashMap;

use super::names;
use crate::topology::Layout;
use crate::topology::slots::share_slot;
use divvy_core::algorithm::Limit;
use divvy_store::{Batch, Entry, Unit, record_key};

/// Maximum number of actions in a call of the script of groups. Redis does nothing else during a call.
const MAX_TOGETHER: usize = 128;

/// The actions of one call.
#[derive(Default)]
pub struct CallPlan {
    /// The buckets, each with its actions. With steps, each has one action, and a bucket may occur several times.
    pub buckets: Vec<BucketActions>,
    /// The number of buckets in each step. Empty if there is one bucket, whose own script applies its actions. Otherwise the
    /// script of groups applies the steps in order; the actions of a step take effect together.
    pub steps: Vec<usize>,
    /// Whether another call on these buckets follows, which must not overtake this one because Redis has forgotten the script.
    pub has_successor: bool,
}

impl CallPlan {
    fn of_bucket(actions: BucketActions) -> Self {
        Self { buckets: vec![actions], ..Self::default() }
    }

    /// Returns the indexes of the actions in the batch.
    pub fn indices(&self) -> impl Iterator<Item = usize> {
        self.buckets.iter().flat_map(|actions| actions.indices.iter().copied())
    }
}

/// Actions on one bucket.
#[derive(Clone)]
pub struct BucketActions {
    /// The bucket's key in Redis.
    pub key: Vec<u8>,
    pub limit: Limit,
    /// The indexes of the actions in the batch, in ascending order. There is at least one.
    pub indices: Vec<usize>,
    /// The name of each action's record, if it has one.
    pub records: Vec<Vec<u8>>,
    /// Whether the key holds a rule's fixed window, as the original Divvy stores it. Otherwise it holds an algorithm's state.
    pub is_window: bool,
}

impl BucketActions {
    fn of_entry(index: usize, entry_key: &[u8], entry: &Entry) -> Self {
        let (bucket, records) = match names::record(entry.action, entry_key) {
            Some(record) => (record_key::bucket(entry_key), vec![record]),
            None => (entry_key, Vec::new()),
        };
        let window = names::window(bucket, &entry.limit);
        let is_window = window.is_some();
        let key = window.unwrap_or_else(|| names::other(bucket, &entry.limit));
        Self { key, limit: entry.limit, indices: vec![index], records, is_window }
    }

    pub fn entries<'a>(&'a self, batch: &'a Batch) -> impl Iterator<Item = &'a Entry> {
        self.indices.iter().filter_map(|index| batch.entries.get(*index))
    }
}

/// Actions that take effect together, each on another bucket.
type Step = Vec<BucketActions>;
type Places<K> = HashMap<K, usize, foldhash::fast::RandomState>;

/// Returns the calls of a batch. No two of them touch the same bucket, except the parts of a call for very many actions.
pub fn plan_calls(batch: &Batch, layout: Layout) -> Vec<CallPlan> {
    // Fast path: most batches that are not pipelined have one action.
    if let [entry] = batch.entries.as_slice() {
        return vec![CallPlan::of_bucket(BucketActions::of_entry(0, entry.key_in(&batch.keys), entry))];
    }
    let without_groups = if batch.groups.is_empty() { by_bucket(batch.units(0).flat_map(step)) } else { None };
    without_groups.unwrap_or_else(|| connected_sets(batch, layout).into_iter().flat_map(plan_set).collect())
}

fn plan_set(steps: Vec<Step>) -> Vec<CallPlan> {
    let are_single = steps.iter().all(|step| step.len() == 1);
    let by_bucket = if are_single { by_bucket(steps.iter().flatten().cloned()) } else { None };
    by_bucket.unwrap_or_else(|| in_parts(steps))
}

fn step(unit: Unit<'_>) -> Step {
    unit.members().map(|(index, key, entry)| BucketActions::of_entry(index, key, entry)).collect()
}

/// Returns the steps of a unit, usually one. A reservation that a cluster keeps in several slots is settled in a step
/// for each bucket, because no call reaches all of them.
fn steps(unit: Unit<'_>, layout: Layout) -> Vec<Step> {
    let step = step(unit);
    let settles = unit.entries.iter().all(|entry| entry.action.settles_reservation());
    let is_torn = || step.windows(2).any(|two| matches!(two, [one, next] if !share_slot(&one.key, &next.key)));
    if layout == Layout::Cluster && settles && is_torn() {
        return step.into_iter().map(|member| vec![member]).collect();
    }
    vec![step]
}

/// Returns a call for each bucket, in the order of their first actions. Returns `None` if there are actions on a bucket
/// under two limits, because a script call has only one limit.
fn by_bucket(actions: impl Iterator<Item = BucketActions>) -> Option<Vec<CallPlan>> {
    let mut buckets: Vec<BucketActions> = Vec::new();
    let mut places: Places<Vec<u8>> = HashMap::default();
    for new in actions {
        match places.get(&new.key).and_then(|place| buckets.get_mut(*place)) {
            Some(known) if known.limit != new.limit => return None,
            Some(known) => {
                known.indices.extend(new.indices);
                known.records.extend(new.records);
            }
            None => {
                places.insert(new.key.clone(), buckets.len());
                buckets.push(new);
            }
        }
    }
    Some(buckets.into_iter().map(CallPlan::of_bucket).collect())
}

/// Returns the batch's steps in sets. Steps that share buckets, directly or through other steps, are in one set.
fn connected_sets(batch: &Batch, layout: Layout) -> Vec<Vec<Step>> {
    let steps: Vec<Step> = batch.units(0).flat_map(|unit| steps(unit, layout)).collect();
    // The index of an earlier step of the same set, or the step's own index. The first step of a set is its root.
    let mut parents: Vec<usize> = (0..steps.len()).collect();
    let mut first_with: Places<&[u8]> = HashMap::default();
    for (place, step) in steps.iter().enumerate() {
        for member in step {
            let first = *first_with.entry(&member.key).or_insert(place);
            let (one, other) = (root(&mut parents, first), root(&mut parents, place));
            if let Some(parent) = parents.get_mut(one.max(other)) {
                *parent = one.min(other);
            }
        }
    }
    drop(first_with);
    let mut sets: BTreeMap<usize, Vec<Step>> = BTreeMap::new();
    for (place, step) in steps.into_iter().enumerate() {
        sets.entry(root(&mut parents, place)).or_default().push(step);
    }
    sets.into_values().collect()
}

/// Returns the root of the step's set, and shortens the path to it.
fn root(parents: &mut [usize], mut place: usize) -> usize {
    while let Some(parent) = parents.get(place).copied().filter(|parent| *parent != place) {
        let grandparent = parents.get(parent).copied().unwrap_or(parent);
        if let Some(shortened) = parents.get_mut(place) {
            *shortened = grandparent;
        }
        place = grandparent;
    }
    place
}

/// Returns the steps in one call, or in several if they have too many actions.
fn in_parts(steps: Vec<Step>) -> Vec<CallPlan> {
    let mut parts: Vec<CallPlan> = Vec::new();
    for step in steps {
        let last = parts.pop_if(|last| last.buckets.len() + step.len() <= MAX_TOGETHER);
        let mut part = last.unwrap_or_else(|| {
            parts.iter_mut().for_each(|full| full.has_successor = true);
            CallPlan::default()
        });
        part.steps.push(step.len());
        part.buckets.extend(step);
        parts.push(part);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use divvy_core::algorithm::ReservationAsk;
    use divvy_core::clock::Timestamp;
    use divvy_store::testing::{TAKE, window};

    fn is_group(plan: &CallPlan) -> bool {
        !plan.steps.is_empty()
    }

    /// Returns the indices of each call's actions, for units of one-letter buckets, and whether the call is for groups.
    fn calls(units: &[&str]) -> Vec<(Vec<usize>, bool)> {
        let mut batch = Batch::default();
        for unit in units {
            let first = batch.len();
            for bucket in unit.bytes() {
                batch.push(window(1, 1), TAKE, Timestamp::EPOCH, |key| key.push(bucket));
            }
            batch.group(first);
        }
        let plans = plan_calls(&batch, Layout::OneServer);
        plans.iter().map(|plan| (plan.indices().collect(), is_group(plan))).collect()
    }

    #[test]
    fn each_bucket_has_a_call_if_there_are_no_groups() {
        assert_eq!(calls(&["a"]), [(vec![0], false)]);
        assert_eq!(calls(&["a", "b", "a"]), [(vec![0, 2], false), (vec![1], false)]);
    }

    #[test]
    fn actions_that_share_buckets_with_a_group_are_one_call_in_batch_order() {
        assert_eq!(calls(&["ab"]), [(vec![0, 1], true)]);
        assert_eq!(calls(&["a", "ab", "c", "b", "c"]), [(vec![0, 1, 2, 4], true), (vec![3, 5], false)]);
        assert_eq!(calls(&["ab", "cd", "e"]), [(vec![0, 1], true), (vec![2, 3], true), (vec![4], false)]);
        assert_eq!(calls(&["ab", "cd", "bc", "a"]), [(vec![0, 1, 2, 3, 4, 5, 6], true)]);
    }

    #[test]
    fn actions_on_a_bucket_under_two_limits_are_steps() {
        let mut batch = Batch::default();
        for (bucket, credits) in [(b'a', 1), (b'b', 1), (b'a', 2), (b'a', 1), (b'b', 1)] {
            let limit = window(credits, 1).counting(window(1, 1).count_basis());
            batch.push(limit, TAKE, Timestamp::EPOCH, |key| key.push(bucket));
        }
        let plans = plan_calls(&batch, Layout::OneServer);
        let calls: Vec<(Vec<usize>, bool)> =
            plans.iter().map(|plan| (plan.indices().collect(), is_group(plan))).collect();
        assert_eq!(calls, [(vec![0, 2, 3], true), (vec![1, 4], false)]);
    }

    #[test]
    fn reservation_in_several_slots_of_a_cluster_is_settled_bucket_by_bucket() {
        let mut batch = Batch::default();
        for bucket in [b"{a}1", b"{a}2", b"{b}3"] {
            batch.push_reservation(ReservationAsk::Release { run: None }, b"id", |key| {
                key.extend_from_slice(bucket);
                Some(window(1, 1))
            });
        }
        batch.group(0);
        let calls = |batch: &Batch, layout| -> Vec<Vec<usize>> {
            plan_calls(batch, layout).iter().map(|plan| plan.indices().collect()).collect()
        };
        assert_eq!(calls(&batch, Layout::OneServer), [vec![0, 1, 2]]);
        assert_eq!(calls(&batch, Layout::Cluster), [vec![0], vec![1], vec![2]]);
        batch.truncate(2);
        batch.group(0);
        assert_eq!(calls(&batch, Layout::Cluster), [vec![0, 1]]);
    }

    #[test]
    fn every_part_but_the_last_has_a_successor() {
        let entry = Entry::new(0..0, window(1, 1), TAKE, Timestamp::EPOCH);
        let step = |index| [b"a", b"b"].map(|key| BucketActions::of_entry(index, key, &entry)).into();
        let parts = in_parts((0..200).map(step).collect());
        let parts: Vec<_> = parts.iter().map(|part| (part.steps.len(), part.has_successor)).collect();
        assert_eq!(parts, [(64, true), (64, true), (64, true), (8, false)]);
    }
}
