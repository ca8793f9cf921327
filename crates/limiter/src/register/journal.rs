//! The journal of the latest changes of blocks, for clients that follow them, and the cursors of listings.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use parking_lot::Mutex;

/// Maximum memory of the changes (bytes): about 100,000 usual ones.
const MAX_BYTES: usize = 8 << 20;
/// Memory of a change without the text of its actor (bytes).
const CHANGE_BYTES: usize = 64;

/// The latest changes.
#[derive(Debug)]
pub struct Journal {
    history: u64,
    latest: Mutex<Latest>,
}

#[derive(Debug, Default)]
struct Latest {
    /// The number of the last change.
    last: u64,
    /// The owners and actors of the changes up to the last one.
    changes: VecDeque<Cursor>,
    bytes: usize,
}

impl Default for Journal {
    fn default() -> Self {
        // Random, because otherwise the histories of two processes would look alike, and a client that follows one of them might
        // miss changes until it lists all blocks again.
        Self { history: RandomState::new().hash_one(0), latest: Mutex::default() }
    }
}

impl Journal {
    /// Records a change, after it is in force.
    pub fn record(&self, change: Cursor) {
        let latest = &mut *self.latest.lock();
        latest.last += 1;
        latest.bytes += bytes(&change);
        latest.changes.push_back(change);
        while latest.bytes > MAX_BYTES
            && let Some(oldest) = latest.changes.pop_front()
        {
            latest.bytes -= bytes(&oldest);
        }
    }

    /// Forgets all changes: clients have to list all blocks again. Call it after a change that concerns many of them.
    pub fn reset(&self) {
        let latest = &mut *self.latest.lock();
        *latest = Latest { last: latest.last + 1, ..Latest::default() };
    }

    /// Returns the sequence number of the last change.
    pub fn sequence(&self) -> String {
        self.text(self.latest.lock().last)
    }

    /// Returns the next `count` changes after a sequence number, each owner and actor once, and the sequence number of the last
    /// one. `None` if the changes after it are not known.
    pub(crate) fn after(&self, sequence: &str, count: usize) -> Option<(BTreeSet<Cursor>, String)> {
        let (history, number) = sequence.split_once('-')?;
        let number: u64 = number.parse().ok().filter(|_| u64::from_str_radix(history, 16) == Ok(self.history))?;
        let latest = self.latest.lock();
        let missing = usize::try_from(latest.last.checked_sub(number)?).ok()?;
        let known = latest.changes.len().checked_sub(missing)?;
        let found = latest.changes.iter().skip(known).take(count).cloned().collect();
        Some((found, self.text(number + missing.min(count) as u64)))
    }

    fn text(&self, number: u64) -> String {
        format!("{:016x}-{number}", self.history)
    }
}

fn bytes(change: &Cursor) -> usize {
    change.actor.len() + CHANGE_BYTES
}

/// An exception's owner and actor. In a listing, the next page continues after the last one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cursor {
    pub owner: Arc<str>,
    pub actor: Arc<str>,
}

impl Cursor {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (owner, actor) = text.split_once(' ')?;
        Some(Self { owner: owner.replace("%20", " ").replace("%25", "%").into(), actor: actor.into() })
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Names of fields may have spaces.
        write!(f, "{} {}", self.owner.replace('%', "%25").replace(' ', "%20"), self.actor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block_change(actor: &str) -> Cursor {
        Cursor::parse(&format!("block:r {actor}")).unwrap()
    }

    fn after(journal: &Journal, sequence: &str, count: usize) -> Option<(String, String)> {
        let (found, next) = journal.after(sequence, count)?;
        Some((found.iter().map(|change| &*change.actor).collect::<Vec<_>>().join(" "), next))
    }

    #[test]
    fn cursor_reads_back() {
        for owner in ["block:login", "block:*/a b%20c/32", "%25 "] {
            let cursor = Cursor { owner: owner.into(), actor: "x y %20".into() };
            assert_eq!(Cursor::parse(&cursor.to_string()), Some(cursor));
        }
    }

    #[test]
    fn changes_after_a_sequence_number_are_found_once_each() {
        let journal = Journal::default();
        let start = journal.sequence();
        ["a", "b", "a", "c"].iter().for_each(|actor| journal.record(block_change(actor)));
        let end = journal.sequence();
        assert_eq!(after(&journal, &start, 9).unwrap(), ("a b c".into(), end.clone()));
        let (found, next) = after(&journal, &start, 3).unwrap();
        assert_eq!(found, "a b");
        assert_eq!(after(&journal, &next, 3).unwrap(), ("c".into(), end.clone()));
        assert_eq!(after(&journal, &end, 3).unwrap(), (String::new(), end));
    }

    #[test]
    fn unknown_sequence_numbers_are_refused() {
        let journal = Journal::default();
        journal.record(block_change("a"));
        let known = journal.sequence();
        let (history, _) = known.split_once('-').unwrap();
        let others =
            [Journal::default().sequence(), format!("{history}-2"), format!("{history}-x"), history.to_owned()];
        for other in others {
            assert_eq!(after(&journal, &other, 9), None, "{other}");
        }
        journal.reset();
        assert_eq!(after(&journal, &known, 9), None, "all blocks may have changed");
        assert!(after(&journal, &journal.sequence(), 9).is_some());
    }

    #[test]
    fn memory_is_bounded() {
        let journal = Journal::default();
        let start = journal.sequence();
        let long = "x".repeat(4_096);
        (0..3_000).for_each(|_| journal.record(block_change(&long)));
        let latest = journal.latest.lock();
        assert!(latest.bytes <= MAX_BYTES && latest.bytes == latest.changes.len() * bytes(&block_change(&long)));
        drop(latest);
        assert_eq!(after(&journal, &start, 9), None);
    }
}
