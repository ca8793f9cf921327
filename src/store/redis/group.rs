//! A batch by bucket: which of its actions belong to one key in Redis, in the batch's order.

use hashbrown::HashMap;

use super::key;
use crate::algorithm::{Ask, Limit};
use crate::store::batch::{Action, Batch, Entry};

/// The actions on one bucket.
pub(super) struct Group {
    /// The bucket's key in Redis.
    pub key: Vec<u8>,
    pub limit: Limit,
    /// Where the actions are in the batch; at least one, ascending.
    pub indices: Vec<usize>,
    pub meaning: Meaning,
}

/// What the key holds.
#[derive(Clone, Copy)]
pub(super) enum Meaning {
    /// Divvy's credits.
    Window,
    /// An algorithm's state.
    Bucket,
}

impl Group {
    pub(super) fn entries<'a>(&'a self, batch: &'a Batch) -> impl Iterator<Item = &'a Entry> {
        self.indices.iter().filter_map(|index| batch.entries.get(*index))
    }
}

/// A batch's actions by bucket, in the order in which the batch names the buckets first.
pub(super) fn groups_of(batch: &Batch) -> Vec<Group> {
    if let [entry] = batch.entries.as_slice() {
        // As most batches are that are not pipelined: there is nothing to find again.
        return vec![group(batch, 0, entry)];
    }
    let mut groups: Vec<Group> = Vec::new();
    let mut places: HashMap<Vec<u8>, usize, foldhash::fast::RandomState> = HashMap::default();
    for (index, entry) in batch.entries.iter().enumerate() {
        let new = group(batch, index, entry);
        if let Some(group) = places.get(&new.key).and_then(|place| groups.get_mut(*place)) {
            group.indices.push(index);
            continue;
        }
        places.insert(new.key.clone(), groups.len());
        groups.push(new);
    }
    groups
}

/// The bucket of this entry, and no other action on it.
fn group(batch: &Batch, index: usize, entry: &Entry) -> Group {
    let bucket = batch.keys.get(entry.key.clone()).unwrap_or_default();
    let (key, meaning) = match key::window(bucket, &entry.limit) {
        Some(key) => (key, Meaning::Window),
        None => (key::other(bucket, &entry.limit), Meaning::Bucket),
    };
    Group { key, limit: entry.limit, indices: vec![index], meaning }
}

/// What the scripts call the action, and its cost.
pub(super) fn words(action: Action) -> (&'static str, u64) {
    match action {
        Action::Ask(Ask::Look { cost }) => ("look", cost),
        Action::Ask(Ask::Take { cost }) => ("take", cost),
        Action::Ask(Ask::Drain { cost, strict: false }) => ("drain", cost),
        Action::Ask(Ask::Drain { cost, strict: true }) => ("strict", cost),
        Action::Ask(Ask::Replay { cost, strict: false }) => ("replay", cost),
        Action::Ask(Ask::Replay { cost, strict: true }) => ("strictreplay", cost),
        Action::Forget => ("forget", 0),
    }
}
