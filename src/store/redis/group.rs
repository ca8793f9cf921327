//! A batch by bucket: which of its actions belong to one key in Redis, in the batch's order.

use hashbrown::HashMap;

use super::key;
use crate::store::{Batch, Entry};

/// The actions on one bucket.
pub(super) struct Group {
    /// The bucket's key in Redis.
    pub key: Vec<u8>,
    /// Where the actions are in the batch; at least one, ascending.
    pub indices: Vec<usize>,
}

impl Group {
    pub(super) fn entries<'a>(&'a self, batch: &'a Batch) -> impl Iterator<Item = &'a Entry> {
        self.indices.iter().filter_map(|index| batch.entries.get(*index))
    }
}

/// A batch's groups, by how they are decided.
#[derive(Default)]
pub(super) struct Groups {
    pub windows: Vec<Group>,
    pub replacements: Vec<Group>,
}

impl Groups {
    pub(super) fn of(batch: &Batch) -> Self {
        let mut groups = Self::default();
        let mut places: HashMap<Vec<u8>, usize, foldhash::fast::RandomState> = HashMap::default();
        for (index, entry) in batch.entries.iter().enumerate() {
            let bucket = batch.keys.get(entry.key.clone()).unwrap_or_default();
            let (key, list) = match key::window(bucket, &entry.limit) {
                Some(key) => (key, &mut groups.windows),
                None => (key::other(bucket, &entry.limit), &mut groups.replacements),
            };
            let known = places.get(&key).and_then(|place| list.get_mut(*place));
            if let Some(group) = known {
                group.indices.push(index);
                continue;
            }
            places.insert(key.clone(), list.len());
            list.push(Group { key, indices: vec![index] });
        }
        groups
    }
}
