//! Every bucket but a rule's fixed window: read, decided here, and replaced if nobody else replaced it meanwhile.
//!
//! Why not decide in Lua: decisions are exact in integers of 64 and 128 bits, Lua's numbers are doubles, which hold 53
//! bits, and times in nanoseconds since 1970 take 61. So the script only compares and sets, and one implementation of
//! the algorithms decides for every store. It costs a second round trip for each batch that changes something, and
//! another one each time that another divvy changed the bucket in between; within one process, batches take turns.

use std::hash::BuildHasher;

use foldhash::fast::FixedState;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{Instant, timeout_at};

use super::call::{Call, Failure, Reply, Script};
use super::group::Group;
use crate::algorithm::{Outcome, State};
use crate::clock::{NANOS_PER_MILLI, NANOS_PER_SECOND};
use crate::store::{Batch, Change, StoreError, value};

/// How long a bucket is kept after it is as good as fresh: as far as one divvy's clock may be behind another's, it is
/// not fresh yet by that clock.
const GRACE_NS: u64 = 10 * NANOS_PER_SECOND;

/// Answers 1 when it replaced the value, else the value that is there instead. Empty stands for none.
static REPLACE: Script = Script::new(
    r"
local stored = redis.call('GET', KEYS[1]) or ''
if stored ~= ARGV[1] then return stored end
if ARGV[2] == '' then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
end
return 1
",
);

/// The call that reads a group's bucket.
pub(super) fn read(group: &Group) -> Call {
    Call::Get { key: group.key.clone() }
}

/// What [`REPLACE`]'s reply says was stored instead; `None` when it replaced what was expected.
pub(super) fn overtaken_by(reply: Reply) -> Option<Reply> {
    (reply != Reply::Int(1)).then_some(reply)
}

/// A group's actions, decided on a value that Redis held.
pub(super) struct Replacement<'a> {
    pub group: &'a Group,
    outcomes: Vec<Outcome>,
    expected: Vec<u8>,
    written: Vec<u8>,
    lives_ms: u64,
}

impl<'a> Replacement<'a> {
    pub(super) fn new(group: &'a Group) -> Self {
        Self { group, outcomes: Vec::new(), expected: Vec::new(), written: Vec::new(), lives_ms: 0 }
    }

    /// Decides the actions one after the other, given the reply that holds the bucket's value.
    pub(super) fn decide(&mut self, batch: &Batch, stored: Reply) -> Result<(), Failure> {
        self.expected = match stored {
            Reply::Nil => Vec::new(),
            Reply::BulkString(bytes) => bytes,
            _ => return Err(Failure::Foreign("a bucket's value is no string")),
        };
        self.written.clone_from(&self.expected);
        self.outcomes.clear();
        let mut state: Option<State> = None;
        for (place, entry) in self.group.entries(batch).enumerate() {
            if place == 0 && !self.expected.is_empty() {
                state = Some(value::decode(&entry.limit, &self.expected).map_err(Failure::Damaged)?);
            }
            let (outcome, change) = entry.decide(state.as_ref());
            self.outcomes.push(outcome);
            match change {
                Change::Keep => continue,
                Change::Clear => {
                    state = None;
                    self.written.clear();
                }
                Change::Set(new) => {
                    let expires = entry.expiry(&new, batch.now());
                    self.written.clear();
                    value::encode(&new, expires, &mut self.written);
                    self.lives_ms = expires.plus(GRACE_NS).since(batch.now()).div_ceil(NANOS_PER_MILLI);
                    state = Some(new);
                }
            }
        }
        Ok(())
    }

    /// Whether there is anything to write.
    pub(super) fn changes(&self) -> bool {
        self.written != self.expected
    }

    pub(super) fn call(&self) -> Call {
        let arguments = vec![self.expected.clone(), self.written.clone(), self.lives_ms.to_string().into_bytes()];
        Call::Script { script: &REPLACE, key: self.group.key.clone(), arguments }
    }

    pub(super) fn into_outcomes(self) -> Vec<Outcome> {
        self.outcomes
    }
}

/// Far more than the buckets that are usually wanted at once: two buckets of one turn wait for each other, and batches of many
/// buckets on few turns would all wait for all. 40 bytes each.
const TURNS: usize = 65_536;

/// Lets one batch of this process at a time read and replace a bucket: without it, busy connections would overtake
/// each other for ever on a bucket that all of them want.
pub(super) struct InProcessOrder {
    turns: Box<[Mutex<()>]>,
    hash: FixedState,
}

impl Default for InProcessOrder {
    fn default() -> Self {
        Self { turns: (0..TURNS).map(|_| Mutex::new(())).collect(), hash: FixedState::default() }
    }
}

impl InProcessOrder {
    /// Waits until it is this batch's turn on all of its buckets.
    pub(super) async fn enter(
        &self,
        groups: &[Group],
        deadline: Instant,
    ) -> Result<Vec<MutexGuard<'_, ()>>, StoreError> {
        // In ascending order, each once, so that two batches never wait for each other.
        let mut places: Vec<_> = groups.iter().map(|group| self.place(&group.key)).collect();
        places.sort_unstable();
        places.dedup();
        let mut turn = Vec::with_capacity(places.len());
        for mutex in places.into_iter().filter_map(|place| self.turns.get(place)) {
            let guard = timeout_at(deadline, mutex.lock()).await;
            turn.push(
                guard.map_err(|_| {
                    StoreError::overloaded("Redis is too slow for all the batches that want one bucket")
                })?,
            );
        }
        Ok(turn)
    }

    fn place(&self, key: &[u8]) -> usize {
        usize::try_from(self.hash.hash_one(key)).unwrap_or(0) % TURNS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_gets_no_turn_in_time_is_too_much_for_the_bucket_and_others_have_theirs() {
        let order = InProcessOrder::default();
        let groups = |key: &[u8]| [Group { key: key.to_vec(), indices: vec![0] }];
        let turn = order.enter(&groups(b"a"), Instant::now()).await.unwrap();
        assert!(matches!(order.enter(&groups(b"a"), Instant::now()).await, Err(StoreError::Overloaded(_))));
        assert!(order.enter(&groups(b"b"), Instant::now()).await.is_ok());
        drop(turn);
        assert!(order.enter(&groups(b"a"), Instant::now()).await.is_ok());
    }
}
