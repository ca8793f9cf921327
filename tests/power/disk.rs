//! A file system that knows what is on the disk and what is only in the kernel's memory, and the disks that a power cut
//! can make of it.
//!
//! Contents: each 512-byte sector, or each 4096-byte page, that was written since the file's last sync holds any of its
//! contents since then, whatever the others hold: writes are missing, torn and reordered. So is the file's size. What a
//! hole in a file would show is zeros.
//!
//! Names: with [`Names::Ordered`], as on ext4 and xfs, a directory's changes reach the disk in their order; the sync of a
//! file takes the changes of its own name along, and all before them. With [`Names::Loose`], which is all that POSIX
//! promises, each change that no sync of the directory followed is there or not, whatever became of the others.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::ops::Range;
use std::path::Path;

use rand::RngExt;
use rand::rngs::Xoshiro256PlusPlus as Rng;

use super::trace::{Event, KEEP_SIZE, O_CREAT, O_TRUNC, Trace};

const SECTOR: usize = 512;
const PAGE: usize = 4096;

/// What a power cut can do.
#[derive(Debug, Clone, Copy)]
pub struct Model {
    pub names: Names,
    /// Whether the last edits of RocksDB's manifest, which were not synced, may have holes. RocksDB refuses those. They
    /// are written at once and nearly always within a page, so most disks tear them from their end, if at all.
    pub manifest_holes: bool,
}

/// How changes of names reach the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Names {
    Ordered,
    Loose,
}

/// What becomes of writes that were not synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// All of them are there, as after the end of the process alone.
    Kept,
    /// None is.
    Lost,
    /// The first ones are; the next is torn.
    Prefix,
    /// All are but for one stretch.
    Hole,
    /// Each sector, or page, for itself.
    Scattered,
}

pub const FATES: [Fate; 5] = [Fate::Kept, Fate::Lost, Fate::Prefix, Fate::Hole, Fate::Scattered];

#[derive(Debug, Clone)]
enum Change {
    Write { offset: usize, data: Range<usize> },
    Resize(usize),
}

/// A file, whatever its names are.
#[derive(Debug, Default)]
struct Inode {
    /// Its content as far as it was synced.
    durable: Vec<u8>,
    /// What came since, with the number of its event.
    pending: Vec<(usize, Change)>,
}

#[derive(Debug, Clone)]
enum NameChange {
    Set { name: String, inode: usize },
    Remove { name: String },
    Move { from: String, to: String, inode: usize },
}

impl NameChange {
    fn inode(&self) -> Option<usize> {
        match self {
            Self::Set { inode, .. } | Self::Move { inode, .. } => Some(*inode),
            Self::Remove { .. } => None,
        }
    }

    fn apply(&self, names: &mut BTreeMap<String, usize>) {
        match self {
            Self::Set { name, inode } => {
                names.insert(name.clone(), *inode);
            }
            Self::Remove { name } => {
                names.remove(name);
            }
            Self::Move { from, to, inode } => {
                names.remove(from);
                names.insert(to.clone(), *inode);
            }
        }
    }
}

/// What an open descriptor stands for.
#[derive(Debug, Clone, Copy)]
enum Opened {
    File(usize),
    Directory,
}

/// One directory's files, as they are after some of a trace's events.
pub struct FileSystem<'a> {
    trace: &'a Trace,
    /// Its path in the trace, with a slash at the end.
    directory: String,
    model: Model,
    /// How many events have happened.
    happened: usize,
    inodes: Vec<Inode>,
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    pending_names: Vec<(usize, NameChange)>,
    opened: HashMap<i32, Opened>,
    /// Syncs that have begun, by descriptor.
    syncing: HashMap<i32, Vec<usize>>,
}

impl<'a> FileSystem<'a> {
    /// Of the directory with that path in the trace, which is there and empty at first.
    pub fn new(trace: &'a Trace, directory: &Path, model: Model) -> Self {
        Self {
            trace,
            directory: format!("{}/", directory.to_str().unwrap()),
            model,
            happened: 0,
            inodes: Vec::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            pending_names: Vec::new(),
            opened: HashMap::new(),
            syncing: HashMap::new(),
        }
    }

    /// Lets the next events happen, up to the one with that number, which does not.
    pub fn advance(&mut self, until: usize) {
        let trace = self.trace;
        while self.happened < until {
            self.happen(self.happened, &trace.events[self.happened]);
            self.happened += 1;
        }
    }

    /// The first event that wrote to a write-ahead log and might be undone by a power cut now. All that was in the logs
    /// before it is on stable storage.
    pub fn first_unsynced_log_write(&self) -> usize {
        let logs = self.names.iter().filter(|(name, _)| name.ends_with(".log"));
        let writes = logs.filter_map(|(_, inode)| self.inodes[*inode].pending.first());
        writes.map(|(index, _)| *index).min().unwrap_or(self.happened)
    }

    /// Writes a disk that a power cut could have left now into the new directory `place`. So many of the files, a number
    /// from 0 to 1, fare otherwise than by `fate`.
    pub fn cut(&self, fate: Fate, others: f64, rng: &mut Rng, place: &Path) {
        fs::create_dir(place).unwrap();
        for (name, inode) in self.surviving_names(fate, rng) {
            let fate = if rng.random_bool(others) { FATES[rng.random_range(0..FATES.len())] } else { fate };
            let has_holes = self.model.manifest_holes || !name.starts_with("MANIFEST");
            let fate = if has_holes || !matches!(fate, Fate::Hole | Fate::Scattered) { fate } else { Fate::Prefix };
            fs::write(place.join(name), self.surviving_content(&self.inodes[inode], fate, rng)).unwrap();
        }
    }

    fn happen(&mut self, index: usize, event: &Event) {
        match event {
            Event::NewProcess => {
                self.opened.clear();
                self.syncing.clear();
            }
            Event::Open { fd, flags, path } => self.open(index, *fd, *flags, path),
            Event::Close { fd } => {
                self.opened.remove(fd);
                self.syncing.remove(fd);
            }
            Event::Write { fd, offset, data } => {
                self.change(index, *fd, Change::Write { offset: *offset as usize, data: data.clone() });
            }
            Event::Truncate { fd, length } => self.change(index, *fd, Change::Resize(*length as usize)),
            Event::Allocate { fd, mode, end } => {
                if mode & KEEP_SIZE == 0
                    && let Some(Opened::File(inode)) = self.opened.get(fd).copied()
                    && self.size(inode) < *end as usize
                {
                    self.change(index, *fd, Change::Resize(*end as usize));
                }
            }
            Event::Link { from, to } => {
                if let (Some(from), Some(to)) = (self.name(from), self.name(to)) {
                    let inode = self.names[&from];
                    self.rename(index, NameChange::Set { name: to, inode });
                }
            }
            Event::Rename { from, to } => match (self.name(from), self.name(to)) {
                (Some(from), Some(to)) => {
                    let inode = self.names[&from];
                    self.rename(index, NameChange::Move { from, to, inode });
                }
                (Some(name), None) => self.rename(index, NameChange::Remove { name }),
                (None, Some(name)) => panic!("{name} comes from elsewhere"),
                (None, None) => {}
            },
            Event::Unlink { path } => {
                if let Some(name) = self.name(&Some(path.clone())) {
                    self.rename(index, NameChange::Remove { name });
                }
            }
            Event::MakeDirectory | Event::RemoveDirectory => {}
            Event::SyncBegins { fd } => self.syncing.entry(*fd).or_default().push(index),
            Event::SyncEnds { fd } => {
                let began = self.syncing.get_mut(fd).map(|syncs| syncs.remove(0));
                match (self.opened.get(fd).copied(), began) {
                    (Some(Opened::File(inode)), Some(began)) => self.synced(inode, began),
                    (Some(Opened::Directory), Some(began)) => self.names_synced(began),
                    _ => {}
                }
            }
        }
    }

    /// The name in the directory that a path stands for.
    fn name(&self, path: &Option<String>) -> Option<String> {
        let name = path.as_ref()?.strip_prefix(&self.directory)?;
        (!name.is_empty() && !name.contains('/')).then(|| name.to_owned())
    }

    fn open(&mut self, index: usize, fd: i32, flags: u32, path: &str) {
        if *path == self.directory[..self.directory.len() - 1] {
            self.opened.insert(fd, Opened::Directory);
        }
        let Some(name) = self.name(&Some(path.to_owned())) else { return };
        let inode = match self.names.get(&name) {
            Some(&inode) => {
                if flags & O_TRUNC != 0 {
                    self.inodes[inode].pending.push((index, Change::Resize(0)));
                }
                inode
            }
            None => {
                assert!(flags & O_CREAT != 0, "{name} was opened and never made");
                self.inodes.push(Inode::default());
                let inode = self.inodes.len() - 1;
                self.rename(index, NameChange::Set { name, inode });
                inode
            }
        };
        self.opened.insert(fd, Opened::File(inode));
    }

    fn change(&mut self, index: usize, fd: i32, change: Change) {
        if let Some(Opened::File(inode)) = self.opened.get(&fd) {
            self.inodes[*inode].pending.push((index, change));
        }
    }

    fn rename(&mut self, index: usize, change: NameChange) {
        change.apply(&mut self.names);
        self.pending_names.push((index, change));
    }

    fn size(&self, inode: usize) -> usize {
        let inode = &self.inodes[inode];
        inode.pending.iter().fold(inode.durable.len(), |size, (_, change)| resized(size, change))
    }

    /// A sync of the file that began with event `began` has ended.
    fn synced(&mut self, inode: usize, began: usize) {
        let file = &mut self.inodes[inode];
        let done = file.pending.partition_point(|(index, _)| *index < began);
        for (_, change) in file.pending.drain(..done) {
            apply(&mut file.durable, &change, &self.trace.bytes);
        }
        if self.model.names == Names::Ordered {
            let own = |(index, change): &(usize, NameChange)| *index < began && change.inode() == Some(inode);
            let last = self.pending_names.iter().rposition(own);
            self.names_reached_disk(last.map_or(0, |last| last + 1));
        }
    }

    fn names_synced(&mut self, began: usize) {
        self.names_reached_disk(self.pending_names.partition_point(|(index, _)| *index < began));
    }

    fn names_reached_disk(&mut self, count: usize) {
        for (_, change) in self.pending_names.drain(..count) {
            change.apply(&mut self.durable_names);
        }
    }

    fn surviving_names(&self, fate: Fate, rng: &mut Rng) -> BTreeMap<String, usize> {
        let mut names = self.durable_names.clone();
        let pending = self.pending_names.len();
        let first = match fate {
            Fate::Kept => pending,
            Fate::Lost => 0,
            _ => rng.random_range(0..=pending),
        };
        for (place, (_, change)) in self.pending_names.iter().enumerate() {
            let is_there = match self.model.names {
                Names::Ordered => place < first,
                Names::Loose => fate == Fate::Kept || fate != Fate::Lost && rng.random(),
            };
            if is_there {
                change.apply(&mut names);
            }
        }
        names
    }

    fn surviving_content(&self, inode: &Inode, fate: Fate, rng: &mut Rng) -> Vec<u8> {
        let mut content = inode.durable.clone();
        let count = inode.pending.len();
        match fate {
            _ if count == 0 => {}
            Fate::Lost => {}
            Fate::Kept => self.replay(&mut content, inode, count),
            Fate::Prefix => {
                let whole = rng.random_range(0..count);
                self.replay(&mut content, inode, whole);
                apply(&mut content, &torn(&inode.pending[whole].1, rng), &self.trace.bytes);
            }
            Fate::Hole => {
                self.replay(&mut content, inode, count);
                let (_, hit) = &inode.pending[rng.random_range(0..count)];
                if let Change::Write { offset, data } = hit {
                    let unit = if rng.random() { SECTOR } else { PAGE };
                    let place = (offset + rng.random_range(0..data.len().max(1))) / unit * unit;
                    restore(&mut content, &inode.durable, place, unit);
                }
            }
            Fate::Scattered => {
                let unit = if rng.random() { SECTOR } else { PAGE };
                content = self.scattered(inode, unit, rng);
            }
        }
        content
    }

    fn replay(&self, content: &mut Vec<u8>, inode: &Inode, count: usize) {
        for (_, change) in &inode.pending[..count] {
            apply(content, change, &self.trace.bytes);
        }
    }

    /// Each unit as it was after any number of the pending changes.
    fn scattered(&self, inode: &Inode, unit: usize, rng: &mut Rng) -> Vec<u8> {
        let count = inode.pending.len();
        let any = |rng: &mut Rng| match rng.random_range(0..4) {
            0 => 0,
            1 => rng.random_range(0..=count),
            _ => count,
        };
        let sized_by = any(rng);
        let mut reached: HashMap<usize, usize> = HashMap::new();
        let mut content = inode.durable.clone();
        let mut size = content.len();
        for (place, (_, change)) in inode.pending.iter().enumerate() {
            if place < sized_by {
                size = resized(size, change);
            }
            let touched = match change {
                Change::Write { offset, data } => *offset..offset + data.len(),
                Change::Resize(length) => *length..content.len().max(*length),
            };
            content.resize(content.len().max(touched.end), 0);
            let mut at = touched.start;
            while at < touched.end {
                let number = at / unit;
                let end = touched.end.min((number + 1) * unit);
                if place < *reached.entry(number).or_insert_with(|| any(rng)) {
                    match change {
                        Change::Write { offset, data } => {
                            let from = data.start + at - offset;
                            content[at..end].copy_from_slice(&self.trace.bytes[from..from + end - at]);
                        }
                        Change::Resize(_) => content[at..end].fill(0),
                    }
                }
                at = end;
            }
        }
        content.resize(size, 0);
        content
    }
}

fn resized(size: usize, change: &Change) -> usize {
    match change {
        Change::Write { offset, data } => size.max(offset + data.len()),
        Change::Resize(length) => *length,
    }
}

fn apply(content: &mut Vec<u8>, change: &Change, bytes: &[u8]) {
    content.resize(resized(content.len(), change), 0);
    if let Change::Write { offset, data } = change {
        content[*offset..offset + data.len()].copy_from_slice(&bytes[data.clone()]);
    }
}

/// The beginning of a write, up to a sector's end.
fn torn(change: &Change, rng: &mut Rng) -> Change {
    match change {
        Change::Write { offset, data } => {
            let end = (offset + rng.random_range(0..=data.len())) / SECTOR * SECTOR;
            Change::Write { offset: *offset, data: data.start..data.start + end.saturating_sub(*offset) }
        }
        Change::Resize(length) => Change::Resize(*length),
    }
}

/// Puts what was there durably, or zeros, in the place of `length` bytes.
fn restore(content: &mut [u8], durable: &[u8], at: usize, length: usize) {
    let end = content.len().min(at + length);
    if at < end {
        content[at..end].fill(0);
        if let Some(kept) = durable.get(at..end.min(durable.len())) {
            content[at..at + kept.len()].copy_from_slice(kept);
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    const ROOT: &str = "/data";

    fn write(trace: &mut Trace, fd: i32, offset: u64, data: &[u8]) {
        let start = trace.bytes.len();
        trace.bytes.extend(data);
        trace.events.push(Event::Write { fd, offset, data: start..trace.bytes.len() });
    }

    fn open(trace: &mut Trace, fd: i32, name: &str) {
        trace.events.push(Event::Open { fd, flags: O_CREAT, path: format!("{ROOT}/{name}") });
    }

    fn sync(trace: &mut Trace, fd: i32) {
        trace.events.extend([Event::SyncBegins { fd }, Event::SyncEnds { fd }]);
    }

    /// The contents of a file over many power cuts at the end; `None` where it is missing.
    fn seen(trace: &Trace, names: Names, fate: Fate, name: &str) -> Vec<Option<Vec<u8>>> {
        let mut system = FileSystem::new(trace, Path::new(ROOT), Model { names, manifest_holes: true });
        system.advance(trace.events.len());
        let place = tempfile::tempdir().unwrap();
        let mut seen = Vec::new();
        for seed in 0..200 {
            let disk = place.path().join(seed.to_string());
            system.cut(fate, 0.0, &mut Rng::seed_from_u64(seed), &disk);
            seen.push(fs::read(disk.join(name)).ok());
        }
        seen.sort();
        seen.dedup();
        seen
    }

    #[test]
    fn what_was_synced_is_there_and_what_was_not_may_be() {
        let mut trace = Trace::default();
        open(&mut trace, 3, "a");
        write(&mut trace, 3, 0, b"kept");
        sync(&mut trace, 3);
        write(&mut trace, 3, 0, b"late");
        for fate in FATES {
            let seen = seen(&trace, Names::Ordered, fate, "a");
            assert!(seen.iter().all(|content| [Some(b"kept".to_vec()), Some(b"late".to_vec())].contains(content)));
            assert!(!seen.is_empty());
        }
        assert_eq!(seen(&trace, Names::Ordered, Fate::Scattered, "a").len(), 2);
        assert!(seen(&trace, Names::Loose, Fate::Scattered, "a").contains(&None), "no sync of the directory");
    }

    #[test]
    fn a_later_page_may_be_there_without_an_earlier_one() {
        let mut trace = Trace::default();
        open(&mut trace, 3, "a");
        sync(&mut trace, 3);
        write(&mut trace, 3, 0, &[1; 2 * PAGE]);
        let half = [vec![0; PAGE], vec![1; PAGE]].concat();
        assert!(seen(&trace, Names::Ordered, Fate::Scattered, "a").contains(&Some(half.clone())));
        assert!(seen(&trace, Names::Ordered, Fate::Hole, "a").contains(&Some(half)));
        assert!(seen(&trace, Names::Ordered, Fate::Scattered, "a").contains(&Some(vec![])));
    }

    #[test]
    fn what_was_written_while_a_sync_ran_is_not_synced() {
        let mut trace = Trace::default();
        open(&mut trace, 3, "a");
        trace.events.push(Event::SyncBegins { fd: 3 });
        write(&mut trace, 3, 0, b"late");
        trace.events.push(Event::SyncEnds { fd: 3 });
        assert_eq!(seen(&trace, Names::Ordered, Fate::Lost, "a"), [Some(vec![])]);
    }

    #[test]
    fn names_reach_the_disk_in_their_order_or_loosely() {
        let mut trace = Trace::default();
        open(&mut trace, 3, "a");
        open(&mut trace, 4, "b");
        let both = |names| {
            let mut system = FileSystem::new(&trace, Path::new(ROOT), Model { names, manifest_holes: true });
            system.advance(trace.events.len());
            let mut rng = Rng::seed_from_u64(1);
            let names = (0..100).map(|_| system.surviving_names(Fate::Scattered, &mut rng).into_keys().collect());
            names.collect::<std::collections::BTreeSet<Vec<_>>>()
        };
        assert!(!both(Names::Ordered).contains(&vec!["b".to_owned()]));
        assert!(both(Names::Loose).contains(&vec!["b".to_owned()]));
    }
}
