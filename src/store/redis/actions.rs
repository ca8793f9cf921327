//! What a batch asks of Redis, call by call, in the batch's order: which of its actions belong to one key, and which take
//! effect together.

use hashbrown::HashMap;

use super::key;
use crate::algorithm::{Ask, Limit};
use crate::store::batch::{Action, Batch, Entry};

/// What one call asks.
pub(super) enum Asked {
    OfOne(Actions),
    /// A group: one action on each of several buckets.
    Together(Vec<Actions>),
}

impl Asked {
    /// Where its actions are in the batch.
    pub(super) fn indices(&self) -> impl Iterator<Item = usize> {
        let buckets = match self {
            Self::OfOne(actions) => std::slice::from_ref(actions),
            Self::Together(members) => members,
        };
        buckets.iter().flat_map(|actions| actions.indices.iter().copied())
    }
}

/// The actions on one bucket.
pub(super) struct Actions {
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

impl Actions {
    pub(super) fn entries<'a>(&'a self, batch: &'a Batch) -> impl Iterator<Item = &'a Entry> {
        self.indices.iter().filter_map(|index| batch.entries.get(*index))
    }
}

/// What a batch asks. Actions on one bucket are asked at once, unless a group with that bucket comes between them: in the
/// order in which the batch names the buckets first.
pub(super) fn asked_by(batch: &Batch) -> Vec<Asked> {
    if let [entry] = batch.entries.as_slice() {
        // As most batches are that are not pipelined: there is nothing to find again.
        return vec![Asked::OfOne(actions(0, batch.key(entry), entry))];
    }
    let mut asked: Vec<Asked> = Vec::new();
    let mut places: HashMap<Vec<u8>, usize, foldhash::fast::RandomState> = HashMap::default();
    for unit in batch.units(0) {
        let mut members: Vec<_> = unit.members().map(|(index, key, entry)| actions(index, key, entry)).collect();
        if unit.entries.len() > 1 {
            for member in &members {
                places.remove(&member.key);
            }
            asked.push(Asked::Together(members));
            continue;
        }
        let Some(new) = members.pop() else { continue };
        match places.get(&new.key).and_then(|place| asked.get_mut(*place)) {
            Some(Asked::OfOne(known)) => known.indices.extend(new.indices),
            _ => {
                places.insert(new.key.clone(), asked.len());
                asked.push(Asked::OfOne(new));
            }
        }
    }
    asked
}

/// The bucket of this entry, and no other action on it.
fn actions(index: usize, bucket: &[u8], entry: &Entry) -> Actions {
    let (key, meaning) = match key::window(bucket, &entry.limit) {
        Some(key) => (key, Meaning::Window),
        None => (key::other(bucket, &entry.limit), Meaning::Bucket),
    };
    Actions { key, limit: entry.limit, indices: vec![index], meaning }
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
