//! A batch by bucket: which of its actions belong to one key in Redis, in the batch's order.

use hashbrown::HashMap;

use super::call::{Call, Failure, Reply};
use super::{bucket, key, window};
use crate::algorithm::{Ask, Limit, Outcome};
use crate::store::{Action, Batch, Entry};

/// The actions on one bucket.
pub(super) struct Group {
    /// The bucket's key in Redis.
    pub key: Vec<u8>,
    pub limit: Limit,
    /// Where the actions are in the batch; at least one, ascending.
    pub indices: Vec<usize>,
    meaning: Meaning,
}

/// What the key holds.
enum Meaning {
    /// Divvy's credits.
    Window,
    /// An algorithm's state.
    Bucket,
}

impl Group {
    pub(super) fn entries<'a>(&'a self, batch: &'a Batch) -> impl Iterator<Item = &'a Entry> {
        self.indices.iter().filter_map(|index| batch.entries.get(*index))
    }

    /// What applies the actions.
    pub(super) fn call(&self, batch: &Batch) -> Call {
        match self.meaning {
            Meaning::Window => window::call(batch, self),
            Meaning::Bucket => bucket::call(batch, self),
        }
    }

    /// What the reply to that call says of each action.
    pub(super) fn outcomes(&self, batch: &Batch, reply: &Reply) -> Result<Vec<Outcome>, Failure> {
        match self.meaning {
            Meaning::Window => window::outcomes(batch, self, reply),
            Meaning::Bucket => bucket::outcomes(self, reply),
        }
    }
}

/// A batch's actions by bucket, in the order in which the batch names the buckets first.
pub(super) fn groups_of(batch: &Batch) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let mut places: HashMap<Vec<u8>, usize, foldhash::fast::RandomState> = HashMap::default();
    for (index, entry) in batch.entries.iter().enumerate() {
        let bucket = batch.keys.get(entry.key.clone()).unwrap_or_default();
        let (key, meaning) = match key::window(bucket, &entry.limit) {
            Some(key) => (key, Meaning::Window),
            None => (key::other(bucket, &entry.limit), Meaning::Bucket),
        };
        if let Some(group) = places.get(&key).and_then(|place| groups.get_mut(*place)) {
            group.indices.push(index);
            continue;
        }
        places.insert(key.clone(), groups.len());
        groups.push(Group { key, limit: entry.limit, indices: vec![index], meaning });
    }
    groups
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
